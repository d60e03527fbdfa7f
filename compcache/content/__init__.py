"""Content names of sources: digests over everything that decides what their functions do."""
