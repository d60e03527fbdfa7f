"""An immutable table of fixed-size entries by 16-byte key. A look-up takes two reads, whatever the size.

Layout (little-endian), version 1::

    magic "CCTABLE1" | width u32 | bits u32 | count u64 | check of the 24 bytes before it
    2**bits buckets: end u64 (index of the entry after the bucket's last) | check of the bucket's entries
    count entries of `width` bytes, sorted; the first 16 bytes of an entry are its key

Keys are digests, hence uniform: the top `bits` bits of a key number its bucket, which holds about sixteen
entries. Each bucket carries its own checksum, so that a look-up verifies what it reads without reading the
rest. Several entries may have the same key.

It is read by the native runtime (`hit/native/formats.c`).

Limitations: at most 2**32 entries; an entry is at least a key; keys that are not uniform make long buckets, of
which none can have more than 64 MiB.
"""

from __future__ import annotations

from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    class Table:
        """A table in a source, from `base` on.

        The source is bytes, whose buckets are each verified once, or a function that returns `size` bytes from `offset` on, or fewer at
        the end; then each look-up verifies what it reads. All methods raise `FormatError` for damaged parts.
        """

        width: int  # bytes of an entry
        bits: int
        count: int  # of entries
        size: int  # bytes of the table

        def __init__(self, source: Callable[[int, int], bytes] | bytes, base: int = 0, /) -> None: ...

        def find(self, key: bytes, /) -> list[bytes]:
            """Return the entries with this key, without the key, in their order."""

        def bucket_entries(self, number: int, /) -> list[bytes]:
            """Return the entries of one bucket, with their keys."""

        def entries_of_range(self, number: int, bits: int, /) -> list[bytes]:
            """Return the entries, with their keys and in order, whose first `bits` bits (at most 32) are this number."""

else:
    Table = runtime.Table

__all__ = ["Table", "all_entries"]


def all_entries(table: Table) -> Iterator[bytes]:
    """Yield every entry of a table with its key, in order. Each bucket is verified before its first entry. Raises FormatError."""
    for number in range(1 << table.bits):
        yield from table.bucket_entries(number)
