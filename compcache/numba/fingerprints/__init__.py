"""Digests functions by content: everything that the compiler, or code that it runs, can see of them."""
