"""The cache objects from which Numba loads overloads, and to which it saves them.

This file defines the backend: its cache, its statistics, and the functions that it could not cache.
"""

from __future__ import annotations

import atexit
import os

from compcache import frontend
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from compcache.cache import Cache

__all__ = ["Backend"]

_warned: set[tuple[str, str]] = set()  # the problems that `Backend.warn_not_stored` has reported: directories and reasons


class Backend:
    """A backend for Numba's caching.

    Attributes:
        cache: the cache in which the backend stores.
        targets: the CPUs to store code for, as in `ModuleSource`; None for $COMPCACHE_TARGETS, or this host if that is not set.
        hits: the number of overloads that were found.
        misses: the number of overloads that were not found.
        refused: the reason why an overload cannot be cached, by the function and its argument types, such as ``pkg.mod.f(int64)``.
    """

    def __init__(self, cache: Cache, targets: Iterable[str] | str | None = None) -> None:
        self.cache = cache
        self.targets = targets if targets is None or isinstance(targets, str) else tuple(targets)
        self.hits = 0
        self.misses = 0
        self.refused: dict[str, str] = {}
        self._compacting_pid = 0  # the PID of the process whose exit handler compacts the index

    def count(self, *, hit: bool) -> None:
        """Count a look-up in this object only. The load itself has counted a hit in the statistics of the directory."""
        if hit:
            self.hits += 1
        else:
            self.misses += 1

    def count_miss(self, name: str, *, refused: bool = False) -> None:
        """Count a look-up that found no entry with this name, in this object and in the statistics of the directory.

        `refused` says whether the function cannot be cached. Numba compiles it now.
        """
        self.count(hit=False)
        frontend.count_miss(self.cache, name, refused=refused)

    def record_refusal(self, label: str, reason: str) -> None:
        """Record why an overload is not cached, here and for `compcache explain`. `label` is the function with its argument types."""
        self.refused[label] = reason
        frontend.note_uncached(self.cache, label, reason)

    def record_stored(self, label: str) -> None:
        """Record that an overload is cached. The index is compacted at exit. `label` is the function with its argument types."""
        self.refused.pop(label, None)
        frontend.forget_uncached(self.cache, label)
        if self._compacting_pid != os.getpid():
            self._compacting_pid = os.getpid()
            atexit.register(self._compact, self._compacting_pid)

    def _compact(self, pid: int) -> None:
        """Compact the index in the process with this PID. Storing overloads one by one has created many index files."""
        if pid == os.getpid():  # a forked child inherits the exit handler
            frontend.compact_index(self.cache)

    def load_or_record(self, label: str, load: Callable[[], Any]) -> Any:
        """Return the result of `load`. If it fails, record the reason, for example a name that no longer exists, and return None.

        `label` is the function with its argument types.
        """
        try:
            return load()
        except Exception as error:  # noqa: BLE001 - a failure to load is a miss
            reraise_interrupt(error)
            reason = f"the entry cannot be loaded, so Numba compiles the function again: {type(error).__name__}: {error}"
            self.record_refusal(label, reason)
            return None

    def warn_not_stored(self, name: str, error: Exception) -> None:
        """Issue a `CacheWarning` that a function was compiled, but could not be stored. Each problem of a directory is reported once."""
        from compcache.warning import warn

        problem = self.cache.path, str(error).rpartition(": ")[2]  # without the name of a file of this function
        if problem not in _warned:
            _warned.add(problem)
            warn(f"{name} was compiled, but could not be stored (further functions are not reported): {error}")

    def __repr__(self) -> str:
        return f"<compcache.numba on {self.cache.path!r}: {self.hits} hits, {self.misses} misses, {len(self.refused)} refused>"
