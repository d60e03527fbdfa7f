"""What code is: the key of a compiled overload, and the digests of everything that the compiler can see of a function."""
