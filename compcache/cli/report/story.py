"""The content of ``compcache report`` as data, without any formatting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from compcache.cli.names import split_name
from compcache.frontend import list_costs, list_modules
from compcache.maintain.policy import PrunePolicy
from compcache.usage.costs import Cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.cache import Cache
    from compcache.usage.summaries import CacheStats, ModuleSummary, StatsPeriod

__all__ = ["Duplicate", "Group", "ModuleRow", "Story", "collect_story"]

_DAY = 86400
_UNUSED_DAYS = 30
_NEVER = "never"
_MOST_NAMED = 3  # functions in the row of a module
_SURPLUS = 100  # rows beyond the limit in memory, at which they are sorted and cut
_T = TypeVar("_T")
#: The ranges of the time since the last use, each with its upper bound in days.
_AGES = (("today", 1), ("this week", 7), ("this month", 30), ("this quarter", 90), ("longer ago", float("inf")))


class Group(NamedTuple):
    """The `number` of modules or realizations with a common property, and their total `size` in bytes."""

    name: str
    size: int
    number: int


class ModuleRow(NamedTuple):
    """A module. `functions` are the first of its function names, `more` is the number of further names. Times as in `ModuleSummary`."""

    module_id: str
    functions: tuple[str, ...]
    more: int
    size: int
    seconds: float
    created: float
    last_used: float
    uses: int


class Duplicate(NamedTuple):
    """A function that several modules realize. `size` is the total size of these modules in bytes."""

    name: str
    realizations: int
    size: int


class Story(NamedTuple):
    """A cache at one moment. Sizes are in bytes, times in seconds since the epoch.

    `packages` groups functions by the part of their names before the first dot. `cpus`, `llvm_versions` and `last_uses` group
    modules. `duplicate_size` and `unused_size` are the bytes that `prune --duplicates` and `prune --unused-for 30d` would remove.
    """

    directory: str
    created: float
    version: str
    since: float
    stats: CacheStats
    periods: tuple[StatsPeriod, ...]
    packages: tuple[Group, ...]
    cpus: tuple[Group, ...]
    llvm_versions: tuple[Group, ...]
    last_uses: tuple[Group, ...]
    biggest: tuple[ModuleRow, ...]
    oldest: tuple[ModuleRow, ...]
    slowest: tuple[ModuleRow, ...]
    most_missed: tuple[Cost, ...]
    most_used: tuple[Cost, ...]
    duplicates: tuple[Duplicate, ...]
    duplicate_modules: int
    duplicate_size: int
    unused_modules: int
    unused_size: int


def collect_story(cache: Cache, since: float | None, limit: int, progress: Callable[[int, int], object] | None = None) -> Story:
    """Return the data of a report on a cache.

    Args:
        cache: the cache.
        since: count from this time on, in seconds since the epoch; None: from the creation of the cache.
        limit: the length of each list.
        progress: called with the numbers of read modules and of all modules.
    """
    from compcache import __version__

    now = time.time()
    stats = cache.stats(since, progress=progress)
    surplus = cache.prune(PrunePolicy(duplicates=True), dry_run=True).removed
    unused = cache.prune(PrunePolicy(unused_for=_UNUSED_DAYS * _DAY), dry_run=True).removed
    modules, functions = _ModuleLists(now, limit), _FunctionLists(limit)
    for module in list_modules(cache, progress=progress):
        modules.add(module)
    for cost in list_costs(cache, progress=progress, duplicate=functions.add_duplicate):
        functions.add(cost)
    return Story(
        directory=cache.path,
        created=now,
        version=__version__,
        since=stats.since,
        stats=stats,
        periods=cache.history(stats.since or None, progress=progress),
        packages=functions.packages.groups(),
        cpus=modules.cpus.groups(),
        llvm_versions=modules.llvm_versions.groups(),
        last_uses=modules.last_uses(),
        biggest=modules.biggest.rows(),
        oldest=modules.oldest.rows(),
        slowest=modules.slowest.rows(),
        most_missed=functions.most_missed.rows(),
        most_used=functions.most_used.rows(),
        duplicates=functions.duplicates.rows(),
        duplicate_modules=len(surplus),
        duplicate_size=sum(module.size for module in surplus),
        unused_modules=len(unused),
        unused_size=sum(module.size for module in unused),
    )


class _Sums:
    """Total sizes in bytes and counts by name."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, name: str, size: int, count: int) -> None:
        """Add a size and a count to the sums of a name."""
        total_size, total_count = self._sums.get(name, (0, 0))
        self._sums[name] = total_size + size, total_count + count

    def groups(self) -> tuple[Group, ...]:
        """Return the groups, the largest first."""
        return tuple(sorted((Group(name, *total) for name, total in self._sums.items()), key=lambda group: (-group.size, group.name)))


