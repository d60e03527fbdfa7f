"""Changes the cache directory: publishes modules and the index, verifies and quarantines files, locks."""
