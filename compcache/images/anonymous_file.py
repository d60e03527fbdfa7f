"""Files without a name, for code that cannot be stored or not be mapped where it is stored."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["anonymous_file"]


def anonymous_file(*parts: bytes) -> int:
    """The descriptor of a file with this content that disappears once it is closed and unmapped.

    Raises:
        OSError: memory or disk is full.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("compcache", os.MFD_CLOEXEC)
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="compcache-")
        os.unlink(path)
    try:
        _write(descriptor, parts)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]
