"""One file per command: its options, what it asks of the cache, and what it prints."""
