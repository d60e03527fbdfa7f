"""Handles a miss, in order: asks the remote store, claims, builds, publishes, loads. Also adds many sources at once."""
