"""The hit path: from a record to a callable, without slow imports."""
