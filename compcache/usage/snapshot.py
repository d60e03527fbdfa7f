"""Reads what tools need of a whole cache: its module files, their rows, and the statistics.

A tool that has read long statistics files folds them if possible: the next one reads a tenth of their size.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.files import READ_FLAGS, read_at, reraise_interrupt
from compcache.formats.statistics import HEAD_SIZE, size_of_rows
from compcache.store import STATISTICS
from compcache.usage.ledger import SETTLED_SECONDS, fold, read_ledger
from compcache.usage.module_files import list_modules
from compcache.usage.module_rows import load_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.store import Store
    from compcache.usage.ledger import Ledger
    from compcache.usage.module_files import FileStatus, Progress
    from compcache.usage.module_rows import Row

__all__ = ["Overview", "look_over"]

_LONG = 1 << 20


class Overview(NamedTuple):
    """The module files of a cache, the rows of the readable ones, and the sum of all statistics."""

    present: Mapping[bytes, FileStatus]
    rows: Mapping[bytes, Row]
    ledger: Ledger

    def seconds_of(self, module_id: bytes) -> float:
        """The compile time of a module; 0.0 if it is unreadable."""
        return self.rows[module_id].seconds if module_id in self.rows else 0.0


def look_over(store: Store, progress: Progress | None = None) -> Overview:
    """Read a whole cache; `progress` is called with (modules read, modules to read) now and then."""
    present = list_modules(store, progress)
    ledger = read_ledger(store)
    found = Overview(present, load_rows(store, present, ledger.rows, progress), ledger)
    now = time.time()
    if not store.readonly and any(_is_worth_folding(store, name, now) for name in ledger.files):
        fold(store, found.seconds_of, now=now, present=present)
    return found


def _is_worth_folding(store: Store, name: str, now: float) -> bool:
    """Whether a statistics file is long because it was not folded yet, or because of rows that are stored by now."""
    try:
        descriptor = store.files.open(store.path(STATISTICS, name), READ_FLAGS)
    except OSError as failure:
        reraise_interrupt(failure)
        return False  # folded meanwhile
    try:
        status = store.files.fstat(descriptor)
        if status.st_size < _LONG:
            return False
        head = read_at(store.files, descriptor, 0, HEAD_SIZE)
    except OSError as error:
        reraise_interrupt(error)
        return False
    finally:
        store.files.close(descriptor)
    rows = size_of_rows(head)
    if rows is not None:
        return rows > _LONG // 4
    return max(status.st_mtime, status.st_ctime) < now - SETTLED_SECONDS
