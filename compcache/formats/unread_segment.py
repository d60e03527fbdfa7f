"""Finds out why an index segment cannot be used: it is damaged, or of another version. Hits with a sound index do not read this."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache import files as file_ops
from compcache.digest import digest
from compcache.errors import FormatError, UnknownVersionError
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reason_against"]

#: The largest segment whose digest is compared with its name, in bytes: millions of modules take less, and a file can have holes.
_MOST_DIGESTED = 1 << 30
_CHUNK = 1 << 20


def reason_against(files: file_ops.Files, path: str, named: str, error: FormatError) -> FormatError:
    """Return the error for a file that does not decode. It is an `UnknownVersionError` if the digest in its name (`named`) fits its
    content.
    """
    try:
        actual = digest(_chunks(files, path), size=len(named) // 2).hex()
    except OSError as failure:
        reraise_interrupt(failure)
        return error
    if named != actual:
        return error
    return UnknownVersionError(f"{os.path.basename(path)} is of another version of the format: {error}")


def _chunks(files: file_ops.Files, path: str) -> Iterator[bytes]:
    opened = files.open_owned(path, file_ops.READ_FLAGS)
    if files.fstat(opened.number).st_size > _MOST_DIGESTED:
        return
    offset = 0
    while part := files.pread(opened.number, _CHUNK, offset):
        yield part
        offset += len(part)
