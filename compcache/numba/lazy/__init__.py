"""Numba functions in processes that start without Numba: decorated, found and called; only a miss imports Numba."""
