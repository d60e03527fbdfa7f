"""Keeps a cache below its size limit: what an addition does after it was published. Nothing here is on the hit path.

The size of all modules is estimated in one small file under a try-lock; an addition adds its own. Only when the
estimate exceeds the limit a sweep lists the modules and prunes the least recently used down to `_LOW` of the limit,
so that a sweep is paid for by the additions that fit into what it made free. Whoever does not get the lock leaves its
bytes to its next addition; what is lost with a killed process, the next sweep finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.footer import FOOTER_SIZE
from compcache.maintain.policy import PrunePolicy
from compcache.publish.locks import wait_lock
from compcache.usage.limits import effective_limit
from compcache.usage.size_estimate import SIZE_FILE, read_estimate, write_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.store import Store

__all__ = [
    "note_addition",
]

_LOW = 0.8



def note_addition(store: Store, module_id: bytes, sections: Sequence[bytes], given: int | None) -> None:
    """Count a module that was published, and make room if the limit is exceeded.

    What cannot be done is a `CacheWarning`, one for each cache object: the addition itself has succeeded.
    """
    from compcache.publish.quarantine import warn_once
    from compcache.usage.module_rows import encode_rows, make_row

    size = sum(map(len, sections)) + FOOTER_SIZE
    store.stats.added(size, encode_rows([make_row(module_id, sections[1], sections[4])]))
    try:
        limit = effective_limit(given)
        if limit is not None:
            _account(store, module_id, size, limit)
    except (CompcacheError, OSError, ValueError) as error:
        message = f"the size limit of the cache {store.root} could not be kept: {error}"
        warn_once(store, store.path(*SIZE_FILE), message)


def _account(store: Store, module_id: bytes, size: int, limit: int) -> None:
    store.stats.unaccounted += size
    with wait_lock(store, "size", timeout=0) as owned:
        if owned is False:
            return
        added, store.stats.unaccounted = store.stats.unaccounted, 0
        known = read_estimate(store)
        estimate, settled = (known[0] + added, known[1]) if known is not None else (_measure(store), 0)
        # Pinned modules may be larger than the limit: then the next sweep waits until something else has come.
        if estimate > max(limit, settled + limit // 8 if settled > limit else 0):
            estimate = settled = _sweep(store, module_id, limit)
        try:
            write_estimate(store, estimate, settled)
        except OSError:  # a full disk, most of all: whoever adds next counts these bytes as well
            store.stats.unaccounted += added


def _sweep(store: Store, module_id: bytes, limit: int) -> int:
    """Prune to well below the limit; the size that is left."""
    from compcache.maintain.prune import prune

    if _measure(store) <= limit:
        return _measure(store)
    report = prune(store, PrunePolicy(max_bytes=int(limit * _LOW)), spare=frozenset((module_id,)))
    return report.bytes_after


def _measure(store: Store) -> int:
    from compcache.usage.module_files import list_modules

    return sum(status.size for status in list_modules(store).values())
