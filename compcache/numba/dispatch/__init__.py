"""What a call does: the cache objects that Numba asks for an overload, and gives a compiled one."""
