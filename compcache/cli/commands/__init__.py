"""One file per command: its options, its calls of the cache, and its output."""
