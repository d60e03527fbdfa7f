"""Kernels that were packaged with a module, for processes without Numba."""
