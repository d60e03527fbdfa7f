"""Keeps a cache below its size limit: what an addition does after it was published. Nothing here is on the hit path.

Additions append their sizes to an estimate (`compcache.usage.size_estimate`). Only when that exceeds the limit a sweep,
under a try-lock, lists the modules and prunes the least recently used down to `_LOW` of the limit, so that a sweep is
paid for by the additions that fit into what it made free. Bytes that could not be written down are added by the next
addition; what is lost with a killed process, the next sweep finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.footer import FOOTER_SIZE
from compcache.maintain.policy import PrunePolicy
from compcache.publish.locks import wait_lock
from compcache.store import SIZE
from compcache.usage.limits import effective_limit
from compcache.usage.size_estimate import add_to_estimate, write_estimate

if TYPE_CHECKING:
    from compcache.linker import BuiltModule
    from compcache.store import Store

__all__ = ["note_addition"]

_LOW = 0.8


def note_addition(store: Store, module_id: bytes, built: BuiltModule, given: int | None) -> None:
    """Count a module that was published, and make room if the limit is exceeded.

    What cannot be done is a `CacheWarning`, one for each cache object: the addition itself has succeeded.
    """
    from compcache.publish.quarantine import warn_once
    from compcache.usage.module_rows import encode_rows, row_of_built

    size = sum(map(len, built.sections)) + FOOTER_SIZE
    store.stats.added(size, encode_rows([row_of_built(module_id, built)]))
    try:
        limit = effective_limit(given)
        if limit is not None:
            _account(store, module_id, size, limit)
    except (CompcacheError, OSError, ValueError, MemoryError) as error:
        message = f"the size limit of the cache {store.root} could not be kept: {error}"
        warn_once(store, store.path(SIZE), message)


def _account(store: Store, module_id: bytes, size: int, limit: int) -> None:
    added, store.stats.unaccounted = store.stats.unaccounted + size, 0
    try:
        known = add_to_estimate(store, added)
    except OSError:  # a full disk, most of all: the next addition counts these bytes as well
        store.stats.unaccounted += added
        return
    # Pinned modules may be larger than the limit: then the next sweep waits until something else has come.
    if known is not None and not known.is_long:
        excess = known.settled + limit // 8 if known.settled > limit else 0
        if known.size <= max(limit, excess):
            return
    with wait_lock(store, "size", timeout=0) as owned:
        if owned is False:
            return
        if known is None or known.size > limit:
            size = settled = _sweep(store, module_id, limit)
        else:
            size, settled = known.size, known.settled
        write_estimate(store, size, settled)


def _sweep(store: Store, module_id: bytes, limit: int) -> int:
    """Prune to well below the limit; the size that is left."""
    from compcache.maintain.prune import prune

    size = _measure(store)
    if size <= limit:
        return size
    report = prune(store, PrunePolicy(max_bytes=int(limit * _LOW)), spare=frozenset((module_id,)))
    return report.bytes_after


def _measure(store: Store) -> int:
    from compcache.usage.module_files import list_modules

    return sum(status.size for status in list_modules(store).values())
