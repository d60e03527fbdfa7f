"""Files without a name, for code that cannot be stored or not be mapped where it is stored."""

from __future__ import annotations

import os
from contextlib import contextmanager
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["anonymous_file", "anonymous_image"]

_BASE = 32
_numbers = count()


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


@contextmanager
def anonymous_image(image: bytes) -> Iterator[str]:
    """A path under which the dynamic linker maps these bytes, and has never mapped others in this process.

    The linker knows a library by its path, and the path of a descriptor is used again once that is closed. Slashes
    count but once for the system, so their numbers spell a different name for every image.
    """
    descriptor, path = anonymous_file(image)
    try:
        yield _respell(path, next(_numbers)) if path.startswith("/proc/") else path
    finally:
        os.close(descriptor)
        if not path.startswith("/proc/"):
            os.unlink(path)


def _respell(path: str, number: int) -> str:
    parts = path.split("/")[1:]
    spelled = ""
    for part in parts:
        number, digit = divmod(number, _BASE)
        spelled += "/" * (digit + 1) + part
    return spelled
