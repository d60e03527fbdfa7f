"""The cache objects from which Numba loads overloads, and to which it saves them."""
