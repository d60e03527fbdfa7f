"""Defines the backend: its cache, its statistics, and the functions that it could not cache."""

from __future__ import annotations

import atexit
import os

from compcache import frontend
from compcache.errors import CacheWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.cache import Cache

__all__ = ["Backend"]


class Backend:
    """A backend for Numba's caching.

    Attributes:
        cache: the cache that it stores in.
        targets: the CPUs to store code for, as in `ModuleSource`; None for $COMPCACHE_TARGETS, or this host if that is not set.
        hits, misses: the numbers of overloads that were found, and of overloads that were not found.
        refused: {function and types: reason} of the overloads that cannot be cached.
    """

    def __init__(self, cache: Cache, targets: Iterable[str] | str | None = None) -> None:
        self.cache = cache
        self.targets = targets if targets is None or isinstance(targets, str) else tuple(targets)
        self.hits = 0
        self.misses = 0
        self.refused: dict[str, str] = {}
        self._compacting_pid = 0  # the PID of the process whose exit handler compacts the index

    def count(self, *, hit: bool) -> None:
        """Count a look-up in this object. The statistics of the directory already contain hits."""
        if hit:
            self.hits += 1
        else:
            self.misses += 1

    def miss(self, name: str, *, refused: bool = False) -> None:
        """Count a look-up that found no entry, in this object and in the directory.

        Args:
            name: the name of the entry.
            refused: whether the function, which Numba compiles now, cannot be cached.
        """
        self.count(hit=False)
        frontend.count_miss(self.cache, name, refused=refused)

    def record_refusal(self, label: str, reason: str) -> None:
        """Record why a function is not cached for these types, in `refused` and for `compcache explain`."""
        self.refused[label] = reason
        frontend.note_uncached(self.cache, label, reason)

    def record_stored(self, label: str) -> None:
        """Record that a function is cached for these types. The index is compacted when the process exits."""
        self.refused.pop(label, None)
        frontend.forget_uncached(self.cache, label)
        if self._compacting_pid != os.getpid():
            self._compacting_pid = os.getpid()
            atexit.register(self._compact, self._compacting_pid)

    def _compact(self, pid: int) -> None:
        """Merge the files of the index if several have accumulated, because overloads are stored one by one."""
        if pid == os.getpid():  # a forked child has inherited the exit handler
            frontend.compact_index(self.cache)

    def note_failure(self, name: str, error: Exception) -> None:
        """Issue a `CacheWarning` that a function was compiled but could not be stored."""
        import warnings

        warnings.warn(f"{name} was compiled, but could not be stored: {error}", CacheWarning, stacklevel=4)

    def __repr__(self) -> str:
        return f"<compcache.numba on {self.cache.path!r}: {self.hits} hits, {self.misses} misses, {len(self.refused)} refused>"
