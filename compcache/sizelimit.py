"""Keeps a cache below its size limit: what an addition does after it was published. Nothing here is on the hit path.

The size of all modules is estimated in one small file under a try-lock; an addition adds its own. Only when the
estimate exceeds the limit a sweep lists the modules and prunes the least recently used down to `_LOW` of the limit,
so that a sweep is paid for by the additions that fit into what it made free. Whoever does not get the lock leaves its
bytes to its next addition; what is lost with a killed process, the next sweep finds.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from compcache import files as file_ops
from compcache.container import FOOTER_SIZE
from compcache.errors import CompcacheError
from compcache.locks import wait_lock
from compcache.prune import PrunePolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.store import Store

__all__ = [
    "DEFAULT_MAX_SIZE",
    "LIMIT_VARIABLE",
    "effective_limit",
    "note_addition",
    "parse_size",
    "remember_size",
]

LIMIT_VARIABLE = "COMPCACHE_MAX_SIZE"
#: Half a million modules of ten kilobytes, more than most projects ever compile, and yet a size that a home directory
#: can be expected to hold: people of other compiler caches live with this very default.
DEFAULT_MAX_SIZE = 5 << 30
_LOW = 0.8
_NAMES = ("stats", "size-v1")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes that a text like ``500M``, ``1.5 GiB`` or ``4096`` stands for; units are powers of 1024.

    Raises:
        ValueError: it is no such text.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no size: expected a number of bytes, or one with a unit, like 500M or 2GiB"
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def effective_limit(given: int | None) -> int | None:
    """The limit in bytes: what was given, else $COMPCACHE_MAX_SIZE, else the default; None where it is 0, no limit.

    Raises:
        ValueError: it is negative, or the variable is no size.
    """
    if given is None:
        text = os.environ.get(LIMIT_VARIABLE, "").strip()
        if not text:
            return DEFAULT_MAX_SIZE
        try:
            given = parse_size(text)
        except ValueError as error:
            raise ValueError(f"{LIMIT_VARIABLE}: {error}") from None
    if given < 0:
        raise ValueError(f"max_size must not be negative: {given}")
    return given or None


def note_addition(store: Store, module_id: bytes, sections: Sequence[bytes], given: int | None) -> None:
    """Count a module that was published, and make room if the limit is exceeded.

    What cannot be done is a `CacheWarning`, one for each cache object: the addition itself has succeeded.
    """
    from compcache.roster import encode_rows, make_row
    from compcache.verification import warn_once

    size = sum(map(len, sections)) + FOOTER_SIZE
    store.stats.added(size, encode_rows([make_row(module_id, sections[1], sections[4])]))
    try:
        limit = effective_limit(given)
        if limit is not None:
            _account(store, module_id, size, limit)
    except (CompcacheError, OSError, ValueError) as error:
        message = f"the size limit of the cache {store.root} could not be kept: {error}"
        warn_once(store, store.path(*_NAMES), message)


def _account(store: Store, module_id: bytes, size: int, limit: int) -> None:
    store.stats.unaccounted += size
    with wait_lock(store, "size", timeout=0) as owned:
        if owned is False:
            return
        added, store.stats.unaccounted = store.stats.unaccounted, 0
        known = _read(store)
        estimate, settled = (known[0] + added, known[1]) if known is not None else (_measure(store), 0)
        # Pinned modules may be larger than the limit: then the next sweep waits until something else has come.
        if estimate > max(limit, settled + limit // 8 if settled > limit else 0):
            estimate = settled = _sweep(store, module_id, limit)
        try:
            _write(store, estimate, settled)
        except OSError:  # a full disk, most of all: whoever adds next counts these bytes as well
            store.stats.unaccounted += added


def _sweep(store: Store, module_id: bytes, limit: int) -> int:
    """Prune to well below the limit; the size that is left."""
    from compcache.pruning import prune

    if _measure(store) <= limit:
        return _measure(store)
    report = prune(store, PrunePolicy(max_bytes=int(limit * _LOW)), spare=frozenset((module_id,)))
    return report.bytes_after


def _measure(store: Store) -> int:
    from compcache.inventory import list_modules

    return sum(status.size for status in list_modules(store).values())


def _read(store: Store) -> tuple[int, int] | None:
    """The estimate, and the size that the last sweep left."""
    data = store.read_file(*_NAMES)
    try:
        estimate, settled = map(int, (data or b"").split())
    except ValueError:
        return None
    return estimate, settled


def _write(store: Store, estimate: int, settled: int) -> None:
    data = f"{estimate} {settled}\n".encode()
    file_ops.publish(store.files, store.temporary, store.path(*_NAMES), [data], sync=False)


def remember_size(store: Store, size: int) -> None:
    """Correct the estimate after somebody measured; not being able to is no error."""
    try:
        _write(store, size, 0)
    except OSError:
        return
