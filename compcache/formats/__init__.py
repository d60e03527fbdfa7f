"""One codec per on-disk format: bytes to records and back. Only indexes handle paths, to read their segments."""
