"""Read-only caches below a writable one: an image of a container, a package's data, a directory of the team."""
