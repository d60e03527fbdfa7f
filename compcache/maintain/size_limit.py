"""Enforces the size limit of a cache at each addition. Not on the hit path.

Additions append their sizes to an estimate (`compcache.usage.size_estimate`). When the estimate exceeds the limit, a sweep under a
try-lock lists the modules, and prunes the least recently used modules down to `_LOW` of the limit. The cost of a sweep is spread over
the additions that fit into the freed space. The next addition counts bytes that could not be recorded. The next sweep finds bytes that
a killed process did not record.

If thousands of small files take half of the space, a new process packs them into volumes instead, which take a tenth of the space. No
module is lost. Additions may then exceed the limit by an eighth until the next sweep, which prunes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.directory.places import SIZE
from compcache.errors import CompcacheError
from compcache.formats.footer import FOOTER_SIZE
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.apart import can_use_subprocess, run_in_subprocess
from compcache.publish.locks import try_lock
from compcache.usage.limits import effective_limit
from compcache.usage.module_files import modules_by_directory
from compcache.usage.size_estimate import add_to_estimate, write_estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from compcache.formats.built_module import BuiltModule
    from compcache.store import Store

__all__ = ["note_additions"]

_LOW = 0.8  # of the limit
#: The minimum number of modules for which a process that packs them is worthwhile.
_MANY = 1 << 13


def note_additions(
    store: Store, added: Sequence[tuple[bytes, BuiltModule]], max_size: int | None, in_use: Callable[[], Iterable[bytes]] = tuple
) -> None:
    """Count published modules, and prune if the size limit is exceeded.

    After a failure, issue a `CacheWarning`, once for each cache object. The addition itself has succeeded.

    Args:
        store: the cache directory.
        added: the published modules with their module_ids. A prune does not remove them.
        max_size: the size limit that was passed to `Cache`, or None for the limit in the settings.
        in_use: called before a prune. Returns the ids of further modules to keep.
    """
    from compcache.publish.quarantine import warn_once

    sizes = [sum(map(len, built.sections)) + FOOTER_SIZE for _, built in added]
    for size in sizes:
        store.stats.added(size)
    try:
        limit = effective_limit(max_size, store.root)
        if limit is not None:
            new = [module_id for module_id, _ in added]
            _add_and_sweep(store, lambda: frozenset([*new, *in_use()]), sum(sizes), limit)
    except (CompcacheError, OSError, ValueError, MemoryError) as error:
        reraise_interrupt(error)
        message = f"the size limit of the cache {store.root} could not be enforced: {error}; run 'compcache prune'"
        warn_once(store, store.path(SIZE), message)


def _add_and_sweep(store: Store, find_kept: Callable[[], frozenset[bytes]], size: int, limit: int) -> None:
    """Add `size` bytes to the estimate. If the estimate then exceeds the limit or is missing, sweep, unless another process is sweeping.

    `find_kept` returns the module_ids that a sweep must not remove. If `size` cannot be added, the next addition adds it.

    Raise `OSError` if a volume cannot be read, or the estimate cannot be written after a sweep.
    """
    added, store.stats.unaccounted = store.stats.unaccounted + size, 0
    try:
        estimate = add_to_estimate(store, added)
    except OSError as error:  # usually a full disk; the next addition counts these bytes, too
        reraise_interrupt(error)
        store.stats.unaccounted += added
        return
    # If pinned modules exceed the limit, the next sweep waits for more additions.
    if estimate is not None and not estimate.is_long:
        excess = estimate.settled + limit // 8 if estimate.settled > limit else 0
        if estimate.size <= max(limit, excess):
            return
    with try_lock(store, "size") as owned:
        if not owned:
            return
        if estimate is None or estimate.size > limit:
            size = settled = _sweep(store, find_kept, limit, compacts=estimate is None or estimate.settled <= limit)
        else:
            size, settled = estimate.size, estimate.settled
        write_estimate(store, size, settled)


def _sweep(store: Store, find_kept: Callable[[], frozenset[bytes]], limit: int, *, compacts: bool) -> int:
    """Prune to `_LOW` of the limit, or with `compacts` start a process that packs small files. Return the size of the cache now, in bytes.

    Nothing is done if the cache is within the limit. `find_kept` returns the modules that stay. Raise `OSError` if a volume cannot be read.
    """
    from compcache.maintain.packing import SMALL

    size = count = small = 0
    for _, statuses in modules_by_directory(store):
        sizes = [status.size for status in statuses.values()]
        size += sum(sizes)
        count += len(sizes)
        small += sum(filter(SMALL.__ge__, sizes))
    if size <= limit:
        return size
    small -= sum(volume.status.st_size for volume in store.volumes.current())
    if compacts and count >= _MANY and small * 2 >= size and can_use_subprocess(store):
        with suppress(OSError):
            run_in_subprocess(store, "compcache.maintain.compact", "compact_at_low_priority")
            return size
    from compcache.maintain.policy import PrunePolicy
    from compcache.maintain.prune import prune

    store.stats.flush(now_held=True)  # modules in memory count as used now
    report = prune(store, PrunePolicy(max_bytes=int(limit * _LOW)), spare=find_kept())
    return report.size_after
