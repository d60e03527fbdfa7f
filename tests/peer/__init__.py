"""Tests on code that nobody here wrote: C libraries out of source distributions, and what Numba generates."""
