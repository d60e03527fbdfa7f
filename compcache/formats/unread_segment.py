"""Determines whether an index segment that cannot be decoded is damaged or of another version. Hits with an intact index do not need it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache import files as file_ops
from compcache.digest import digest
from compcache.errors import FormatError, UnknownVersionError
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["segment_error"]

#: The size limit in bytes of segments whose digests are compared with their names. Segments of millions of modules are smaller, and a
#: larger file may have holes.
_MOST_DIGESTED = 1 << 30
_CHUNK = 1 << 20


def segment_error(files: file_ops.Files, path: str, expected_digest: str, error: FormatError) -> FormatError:
    """Return the exception for a segment that cannot be decoded: `UnknownVersionError` if the segment is intact, otherwise `error`.

    Args:
        files: the operations to use.
        path: the path of the segment.
        expected_digest: the hexadecimal digest in the segment's name. The content of an intact segment has this digest.
        error: the exception that decoding the segment raised.
    """
    with suppress(OSError):
        if digest(_read_chunks(files, path), size=len(expected_digest) // 2).hex() == expected_digest:
            return UnknownVersionError(f"the index segment {os.path.basename(path)} has another version of the format: {error}")
    return error


def _read_chunks(files: file_ops.Files, path: str) -> Iterator[bytes]:
    """Yield the content of a file in chunks, or nothing if the file is too large for a digest. Raise `OSError` if it cannot be read."""
    opened = files.open_owned(path, file_ops.READ_FLAGS)
    if files.fstat(opened.number).st_size > _MOST_DIGESTED:
        return
    offset = 0
    while chunk := files.pread(opened.number, _CHUNK, offset):
        yield chunk
        offset += len(chunk)
