"""The reasons why functions are compiled and not cached: a small file for each function, which `explain` reads.

Only people use these reasons. The latest few hundred files are kept. A damaged file counts as absent. Failed writes are ignored.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache.digest import CHECK_SIZE, check, name_key
from compcache.directory.places import UNCACHED
from compcache.errors import StorageError
from compcache.interrupts import suppress
from compcache.messagepack import pack, unpack
from compcache.publish.atomic_file import remove_oldest
from compcache.publish.writer import publish_file

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["Refusal", "read_refusals", "record_refusal", "remove_refusal"]

_MAX_KEPT = 512  # files
_MAX_TEXT = 4096  # characters
_MAX_TIME = 1e11  # seconds since the epoch; the comparison with it also excludes NaN


@dataclass(frozen=True, slots=True)
class Refusal:
    """A function that was compiled but not cached. `created` is the time of the record, in seconds since the epoch."""

    name: str
    reason: str
    created: float

    @property
    def text(self) -> str:
        """Return a message with the name and the reason. A reason that begins with "was" continues the sentence about the function."""
        if self.reason.startswith("was "):
            return f"{self.name} {self.reason}"
        return f"{self.name} was compiled and not cached: {self.reason}"


def _file_name(name: str) -> str:
    """Return the name of the file for the refusal of a function."""
    return UNCACHED.file_name(name_key(name).hex())


def record_refusal(store: Store, name: str, reason: str) -> None:
    """Store the reason why a function is not cached, and replace an earlier reason. Do nothing in a read-only cache.

    Long texts are cut. The oldest reasons beyond `_MAX_KEPT` are removed. A file that cannot be written is not an error.
    """
    name, reason = name[:_MAX_TEXT], reason[:_MAX_TEXT]
    if store.readonly:
        return
    stored = _read_refusal(store, _file_name(name))
    if stored is not None and (stored.name, stored.reason) == (name, reason):
        return
    packed = pack([name, reason, time.time()])
    with contextlib.suppress(StorageError):
        publish_file(store, UNCACHED, _file_name(name), check(packed) + packed)
        remove_oldest(store, UNCACHED, _file_name(name), _MAX_KEPT)


def remove_refusal(store: Store, name: str) -> None:
    """Remove the stored reason of a function that is cached now. Do nothing in a read-only cache."""
    if not store.readonly:
        with suppress(OSError):
            store.files.unlink(store.path(UNCACHED, _file_name(name[:_MAX_TEXT])))


def read_refusals(store: Store) -> list[Refusal]:
    """Return all stored refusals, the latest first."""
    refusals = [_read_refusal(store, name) for name in store.names(UNCACHED)]
    return sorted((refusal for refusal in refusals if refusal is not None), key=lambda refusal: -refusal.created)


def _read_refusal(store: Store, file_name: str) -> Refusal | None:
    """Return the refusal in a file; None if the file does not exist or is damaged."""
    data = store.read_file(UNCACHED, file_name)
    if data is None or check(data[CHECK_SIZE:]) != data[:CHECK_SIZE]:
        return None
    with suppress(ValueError, TypeError):
        name, reason, created = unpack(data[CHECK_SIZE:])
        refusal = Refusal(str(name), str(reason), float(created) if 0 <= float(created) < _MAX_TIME else 0.0)
        return refusal if _file_name(refusal.name) == file_name else None
    return None
