"""A buffer for bytes that are written once and then read. Large buffers are stored in an anonymous temporary file."""

from __future__ import annotations

import tempfile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Scratch"]

_CHUNK = 1 << 20
#: More bytes than this go to a file.
_IN_MEMORY = 1 << 20


class Scratch:
    """An append-only sequence of bytes. `size` is the number of bytes written.

    The constructor and the methods raise `OSError` if the temporary file cannot be created, written or read.

    Args:
        parts: the first bytes.
    """

    __slots__ = ("_data", "_file", "size")

    def __init__(self, parts: Iterable[bytes] = ()) -> None:
        self._data = bytearray()
        self._file: IO[bytes] | None = None
        self.size = 0
        for part in parts:
            self.write(part)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self.size += len(data)
        self._data += data
        if len(self._data) > _IN_MEMORY:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it is closed with this object
            self._spill()

    def _spill(self) -> None:
        """Move the bytes in memory to the file, which must be open."""
        view = memoryview(self._data)
        while view and self._file is not None:
            view = view[self._file.write(view) :]
        self._data = bytearray()

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end. After the first call, `write` must not be called."""
        if self._file is None:
            return bytes(self._data[offset : offset + size])
        if self._data:
            self._spill()
        self._file.seek(offset)
        return self._file.read(min(size, max(self.size - offset, 0)))

    def parts(self) -> Iterator[bytes]:
        """Yield the content in large parts."""
        for offset in range(0, self.size, _CHUNK):
            yield self.read(offset, _CHUNK)

    def pieces(self, width: int) -> Iterator[bytes]:
        """Yield the content in pieces of `width` bytes; the last piece may be shorter."""
        step = _CHUNK // width * width
        for start in range(0, self.size, step):
            data = self.read(start, step)
            yield from [data[offset : offset + width] for offset in range(0, len(data), width)]

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()
