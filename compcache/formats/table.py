"""An immutable table of fixed-size entries by 16-byte key, looked up with two reads whatever its size.

Layout (little-endian), version 1::

    magic "CCTABLE1" | width u32 | bits u32 | count u64 | check of the 24 bytes before it
    2**bits buckets: end u64 (index of the entry after the bucket's last) | check of the bucket's entries
    count entries of `width` bytes, sorted; the first 16 bytes of an entry are its key

Keys are digests, hence uniform: the top `bits` bits of a key number its bucket, which holds about sixteen
entries. Each bucket carries its own checksum, so that a look-up verifies what it reads without reading the
rest. Several entries may have the same key.

Limitations: at most 2**32 entries; an entry is at least a key; keys that are not uniform make long buckets, of
which none can have more than 64 MiB.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache.digest import CHECK_SIZE, KEY_SIZE, check
from compcache.errors import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes]

__all__ = ["BUCKET", "HEADER", "HEADER_SIZE", "MAGIC", "MAX_BITS", "Table", "table_size"]

MAGIC = b"CCTABLE1"
HEADER = Struct("<8sIIQ")
BUCKET = Struct("<Q8s")
_BUCKET_SIZE = BUCKET.size
HEADER_SIZE = HEADER.size + CHECK_SIZE
MAX_BITS = 24
_MAX_COUNT = 1 << 32
_MAX_WIDTH = 1 << 12
_MAX_BUCKET_SIZE = 1 << 26


def table_size(header: bytes) -> int:
    """How many bytes the table that starts with `header` has.

    Raises:
        FormatError: these bytes are not the header of a table.
    """
    width, bits, count = _parse_header(header)
    return HEADER_SIZE + (_BUCKET_SIZE << bits) + width * count


def _parse_header(header: bytes) -> tuple[int, int, int]:
    if len(header) < HEADER_SIZE or check(header[: HEADER.size]) != header[HEADER.size : HEADER_SIZE]:
        raise FormatError("the header of an index table is damaged")
    magic, width, bits, count = HEADER.unpack_from(header)
    if magic != MAGIC or not KEY_SIZE <= width <= _MAX_WIDTH or bits > MAX_BITS or count > _MAX_COUNT:
        raise FormatError(f"this is not an index table of a known version: {magic!r}")
    return width, bits, count


class Table:
    """A table behind `read(offset, size)`, which returns what it can of those bytes.

    Args:
        read: gives the bytes, from a file or from memory.
        base: where in them the table starts.
        constant: the bytes cannot change; then a bucket is verified once, not at every look-up.
    """

    __slots__ = ("_base", "_bits", "_origin", "_read", "_verified", "count", "size", "width")

    def __init__(self, read: Read, base: int = 0, *, constant: bool = False) -> None:
        header = read(base, HEADER_SIZE)
        self.width, self._bits, self.count = _parse_header(header)
        self._read = read
        self._base = base
        self._origin = base + HEADER_SIZE + (_BUCKET_SIZE << self._bits)
        self._verified: dict[int, bytes] | None = {} if constant else None
        self.size = table_size(header)

    def find(self, key: bytes) -> list[bytes]:
        """The entries with this key, without the key, in their order.

        Raises:
            FormatError: the bucket that would hold them is damaged.
        """
        number = int.from_bytes(key[:4], "big") >> (32 - self._bits)
        verified = self._verified
        if verified is None:
            bucket = self._bucket(number)
        elif number in verified:
            bucket = verified[number]
        else:
            bucket = verified[number] = self._bucket(number)
        at = bucket.find(key)
        if at < 0:
            return []
        found = []
        width = self.width
        while at >= 0:
            if at % width == 0:
                found.append(bucket[at + KEY_SIZE : at + width])
            at = bucket.find(key, at + 1)
        return found

    def _bucket(self, number: int) -> bytes:
        """The entries of one bucket, verified."""
        first = self._base + HEADER_SIZE + number * _BUCKET_SIZE
        if number:
            ends = self._read(first - _BUCKET_SIZE, 2 * _BUCKET_SIZE)
            start = int.from_bytes(ends[:8], "little")
            ends = ends[_BUCKET_SIZE:]
        else:
            ends = self._read(first, _BUCKET_SIZE)
            start = 0
        if len(ends) != _BUCKET_SIZE:
            raise FormatError("an index table is truncated")
        end, expected = BUCKET.unpack(ends)
        if not start <= end <= self.count:
            raise FormatError("a bucket of an index table is damaged")
        size = (end - start) * self.width
        if size > _MAX_BUCKET_SIZE:
            raise FormatError("a bucket of an index table is larger than any can be")
        data = self._read(self._origin + start * self.width, size)
        if len(data) != size or check(data, number) != expected:
            raise FormatError("a bucket of an index table is damaged")
        return data

    def entries(self) -> Iterator[bytes]:
        """Every entry with its key, in order, each bucket verified before its first entry."""
        for number in range(1 << self._bits):
            yield from self._split(self._bucket(number))

    def entries_of_range(self, number: int, bits: int) -> list[bytes]:
        """The entries, with their keys and in order, whose first `bits` bits (32 at most) are this number.

        Raises:
            FormatError: a bucket that holds some of them is damaged.
        """
        if bits > self._bits:
            bucket = self._split(self._bucket(number >> (bits - self._bits)))
            return [entry for entry in bucket if int.from_bytes(entry[:4], "big") >> (32 - bits) == number]
        shift = self._bits - bits
        buckets = range(number << shift, (number + 1) << shift)
        return self._split(b"".join(map(self._bucket, buckets)))

    def _split(self, data: bytes) -> list[bytes]:
        width = self.width
        return [data[at : at + width] for at in range(0, len(data), width)]
