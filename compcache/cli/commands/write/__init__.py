"""Commands that fill a cache, keep it in order or remove what is in it."""
