"""The estimated size of all modules, in one small file: what additions count by without listing anything.

The file is text: a line of two decimal numbers of bytes, the size that was measured last and the size that the
last sweep left, and behind it a line for every addition since, its size in bytes. Additions append, which costs no
rename; who finds the file long puts the lines together. It is derived: without it the modules are listed.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from compcache.publish.atomic_file import publish
from compcache.store import SIZE

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["Estimate", "add_to_estimate", "remember_size", "write_estimate"]

_LONG = 1 << 13  # bytes: a thousand additions
_MAX = 1 << 20


class Estimate(NamedTuple):
    """The estimated size of all modules and the one that the last sweep left, in bytes; whether the file is long."""

    size: int
    settled: int
    is_long: bool


def add_to_estimate(store: Store, added: int) -> Estimate | None:
    """Add the size of a module; the estimate, or None where there is none.

    Raises:
        OSError: it could not be written.
    """
    files = store.files
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = files.open(store.path(SIZE), flags)
    except FileNotFoundError:
        return None
    try:
        status = files.fstat(descriptor)
        if status.st_nlink != 1 or not stat.S_ISREG(status.st_mode):
            return None  # it is also something else, or a pipe: who measures anew replaces it
        data = files.pread(descriptor, min(status.st_size, _MAX), 0)
        files.write(descriptor, b"%d\n" % added)
    finally:
        files.close(descriptor)
    try:
        first, *lines = data.split(b"\n")
        size, settled = map(int, first.split())
        total = size + sum(map(int, filter(None, lines))) + added
        return Estimate(total, settled, len(data) > _LONG) if min(total, settled) >= 0 else None
    except ValueError:
        return None  # it is measured anew


def write_estimate(store: Store, size: int, settled: int) -> None:
    """Replace the estimate.

    Raises:
        OSError: it could not be written.
    """
    data = f"{size} {settled}\n".encode()
    publish(store.files, store.temporary, store.path(SIZE), [data], sync=False)


def remember_size(store: Store, size: int) -> None:
    """Correct the estimate after somebody measured; not being able to is no error."""
    try:
        write_estimate(store, size, 0)
    except OSError:
        return
