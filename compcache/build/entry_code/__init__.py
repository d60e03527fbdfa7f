"""Assembles entry points from patterns, because LLVM needs more time for an entry point than for the function itself."""
