"""The size of a cache and the statistics of its processes, for tools."""

from __future__ import annotations

import time
from math import floor
from typing import TYPE_CHECKING

from compcache.directory.places import STATISTICS
from compcache.errors import StorageError
from compcache.formats.journal import HOUR
from compcache.formats.statistics import store_of
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_lists import ModuleLists
from compcache.usage.ledger import Uses, fold, fold_long, zero_counters
from compcache.usage.limits import effective_limit
from compcache.usage.snapshot import PresentModules, Slices, count_modules
from compcache.usage.summaries import CacheStats, RemoteStats, StatsPeriod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["cache_stats", "history", "hits_and_misses", "zero_stats"]

_MISSES = "misses."


def cache_stats(store: Store, max_size: int | None, since: float | None = None, progress: Progress | None = None) -> CacheStats:
    """Fold the statistics files, and return the content of the cache with the statistics of all processes.

    `max_size` is the size limit passed to `Cache`, in bytes; None for the limit in the settings. Events count from the time `since`, in
    seconds since the epoch; None counts all events. Raise `TypeError` if `since` is not a time, or the errors of `effective_limit`.
    """
    counts = count_modules(store, progress)
    slices = Slices(store, progress)
    _, counters = fold(store, slices.lists.seconds_of, now=time.time(), present=PresentModules(slices), force=True)
    totals, start = _sum_counters(counters, since)

    def count_of(counter: str) -> int:
        return round(totals.get(counter, 0))

    reasons = _miss_reasons(totals)
    counters_by_store = _group_by_store(totals)
    plain_counters = counters_by_store.pop("", {})
    return CacheStats(
        directory=store.root,
        modules=counts.modules,
        functions=counts.names,
        realizations=counts.realizations,
        size=counts.size,
        max_size=effective_limit(max_size, store.root),
        since=start,
        hits=count_of("hits"),
        misses=sum(reasons.values()),
        miss_reasons=reasons,
        loads=count_of("loads"),
        compilations=count_of("compilations"),
        compile_seconds=totals.get("compile_seconds", 0.0),
        saved_seconds=totals.get("saved_seconds", 0.0),
        added_modules=count_of("added_modules"),
        added_size=count_of("added_bytes"),
        evicted_modules=count_of("evicted_modules"),
        evicted_size=count_of("evicted_bytes"),
        corrupt=count_of("corrupt"),
        remote=_remote_stats(totals),
        remote_stores={address: _remote_stats(counters_by_store[address]) for address in sorted(counters_by_store)},
        counters={name.replace("_bytes", "_size"): value for name, value in plain_counters.items()},  # journals name sizes "_bytes"
    )


def _miss_reasons(totals: Mapping[str, float]) -> dict[str, int]:
    """Return the number of misses for each reason, sorted by reason."""
    return {name.removeprefix(_MISSES): round(number) for name, number in sorted(totals.items()) if name.startswith(_MISSES)}


def _group_by_store(totals: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Group counters by the address of their remote store, or "" for counters of the cache. The counters are sorted by name."""
    groups: dict[str, dict[str, float]] = {}
    for name, value in sorted(totals.items()):
        counter, address = store_of(name)
        groups.setdefault(address, {})[counter] = value
    return groups


def _remote_stats(totals: dict[str, float]) -> RemoteStats:
    """Return the counters of remote stores. Counters other than `seconds` are whole numbers."""
    counters = {name: totals.get(f"remote_{name}", 0) for name in RemoteStats._fields}
    return RemoteStats(**{name: value if name == "seconds" else round(value) for name, value in counters.items()})  # type: ignore[arg-type]


def hits_and_misses(store: Store) -> tuple[int, int]:
    """Return the hits and misses of all processes since the statistics were zeroed."""
    totals, _ = _sum_counters(Uses(store).counters, None)
    return round(totals.get("hits", 0)), sum(_miss_reasons(totals).values())


def _sum_counters(counters: Mapping[tuple[int, str], float], since: float | None) -> tuple[dict[str, float], float]:
    """Add up the counters from `since` on. Return the sums by name, and the later of `since` and the time of the last zeroing.

    Raise `TypeError` if `since` is not a time.
    """
    first_hour = _first_hour(since)
    start = float(first_hour * HOUR)
    totals: dict[str, float] = {}
    for (hour, name), value in counters.items():
        if name == "zeroed":
            start = max(start, value)
        elif hour >= first_hour:
            totals[name] = totals.get(name, 0) + value
    return totals, start


def _first_hour(since: float | None) -> int:
    """Convert a time in seconds since the epoch to whole hours; None to 0. Raise `TypeError` for other values."""
    if since is None:
        return 0
    try:
        return floor(since) // HOUR
    except (TypeError, ValueError, OverflowError) as error:
        reraise_interrupt(error)
        raise TypeError(f"since must be a time in seconds since the epoch, like time.time() - 86400, not {since!r}") from None


def history(store: Store, since: float | None = None, progress: Progress | None = None) -> tuple[StatsPeriod, ...]:
    """Fold the long journals, and return the periods from `since` on with at least one counter, the oldest first. None returns all.

    Raise `TypeError` if `since` is not a time.
    """
    fold_long(store)
    counters = Uses(store).counters_with_loads(ModuleLists(store, progress, recover=False).seconds_of, time.time())
    first_hour = _first_hour(since)
    hours: dict[int, dict[str, float]] = {}
    for (hour, name), value in counters.items():
        if hour >= first_hour and name != "zeroed":
            hours.setdefault(hour, {})[name] = value
    return tuple(_period_of_hour(hour, hours[hour]) for hour in sorted(hours))


def _period_of_hour(hour: int, counters: Mapping[str, float]) -> StatsPeriod:
    """Return the counters of an hour as a period."""
    reasons = _miss_reasons(counters)
    return StatsPeriod(
        start=float(hour * HOUR),
        hits=round(counters.get("hits", 0)),
        misses=sum(reasons.values()),
        miss_reasons=reasons,
        saved_seconds=counters.get("saved_seconds", 0.0),
        compile_seconds=counters.get("compile_seconds", 0.0),
        added_size=round(counters.get("added_bytes", 0)),
        evicted_size=round(counters.get("evicted_bytes", 0)),
    )


def zero_stats(store: Store) -> None:
    """Set all counters to zero. Raise `StorageError` if the cache is read-only, or the counters could not be set."""
    store.require_writable()
    if not zero_counters(store, time.time()):
        message = f"the statistics of {store.root} were not set to zero, because another process merges them: try again"
        raise StorageError(message, path=store.directory(STATISTICS))
