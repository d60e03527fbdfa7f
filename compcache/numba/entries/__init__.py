"""Entries: compile results of Numba as code that is stored, and back."""
