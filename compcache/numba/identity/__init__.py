"""What code is: the key of a compiled overload, and the implementations that it was made with."""
