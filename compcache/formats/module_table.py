"""The module table, which an image exports: the addresses of its functions, entry points, slots and variables.

Layout (little-endian), at the address of `TABLE_SYMBOL`::

    magic "CCMODULE" | ABI version u32 | number of symbols u32 | key of the module (16 bytes) | offsets i32

The table has an offset from its start for each symbol. The offsets are computed when the image is made, so mapping the image
relocates nothing. The key is the key of the module record. Magic, version and key are compared before an offset is used.
"""

from __future__ import annotations

__all__ = ["TABLE_HEAD_SIZE", "TABLE_MAGIC", "TABLE_SYMBOL", "has_table"]

TABLE_SYMBOL = "compcache_module"
TABLE_MAGIC = b"CCMODULE"
TABLE_HEAD_SIZE = len(TABLE_MAGIC) + 8  # the number of bytes before the key


def has_table(image: bytes, key: bytes, abi: int, symbols: int) -> bool:
    """Return whether an image contains a table with this key, this ABI version and at least this number of symbols."""
    key_offset = image.find(key)
    while key_offset >= 0:
        header = image[max(key_offset - TABLE_HEAD_SIZE + len(TABLE_MAGIC), 0) : key_offset]
        table_abi, count = int.from_bytes(header[:4], "little"), int.from_bytes(header[4:], "little")
        if len(header) == TABLE_HEAD_SIZE - len(TABLE_MAGIC) and table_abi == abi and count >= symbols:
            return True
        key_offset = image.find(key, key_offset + 1)
    return False
