"""Where Numba is touched: everything that is replaced in it while the backend is installed."""
