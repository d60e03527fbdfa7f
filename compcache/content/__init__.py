"""Content names: names of functions with a digest of everything that decides the functions' behaviour."""
