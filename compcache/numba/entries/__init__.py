"""Entries: converts Numba's compile results to stored code, and stored code to compile results."""
