"""From a record to a callable: everything that a hit runs, and nothing slow."""
