"""Layers: read-only caches below a writable cache, for example in a container image, in package data or in a shared directory."""
