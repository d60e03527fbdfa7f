"""Exports kernels for processes without Numba, as native entries that `Cache.get_target` finds."""
