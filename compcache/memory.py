"""Files without a name, for code that cannot be stored or not be mapped where it is stored."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["anonymous_file"]


def anonymous_file(*parts: bytes) -> tuple[int, str]:
    """A file in memory with this content: its descriptor, and a path that is good while that is open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("compcache", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="compcache-")
    _write(descriptor, parts)
    return descriptor, path


def _write(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]
