"""Kernels that were packaged with a module, for programs without Numba."""
