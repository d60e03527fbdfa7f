"""The estimated size of all modules, in one small file. With it, additions need not list the modules.

The file is text. The first line has two decimal numbers of bytes: the size measured last, and the size that the last sweep left. Each
addition since has a line with its size in bytes. Additions append a line without a rename. An addition that finds a long file rewrites
it as one line. The file is derived: without it, the modules are listed.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from compcache.directory.places import SIZE
from compcache.files import read_at
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.atomic_file import publish

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["Estimate", "add_to_estimate", "remember_size", "write_estimate"]

_LONG = 1 << 13  # bytes: a thousand additions
_MAX = 1 << 20  # bytes that are read


class Estimate(NamedTuple):
    """The estimated size of all modules and the size that the last sweep left, in bytes, and whether the file is long."""

    size: int
    settled: int
    is_long: bool


def add_to_estimate(store: Store, added: int) -> Estimate | None:
    """Add the size of an addition, in bytes, to the estimate. Return the new estimate; None if no valid estimate is stored.

    Raise `OSError` if the file could not be opened or written.
    """
    files = store.files
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        opened = files.open_owned(store.path(SIZE), flags)
    except FileNotFoundError as error:
        reraise_interrupt(error)
        return None
    status = files.fstat(opened.number)
    if status.st_nlink != 1 or not stat.S_ISREG(status.st_mode) or (store.is_foreign(status) and not store.exposed):
        return None  # a hard link, a special file, or a file of another user; the next measurement replaces it
    data = read_at(files, opened, 0, min(status.st_size, _MAX))
    files.write(opened.number, b"%d\n" % added)
    with suppress(ValueError):
        head, *lines = data.split(b"\n")
        size, settled = map(int, head.split())
        total = size + sum(map(int, filter(None, lines))) + added
        return Estimate(total, settled, len(data) > _LONG) if min(total, settled) >= 0 else None
    return None  # the content is malformed, and the caller measures again


def write_estimate(store: Store, size: int, settled: int) -> None:
    """Replace the estimate by a measured size; `settled` is the size that the last sweep left, both in bytes.

    Raise `OSError` if the file could not be written.
    """
    data = f"{size} {settled}\n".encode()
    publish(store.files, store.temporary, store.path(SIZE), [data], sync=False)


def remember_size(store: Store, size: int) -> None:
    """Replace the estimate by a measured size in bytes, and the size that the last sweep left by 0. A failure is ignored."""
    with suppress(OSError):
        write_estimate(store, size, 0)
