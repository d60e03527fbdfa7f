"""Digests of functions by content, including everything that the compiler, or code that it runs, can see of them."""
