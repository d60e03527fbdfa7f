"""The installed backend: its cache, its statistics, and the functions that it could not cache."""

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
    """An installed backend.

    Attributes:
        cache: the cache that it stores in.
        targets: the CPUs to store code for, as in `ModuleSource`; None for $COMPCACHE_TARGETS, or else this host.
        hits, misses: the numbers of overloads that were found, and that were not.
        refused: {function and types: reason} of the overloads that cannot be cached.
    """

    def __init__(self, cache: Cache, targets: Iterable[str] | str | None = None) -> None:
        self.cache = cache
        self.targets = targets if targets is None or isinstance(targets, str) else tuple(targets)
        self.hits = 0
        self.misses = 0
        self.refused: dict[str, str] = {}
        self._process = 0  # that compacts the index when it exits

    def count(self, *, hit: bool) -> None:
        """Count a look-up. A hit is already in the statistics of the directory."""
        if hit:
            self.hits += 1
        else:
            self.misses += 1

    def miss(self, name: str, *, refused: bool = False) -> None:
        """Count a look-up that found nothing. `refused`: the function that is now compiled cannot be cached."""
        self.count(hit=False)
        frontend.count_miss(self.cache, name, refused=refused)

    def refuse(self, label: str, reason: str) -> None:
        """Record why a function is not cached for these types, here and for `compcache explain`."""
        self.refused[label] = reason
        frontend.note_uncached(self.cache, label, reason)

    def accept(self, label: str) -> None:
        """Record that the function is cached now."""
        self.refused.pop(label, None)
        frontend.forget_uncached(self.cache, label)
        if self._process != os.getpid():
            self._process = os.getpid()
            atexit.register(self._compact, self._process)

    def _compact(self, process: int) -> None:
        """Merge the index after overloads were stored one by one, if several of its files have accumulated."""
        if process == os.getpid():  # not in a child that was forked
            frontend.compact_index(self.cache)

    def note_failure(self, name: str, error: Exception) -> None:
        """Warn that a compiled function works, but could not be stored."""
        import warnings

        warnings.warn(f"{name} was compiled and not cached: {error}", CacheWarning, stacklevel=4)

    def __repr__(self) -> str:
        return f"<compcache.numba on {self.cache.path!r}: {self.hits} hits, {self.misses} misses, {len(self.refused)} refused>"
