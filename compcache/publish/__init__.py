"""Changes to the cache directory: publishes modules and the index, verifies and quarantines files, and takes locks."""
