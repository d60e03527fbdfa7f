"""Why functions are compiled and not cached: small files that `explain` reads, one per function.

Nothing else depends on them. A few hundred are kept, the latest; damaged ones count as absent. Writing one is a service
to people: where that fails, nothing is lost and no error is raised.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache.digest import CHECK_SIZE, check, name_key
from compcache.directory.places import UNCACHED
from compcache.errors import MissingPackageError, StorageError
from compcache.files import reraise_interrupt
from compcache.interrupts import suppress
from compcache.publish.writer import publish_file

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "telling why a function is not cached") from error

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["Refusal", "forget", "note", "read_all"]

_MAX_KEPT = 512
_MAX_TEXT = 4096
_MAX_TIME = 1e11  # seconds since the epoch; NaN is not below it


@dataclass(frozen=True, slots=True)
class Refusal:
    """A function that was compiled and not cached: its name, why, and when, in seconds since the epoch."""

    name: str
    reason: str
    created: float

    @property
    def text(self) -> str:
        """Return a sentence about what happened. A reason that is a sentence itself begins with its verb ("was ...")."""
        return f"{self.name} {self.reason}" if self.reason.startswith("was ") else f"{self.name} was compiled and not cached: {self.reason}"


def _file_name(name: str) -> str:
    return UNCACHED.file_name(name_key(name).hex())


def note(store: Store, name: str, reason: str) -> None:
    """Store why a function is not cached, replacing an earlier reason."""
    name, reason = name[:_MAX_TEXT], reason[:_MAX_TEXT]
    if store.readonly:
        return
    known = _read(store, _file_name(name))
    if known is not None and (known.name, known.reason) == (name, reason):
        return
    packed: bytes = msgpack.packb([name, reason, time.time()], unicode_errors="surrogatepass")
    with contextlib.suppress(StorageError):
        publish_file(store, UNCACHED, _file_name(name), check(packed) + packed)
        _limit(store)


def forget(store: Store, name: str) -> None:
    """Forget the refusals of a function that is cached now."""
    if not store.readonly:
        with suppress(OSError):
            store.files.unlink(store.path(UNCACHED, _file_name(name[:_MAX_TEXT])))


def read_all(store: Store) -> list[Refusal]:
    """Return all stored reasons, the latest first."""
    found = [_read(store, name) for name in store.names(UNCACHED)]
    return sorted((f for f in found if f is not None), key=lambda refusal: -refusal.created)


def _read(store: Store, file_name: str) -> Refusal | None:
    data = store.read_file(UNCACHED, file_name)
    if data is None or check(data[CHECK_SIZE:]) != data[:CHECK_SIZE]:
        return None
    try:
        name, reason, created = msgpack.unpackb(data[CHECK_SIZE:], unicode_errors="surrogatepass")
        found = Refusal(str(name), str(reason), float(created) if 0 <= float(created) < _MAX_TIME else 0.0)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        return None
    return found if _file_name(found.name) == file_name else None


def _limit(store: Store) -> None:
    """Remove the oldest where there are too many."""
    names = store.names(UNCACHED)
    if len(names) <= _MAX_KEPT:
        return
    ages = []
    for name in names:
        path = store.path(UNCACHED, name)
        with suppress(OSError):
            ages.append((store.files.stat(path).st_mtime_ns, path))
    for _, path in sorted(ages)[: len(names) - _MAX_KEPT]:
        with suppress(OSError):
            store.files.unlink(path)
