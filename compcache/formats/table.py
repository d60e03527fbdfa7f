"""An immutable table of fixed-size entries by 16-byte key, looked up with two reads whatever its size.

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

from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache.digest import check
from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    class Table:
        """A table in a source, from `base` on.

        The source is bytes, of which each bucket is verified once, or a function that gives (offset, size) bytes, or what there is of
        these; then each look-up verifies what it reads. All methods raise `FormatError` where that is damaged.
        """

        width: int  # bytes of an entry
        bits: int
        count: int  # of entries
        size: int  # bytes of the table

        def __init__(self, source: Callable[[int, int], bytes] | bytes, base: int = 0, /) -> None: ...

        def find(self, key: bytes, /) -> list[bytes]:
            """The entries with this key, without the key, in their order."""

        def bucket_entries(self, number: int, /) -> list[bytes]:
            """The entries of one bucket, with their keys."""

        def entries_of_range(self, number: int, bits: int, /) -> list[bytes]:
            """The entries, with their keys and in order, whose first `bits` bits (32 at most) are this number."""

else:
    Table = runtime.Table

__all__ = ["Table", "all_entries", "encode_table"]

_MAGIC = b"CCTABLE1"
_HEADER = Struct("<8sIIQ")
_BUCKET = Struct("<Q8s")
_PER_BUCKET = 16
_MAX_BITS = 24


def encode_table(entries: Iterable[bytes], width: int) -> bytes:
    """The bytes of a table of entries of `width` bytes, sorted and without duplicates, one or more in a piece."""
    content = b"".join(entries)
    count = len(content) // width
    bits = min(max((count // _PER_BUCKET).bit_length() - 1, 0), _MAX_BITS)
    header = _HEADER.pack(_MAGIC, width, bits, count)
    shift = 32 - bits
    ends = [0] * (1 << bits)
    for (first,) in Struct(f">I{width - 4}x").iter_unpack(content):
        ends[first >> shift] += 1
    buckets = []
    start = 0
    for number, size in enumerate(ends):
        end = start + size
        buckets.append(_BUCKET.pack(end, check(content[start * width : end * width], number)))
        start = end
    return b"".join([header, check(header), *buckets, content])


def all_entries(table: Table) -> Iterator[bytes]:
    """Every entry of a table with its key, in order, each bucket verified before its first entry. Raises FormatError."""
    for number in range(1 << table.bits):
        yield from table.bucket_entries(number)
