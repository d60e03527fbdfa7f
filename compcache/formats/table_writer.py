"""Writes tables of fixed-size entries (`compcache.formats.table`) from entries in memory or in a file."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from compcache.digest import CHECK_SIZE, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes]

__all__ = ["encoded_size", "table_parts"]

_MAGIC = b"CCTABLE1"
_HEADER = Struct("<8sIIQ")
_BUCKET = Struct("<Q8s")
_PER_BUCKET = 8
_MAX_BITS = 24
_AT_ONCE = 1 << 13


def table_parts(read: Read, size: int, width: int) -> Iterator[bytes]:
    """Yield the parts of a table.

    Args:
        read: `read(offset, count)` returns bytes of the sorted entries.
        size: the total size of the entries in bytes.
        width: the size of an entry in bytes.
    """
    count = size // width
    bits = _bits(count)
    header = _HEADER.pack(_MAGIC, width, bits, count)
    yield header + check(header)
    lengths = _bucket_lengths(read, size, width, bits) if bits else [count]
    buckets = []
    start = 0
    for number, length in enumerate(lengths):
        end = start + length
        buckets.append(_BUCKET.pack(end, check(read(start * width, length * width), number)))
        start = end
    yield b"".join(buckets)
    yield from _read_in_chunks(read, size, width)


def _bucket_lengths(read: Read, size: int, width: int, bits: int) -> list[int]:
    """Return the number of the entries in each bucket, that is, of the entries that begin with each value of this many bits."""
    lengths = [0] * (1 << bits)
    prefix_layout = Struct(f">I{width - 4}x")
    for content in _read_in_chunks(read, size, width):
        for (prefix,) in prefix_layout.iter_unpack(content):
            lengths[prefix >> 32 - bits] += 1
    return lengths


def _read_in_chunks(read: Read, size: int, width: int) -> Iterator[bytes]:
    """Yield all entries of a table in large chunks. A chunk never ends within an entry."""
    step = _AT_ONCE * width
    for start in range(0, size, step):
        yield read(start, min(step, size - start))


def _bits(count: int) -> int:
    """Return how many leading bits of a key are the number of its bucket, for a table of `count` entries."""
    return min(max((count // _PER_BUCKET).bit_length() - 1, 0), _MAX_BITS)


def encoded_size(size: int, width: int) -> int:
    """Return the size of a table in bytes. `size` is the total size of its entries, and `width` the size of one entry."""
    return _HEADER.size + CHECK_SIZE + (_BUCKET.size << _bits(size // width)) + size
