"""Changes the cache directory: publishes modules and the index, verifies, sets damaged files aside, locks."""
