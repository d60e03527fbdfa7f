"""The content of a cache directory and its use: listings, the statistics of all processes, limits."""
