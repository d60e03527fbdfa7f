"""Collects entries of data, and stores them together in packs.

A pack needs a file and an index entry, so many entries share one. It is written with the next added modules, when the cache is closed, when
the process exits, after a thousand entries or a mebibyte of data, or with the first entry that arrives a second after the oldest one. A
killed process loses its unwritten entries. Later look-ups then miss and create the entries again.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

from compcache.digest import DIGEST_SIZE, digest
from compcache.errors import CompcacheError
from compcache.formats.entry import EntryRecord, index_name, sequence_after
from compcache.miss.publication import publish_built
from compcache.publish.packs import encode_pack
from compcache.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.session import Session

__all__ = ["PendingEntries"]

_MAX_ENTRIES = 1024
_MAX_BYTES = 1 << 20
_MAX_AGE = 1.0  # seconds


class PendingEntries:
    """The entries of one session that are not written yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[tuple[str, str], EntryRecord] = {}
        self._size = 0
        self._since = 0.0
        self._lock = threading.RLock()
        _all.add(self)

    def put(self, kind: str, name: str, data: bytes, requires: Iterable[bytes] = (), *, is_removal: bool = False) -> str:
        """Add an entry, which replaces any entry with this kind and name.

        Args:
            kind: the kind of the entry.
            name: the name of the entry.
            data: the content.
            requires: the ids of the modules without which the entry is invalid.
            is_removal: whether to record that the entry was removed.

        Returns:
            The id of the entry, a digest of its content in hexadecimal; "" if `is_removal` is set and there is no entry to remove.

        Raises:
            StorageError: earlier entries had to be written first, and could not be stored. This entry was not added.
        """
        store = self._session.store
        requires = tuple(requires)
        with self._lock:
            if (
                len(self._waiting) >= _MAX_ENTRIES
                or self._size >= _MAX_BYTES
                or (self._waiting and time.monotonic() - self._since > _MAX_AGE)
            ):
                self.flush()
            store.index.refresh()  # another process may have replaced the entry
            record = self.find(kind, name) or store.read_entry(kind, name)
            if record is None and is_removal:
                return ""
            if record is None or (record.data, record.requires, record.gone) != (data, requires, is_removal):
                record = EntryRecord(kind, name, sequence_after(record), requires, data, is_removal)
                self._add_waiting(record)
        return digest([index_name(kind, name).encode("utf-8", "surrogatepass"), *record.requires, record.data], size=DIGEST_SIZE).hex()

    def _add_waiting(self, record: EntryRecord) -> None:
        """Keep an entry until the next write. A later entry with the same kind and name replaces it."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting[record.kind, record.name] = record
        self._size += len(record.data)
        _unwritten[id(self)] = self
        _register()

    def find(self, kind: str, name: str) -> EntryRecord | None:
        """Return a waiting entry, or None if there is no such entry or a required module was removed."""
        record = self._waiting.get((kind, name))
        return record if record is not None and all(map(self._session.store.exists, record.requires)) else None

    def flush(self) -> None:
        """Write the waiting entries. Raise `StorageError` if the entries could not be stored; then they stay."""
        with self._lock:
            records = dict(self._waiting)
            if records:
                publish_built(self._session, [encode_pack(records.values())])
            self._remove_waiting(records)

    def drop(self) -> None:
        """Drop the waiting entries without writing them."""
        with self._lock:
            self._remove_waiting(dict(self._waiting))

    def reset_in_child(self) -> None:
        """Drop the waiting entries in a forked child, and replace the lock, which another thread of the parent may have held."""
        self._lock = threading.RLock()
        self._waiting.clear()
        self._size = 0

    def _remove_waiting(self, records: dict[tuple[str, str], EntryRecord]) -> None:
        """Remove records from the waiting entries, except those that were replaced in the meantime."""
        for key, record in records.items():
            if self._waiting.get(key) is record:
                del self._waiting[key]
        self._size = sum([len(record.data) for record in self._waiting.values()])
        if not self._waiting:
            _unwritten.pop(id(self), None)


_all: WeakSet[PendingEntries] = WeakSet()
#: The objects of this process with unwritten entries, by id. Objects of its parent are not included.
_unwritten: dict[int, PendingEntries] = {}
_registered: list[int] = []


def _register() -> None:
    """Register `_flush_all` to be called at exit, once per process. `multiprocessing` workers do not run `atexit` functions."""
    if os.getpid() in _registered:
        return
    _registered[:] = [os.getpid()]
    atexit.register(_flush_all)
    workers = sys.modules.get("multiprocessing.util")
    if workers is not None:
        workers.Finalize(None, _flush_all, exitpriority=0)


def _flush_all() -> None:
    """Store all waiting entries. A failure is a warning."""
    for pending in list(_unwritten.values()):
        try:
            pending.flush()
        except CompcacheError as error:
            warn(f"the latest entries of data could not be stored, and are lost: {error}")


def _reset_all_in_child() -> None:
    """Drop the waiting entries of all objects in a forked child, because the parent writes them, and replace the locks."""
    for pending in list(_all):
        pending.reset_in_child()
    _unwritten.clear()
    _registered.clear()
