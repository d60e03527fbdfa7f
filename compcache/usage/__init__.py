"""The content of a cache directory and its use: listings, statistics of all processes, limits."""