class _FirstRows(Generic[_T]):
    """The first `limit` rows in the order of a key. Rows with equal keys keep their order."""

    def __init__(self, limit: int, key: Callable[[_T], Any]) -> None:
        self._limit = limit
        self._key = key
        self._rows: list[_T] = []

    def add(self, row: _T) -> None:
        """Add a row. Rows that can no longer be among the first are removed from time to time, so that memory stays bounded."""
        self._rows.append(row)
        if len(self._rows) > 2 * self._limit + _SURPLUS:
            self._rows = sorted(self._rows, key=self._key)[: self._limit]

    def rows(self) -> tuple[_T, ...]:
        """Return the rows, in order."""
        return tuple(sorted(self._rows, key=self._key)[: self._limit])


class _ModuleLists:
    """The lists and groups of modules in a story."""

    def __init__(self, now: float, limit: int) -> None:
        self._now = now
        self.cpus, self.llvm_versions = _Sums(), _Sums()
        self.biggest = _FirstRows[ModuleRow](limit, lambda row: -row.size)
        self.oldest = _FirstRows[ModuleRow](limit, lambda row: row.created)
        self.slowest = _FirstRows[ModuleRow](limit, lambda row: -row.seconds)
        self._ages = {name: (0, 0) for name, _ in _AGES} | {_NEVER: (0, 0)}

    def add(self, module: ModuleSummary) -> None:
        """Count a module by processor, LLVM version and age, and consider it for the lists of the biggest, oldest and slowest modules."""
        self.cpus.add(module.cpu, module.size, 1)
        self.llvm_versions.add(module.llvm_version, module.size, 1)
        row = _module_row(module)
        for first in (self.biggest, self.oldest, self.slowest):
            first.add(row)
        days = (self._now - module.last_used) / _DAY
        name = next(name for name, end in _AGES if days < end) if module.last_used else _NEVER
        size, count = self._ages[name]
        self._ages[name] = size + module.size, count + 1

    def last_uses(self) -> tuple[Group, ...]:
        """Return the groups of modules by the time since their last use, the shortest time first."""
        return tuple(Group(name, *total) for name, total in self._ages.items())


class _FunctionLists:
    """The lists and groups of functions in a story."""

    def __init__(self, limit: int) -> None:
        self.packages = _Sums()
        self.most_missed = _FirstRows[Cost](limit, lambda row: (-row.misses, row.name))
        self.most_used = _FirstRows[Cost](limit, lambda row: (-row.uses, row.name))
        self.duplicates = _FirstRows[Duplicate](limit, lambda row: (-row.size, row.name))

    def add(self, cost: Cost) -> None:
        """Count a function in its package, and consider it for the lists of the most missed and most used functions."""
        self.packages.add(cost.name.partition(".")[0], cost.size, cost.realizations)
        if cost.misses:
            self.most_missed.add(cost)
        if cost.uses:
            self.most_used.add(cost)

    def add_duplicate(self, name: str, realizations: int, size: int) -> None:
        label, _ = split_name(name)
        self.duplicates.add(Duplicate(label, realizations, size))


def _module_row(module: ModuleSummary) -> ModuleRow:
    """Return the row of a module with the first of its function names."""
    names = [split_name(name)[0] for name, _ in module.functions]
    return ModuleRow(
        module.module_id, tuple(names[:_MOST_NAMED]), len(names[_MOST_NAMED:]), module.size, module.seconds, module.created,
        module.last_used, module.uses,
    )  # fmt: skip
