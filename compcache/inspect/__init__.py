"""Answers questions about single functions: realizations, graphs, code, why something is not cached."""
