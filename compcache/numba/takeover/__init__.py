"""Takes over when a lazy function needs Numba: creates its dispatcher, and records what that compiles."""
