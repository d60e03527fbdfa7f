"""Anonymous files, for code that cannot be stored or cannot be mapped from its file."""

from __future__ import annotations

import errno
import os

from compcache.files import Files
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.files import Opened

__all__ = ["anonymous_file"]


def anonymous_file(*parts: bytes) -> Opened:
    """Create an anonymous file in memory, or on disk if memory files are not available, and write these parts to it.

    The descriptor is closed when the returned object is deleted. The content is freed once no mapping uses it.

    Raise `OSError` if memory or the disk is full, or the process has too many open files.
    """
    opened = _create_in_memory() or _create_on_disk()
    _write_parts(opened.number, parts)
    return opened


def _create_in_memory() -> Opened | None:
    """Create a memory file, or return None if the system does not support memory files. Raise `OSError` for a shortage.

    The native runtime creates the file, because an interrupt could lose the descriptor that `os.memfd_create` returns.
    """
    from compcache.hit.target import load_runtime

    try:
        opened: Opened = load_runtime().memory_file("compcache")
    except ImportError:
        return None
    except OSError as error:
        reraise_interrupt(error)
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old system, or a sandbox that forbids the call
            return None
        raise
    return opened


def _create_on_disk() -> Opened:
    """Create a temporary file, and remove its name. Raise `OSError` if the file cannot be created."""
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="compcache-")
    os.unlink(path)
    return Files().own(descriptor)


def _write_parts(descriptor: int, parts: Iterable[bytes]) -> None:
    """Write all parts completely: a single `os.write` may write less."""
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]
