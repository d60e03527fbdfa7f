"""Digests functions by content: all values that the compiler, or code that the compiler runs, can read from them."""
