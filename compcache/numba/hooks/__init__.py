"""Hooks into Numba: replaces methods of Numba while the backend is installed."""
