"""Kernels for processes without Numba: native entries that `Cache.get_target` can call."""
