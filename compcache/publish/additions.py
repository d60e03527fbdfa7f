"""Merges segments and packs if many have accumulated (miss path)."""

from __future__ import annotations

import os

from compcache.interrupts import reraise_interrupt, suppress
from compcache.processes.detached import LateFiles
from compcache.publish.apart import can_use_subprocess, run_in_subprocess
from compcache.publish.index_merge import ALL_LEVELS, LARGE_LEVELS, SMALL_LEVELS, full_level, merge_additions
from compcache.publish.index_merge import merge as merge_segments
from compcache.publish.locks import try_lock
from compcache.publish.packs import merge_packs
from compcache.store import Store
from compcache.warning import warn

__all__ = ["merge", "merge_large", "merge_newest"]

#: The most segments of a large level that are not merged.
_MOST_LARGE_SEGMENTS = 3


def merge(store: Store, *, is_fresh: bool = False) -> None:
    """Merge the index and its packs if many additions have accumulated. If that fails, issue a warning.

    Long merges run in another process if it can use the store (`can_use_subprocess`), so that additions do not wait. `is_fresh` says that
    the index was refreshed just before the addition. It is then refreshed again only if a level has too many segments.
    """
    if is_fresh and full_level(store.index.segments, SMALL_LEVELS) is None and not _has_full_large_level(store):
        return
    is_detachable = can_use_subprocess(store)
    try:
        merge_additions(store, merge_packs=merge_packs, levels=SMALL_LEVELS if is_detachable else ALL_LEVELS)
        if is_detachable and _has_full_large_level(store):
            run_in_subprocess(store, __name__, merge_large.__name__)
    except OSError as error:
        reraise_interrupt(error)
        warn(f"cannot merge the index of {store.root}: {error}; look-ups read more files until a later addition merges it")


def _has_full_large_level(store: Store) -> bool:
    """Return whether a level of large segments has more than `_MOST_LARGE_SEGMENTS`."""
    return full_level(store.index.segments, LARGE_LEVELS, _MOST_LARGE_SEGMENTS) is not None


def merge_large(root: str, *, trust: bool) -> None:
    """Merge the large segments of a directory's index, their packs and their lists. Then fold long journals and small statistics files.

    Nothing is merged if no level has more than `_MOST_LARGE_SEGMENTS`, or another process is merging large segments. Folded journals make
    the first query after many additions fast. This is the main function of a separate process. `trust` is the argument of `Cache`.
    """
    from compcache.usage.ledger import fold_long, fold_small

    os.nice(5)  # programs that use the cache come first
    store = Store(root, files=LateFiles(), trust=trust)
    with try_lock(store, "index-merge-large") as owned:
        while owned and _has_full_large_level(store):
            before = {segment.name for segment in store.index.segments}
            merge_segments(store.index, store, LARGE_LEVELS, _MOST_LARGE_SEGMENTS, merge_packs)
            if before == {segment.name for segment in store.index.segments}:
                break  # the remaining segments cannot be read
    fold_long(store)
    fold_small(store.files.system, root)


def merge_newest(store: Store) -> None:
    """Merge the newest segments, even if there are few, unless another process is merging them. Failures are ignored."""
    with suppress(OSError):
        merge_additions(store, most=1, merge_packs=merge_packs, levels=SMALL_LEVELS)
