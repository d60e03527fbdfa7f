"""Which versions of Numba are supported: one file of data for each series, with the private names that are used and what they are there."""
