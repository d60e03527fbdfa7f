"""Functions for Numba that start without it: decorated, found and called where only a miss imports Numba."""
