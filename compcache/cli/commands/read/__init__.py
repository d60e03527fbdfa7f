"""Commands that read a cache and do not change it."""
