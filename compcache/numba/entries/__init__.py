"""What is stored: the form of an entry, and the ways between it and the objects of Numba."""
