"""The supported versions of Numba: one data file for each series, with the private names that are used and their definitions."""
