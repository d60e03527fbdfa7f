"""An immutable table of fixed-size entries by 16-byte key. A look-up takes two reads, independent of the table's size.

Layout (little-endian), version 1::

    magic "CCTABLE1" | width u32 | bits u32 | count u64 | check of the 24 bytes before it
    2**bits buckets: end u64 (index of the entry after the bucket's last) | check of the bucket's entries
    count entries of `width` bytes, sorted; the first 16 bytes of an entry are its key

Keys are digests, and therefore uniform. The top `bits` bits of a key are the number of its bucket, which has about twelve
entries. Each bucket has a checksum, so a look-up verifies the bucket that it reads. Several entries may have the same key.

The native runtime reads tables (`hit/native/formats.c`).

Limitations: a table has at most 2**32 entries, and an entry contains at least a key. Keys that are not uniform make long
buckets. A bucket cannot have more than 64 MiB.
"""

from __future__ import annotations

from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    class Table:
        """A table that begins at the offset `base` of a source.

        The source is bytes, whose buckets are verified once, or a function that returns `size` bytes from `offset` on, fewer at the end.
        With a function, each look-up verifies the bucket that it reads. All methods raise `FormatError` for damaged parts.
        """

        width: int  # bytes of an entry
        bits: int
        count: int  # of entries
        size: int  # bytes of the table

        def __init__(self, source: Callable[[int, int], bytes] | bytes, base: int = 0, /) -> None: ...

        def find(self, key: bytes, /) -> list[bytes]:
            """Return the entries with a key, in order. The returned entries do not contain the key."""

        def bucket_entries(self, number: int, /) -> list[bytes]:
            """Return the entries of a bucket, with their keys, in order."""

        def entries_of_range(self, number: int, bits: int, /) -> list[bytes]:
            """Return the entries whose first `bits` bits (at most 32) are `number`, with their keys, in order."""

else:
    Table = runtime.Table

__all__ = ["Table", "all_entries"]


def all_entries(table: Table) -> Iterator[bytes]:
    """Yield every entry of a table with its key, in order. Each bucket is verified first. Raise `FormatError` if a bucket is damaged."""
    for number in range(1 << table.bits):
        yield from table.bucket_entries(number)
