"""Files without a name, for code that cannot be stored, or not be mapped from its place."""

from __future__ import annotations

import errno
import os

from compcache.files import Files, reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.files import Opened

__all__ = ["anonymous_file"]


def anonymous_file(*parts: bytes) -> Opened:
    """Return a file with this content. It disappears when it is closed, with the last reference to it, and unmapped.

    Raises:
        OSError: memory or disk is full.
    """
    opened = _in_memory() or _on_disk()
    _write(opened.number, parts)
    return opened


def _in_memory() -> Opened | None:
    """Let the native runtime make the file: a number that `os.memfd_create` returned could be lost to an interrupt."""
    from compcache.hit.target import load_runtime

    try:
        made: Opened = load_runtime().memory_file("compcache")
    except ImportError:
        return None
    except OSError as error:
        reraise_interrupt(error)
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old system, or a sandbox that does not know the call
            return None
        raise
    return made


def _on_disk() -> Opened:
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="compcache-")
    os.unlink(path)
    return Files().own(descriptor)


def _write(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]
