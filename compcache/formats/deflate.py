"""How module files hold what is compressed: zlib streams (RFC 1950), made fast rather than small."""

from __future__ import annotations

import zlib

__all__ = ["deflated"]

_LEVEL = 1
#: The window for little data, and for more. What zlib sets up for the larger one, 260 KB, costs more than to compress some hundred bytes.
_LITTLE = 1 << 12
_SMALL_WINDOW, _WINDOW = 12, 15


def deflated(data: bytes) -> bytes:
    """The data as a zlib stream."""
    return zlib.compress(data, _LEVEL, _SMALL_WINDOW if len(data) <= _LITTLE else _WINDOW)
