"""What is in a cache directory and how it was used: listings, the journals of all processes, limits."""
