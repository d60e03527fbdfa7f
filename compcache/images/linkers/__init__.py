"""Finds the system's linkers, and runs a linker."""
