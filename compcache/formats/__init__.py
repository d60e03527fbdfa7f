"""One codec per on-disk format: bytes to records and back, with no paths but where an index reads its segments."""
