"""Commands that fill, check, prune or clear a cache."""
