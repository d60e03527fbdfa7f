"""Commands that look at a cache and leave it as it is."""
