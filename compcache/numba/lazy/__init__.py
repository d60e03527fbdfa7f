"""Numba functions in processes that start without Numba: decorated, found and called. Only a miss imports Numba."""
