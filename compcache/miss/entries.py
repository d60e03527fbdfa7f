"""Entries of data on their way into the directory: kept together until there are many, or the transaction that they belong to ends.

A pack is a file, an inode and a line of the index, so one is written for as many entries as there are: with the next modules that are
added, when the cache is closed, when the process exits, after a thousand entries, or with the first entry that comes a second after
the oldest that waits. A process that is killed meanwhile loses what waits: who wanted it misses it, and makes it again.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, digest
from compcache.errors import CacheWarning, CompcacheError
from compcache.formats.entry import EntryRecord, index_name
from compcache.miss.publication import publish_built
from compcache.publish.packs import encode_pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.session import Session

__all__ = ["PendingEntries"]

_MOST = 1024
_MOST_BYTES = 1 << 20
_LONGEST = 1.0  # seconds


class PendingEntries:
    """The entries that one cache object was given and has not written yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[tuple[str, str], EntryRecord] = {}
        self._leaving: dict[tuple[str, str], EntryRecord] = {}
        self._size = 0
        self._since = 0.0

    def put(self, kind: str, name: str, data: bytes, requires: Iterable[bytes] = (), *, gone: bool = False) -> str:
        """Take an entry, in place of the one of this kind and name; its id, a digest of what it says.

        Raises:
            StorageError: it had to be written now, and could not be.
        """
        known = self.find(kind, name) or self._session.store.read_entry(kind, name)
        requires = tuple(requires)
        if known is None and gone:
            return ""
        if known is None or (known.data, known.requires, known.gone) != (data, requires, gone):
            sequence = max(known.sequence + 1 if known is not None else 0, time.time_ns())
            known = EntryRecord(kind, name, sequence, requires, data, gone)
            self._keep(known)
        return digest([index_name(kind, name).encode("utf-8", "surrogatepass"), *known.requires, known.data], size=DIGEST_SIZE).hex()

    def _keep(self, record: EntryRecord) -> None:
        now = time.monotonic()
        if not self._waiting:
            self._since = now
            _unwritten[id(self)] = self
            _register()
        self._waiting[record.kind, record.name] = record
        self._size += len(record.data)
        if len(self._waiting) >= _MOST or self._size >= _MOST_BYTES or now - self._since > _LONGEST:
            self.flush()

    def find(self, kind: str, name: str) -> EntryRecord | None:
        """An entry that waits to be written."""
        key = kind, name
        return self._waiting.get(key) or self._leaving.get(key)

    def flush(self) -> None:
        """Write what waits.

        Raises:
            StorageError: it could not be stored.
        """
        _unwritten.pop(id(self), None)
        self._leaving, self._waiting, self._size = self._waiting, {}, 0
        try:
            if self._leaving:
                publish_built(self._session, [encode_pack(self._leaving.values())])
        except BaseException:
            if len(self._waiting) + len(self._leaving) <= _MOST:  # else there is no end of them
                self._waiting = {**self._leaving, **self._waiting}
                _unwritten[id(self)] = self
            raise
        finally:
            self._leaving = {}


#: What this process has not written yet; the objects of its parent are not its own.
_unwritten: dict[int, PendingEntries] = {}
_registered: list[int] = []


def _register() -> None:
    """Write what waits when the process exits; workers of `multiprocessing` end without `atexit`."""
    if os.getpid() in _registered:
        return
    _registered[:] = [os.getpid()]
    atexit.register(_flush_all)
    workers = sys.modules.get("multiprocessing.util")
    if workers is not None:
        workers.Finalize(None, _flush_all, exitpriority=0)


def _flush_all() -> None:
    for pending in list(_unwritten.values()):
        try:
            pending.flush()
        except CompcacheError as error:
            warnings.warn(f"entries of data were not stored: {error}", CacheWarning, stacklevel=1)


def _forget() -> None:
    for pending in _unwritten.values():
        pending._waiting.clear()
    _unwritten.clear()
    _registered.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
