"""The compression of module files: zlib streams (RFC 1950), for speed rather than size."""

from __future__ import annotations

import zlib
from struct import Struct

__all__ = ["deflate"]

_LEVEL = 1
#: Data up to this size in bytes is stored uncompressed: compressing it takes longer than writing it, and saves less than a disk block.
_STORED = 1 << 11
#: The size in bytes up to which the small window is used. Setting up the large window, 260 KB, takes longer than compressing some hundred
#: bytes.
_SMALL = 1 << 12
_SMALL_WINDOW, _WINDOW = 12, 15
#: The head of a stream (RFC 1950: the largest window, the fastest level) and of its only block, which is the last one and stored (RFC 1951,
#: 3.2.4): the length and its complement.
_HEAD = Struct("<2sBHH")
_CHECK = Struct(">I")


def deflate(data: bytes) -> bytes:
    """Return data as a zlib stream. Up to `_STORED` bytes are stored uncompressed in it."""
    size = len(data)
    if size <= _STORED:
        return b"".join([_HEAD.pack(b"\x78\x01", 1, size, size ^ 0xFFFF), data, _CHECK.pack(zlib.adler32(data))])
    return zlib.compress(data, _LEVEL, _SMALL_WINDOW if size <= _SMALL else _WINDOW)
