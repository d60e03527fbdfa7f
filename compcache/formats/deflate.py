"""The compression of module files: zlib streams (RFC 1950), made fast rather than small."""

from __future__ import annotations

import zlib
from struct import Struct

__all__ = ["deflated"]

_LEVEL = 1
#: Data up to this size is stored uncompressed: compressing it takes longer than writing it, and saves less than a disk block.
_STORED = 1 << 11
#: The window for little data, and for more. Setting up the larger one, 260 KB, costs zlib more than compressing some hundred bytes.
_LITTLE = 1 << 12
_SMALL_WINDOW, _WINDOW = 12, 15
#: The head of a stream, and that of its one block, which is the last and stored (RFC 1951, 3.2.4): its length, and the complement of that.
_HEAD = Struct("<2sBHH")
_CHECK = Struct(">I")


def deflated(data: bytes) -> bytes:
    """Return the data as a zlib stream."""
    size = len(data)
    if size <= _STORED:
        return b"".join([_HEAD.pack(b"\x78\x01", 1, size, size ^ 0xFFFF), data, _CHECK.pack(zlib.adler32(data))])
    return zlib.compress(data, _LEVEL, _SMALL_WINDOW if size <= _LITTLE else _WINDOW)
