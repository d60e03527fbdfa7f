"""Hooks into Numba: everything in it that is replaced while the backend is installed."""
