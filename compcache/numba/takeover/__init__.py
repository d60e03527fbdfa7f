"""What happens where a lazy function needs Numba: its dispatcher takes over, and what that compiles is recorded."""
