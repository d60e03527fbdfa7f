"""Finds the linkers of the system, and runs one of them."""
