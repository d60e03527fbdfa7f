"""Entries: their format, and their conversion from and to Numba's objects."""
