"""Hooks into Numba: everything that is replaced in it while the backend is installed."""
