"""The path of a miss, in order: ask the remote store, claim, build, publish, load. Also adds many sources at once."""
