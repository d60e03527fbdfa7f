"""Takes over when a lazy function needs Numba: creates its dispatcher, and records the code that the dispatcher compiles."""
