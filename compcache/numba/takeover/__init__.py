"""Takes over when a lazy function needs Numba: creates Numba's object for the function, and records the code that Numba compiles."""
