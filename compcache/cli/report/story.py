"""The content of ``compcache report`` as data. The facade answers every question; nothing is formatted here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from compcache.cli.names import split
from compcache.frontend import list_costs, list_functions, list_modules
from compcache.maintain.policy import PrunePolicy
from compcache.usage.costs import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.cache import Cache
    from compcache.usage.summaries import CacheStats, FunctionSummary, ModuleSummary, StatsPeriod

__all__ = ["Duplicate", "Group", "ModuleRow", "Story", "tell"]

_DAY = 86400
_UNUSED_DAYS = 30
_NEVER = "never"
#: How many rows more than needed are held.
_SOME = 100
_T = TypeVar("_T")
#: The upper ends, in days, of the classes of the last use.
_AGES = (("today", 1), ("this week", 7), ("this month", 30), ("this quarter", 90), ("longer ago", float("inf")))


class Group(NamedTuple):
    """Modules or functions that have something in common: `size` in bytes; `number` of them."""

    name: str
    size: int
    number: int


class ModuleRow(NamedTuple):
    """One module: `functions` are the first of its names, `more` the number of the others; times as in `ModuleSummary`."""

    module_id: str
    functions: tuple[str, ...]
    more: int
    size: int
    seconds: float
    created: float
    last_used: float
    uses: int


class Duplicate(NamedTuple):
    """A function that several modules realize. `size` is the total size of these modules."""

    name: str
    realizations: int
    size: int


class Story(NamedTuple):
    """A cache at one moment. Sizes are in bytes, times in seconds since the epoch.

    `packages` are functions by what precedes the first dot of their names, `cpus`, `llvm_versions` and `last_uses` modules.
    `duplicate_size` and `unused_size` are the bytes that `prune --duplicates` and `prune --unused-for 30d` would remove.
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


def tell(cache: Cache, since: float | None, limit: int, progress: Callable[[int, int], object] | None = None) -> Story:
    """Ask a cache for its story, with at most `limit` rows in each list."""
    from compcache import __version__

    now = time.time()
    stats = cache.stats(since, progress=progress)
    surplus = cache.prune(PrunePolicy(duplicates=True), dry_run=True).removed
    unused = cache.prune(PrunePolicy(unused_for=_UNUSED_DAYS * _DAY), dry_run=True).removed
    modules, prices = _Modules(now, limit), _Prices(limit)
    for module in list_modules(cache, progress=progress):
        modules.add(module)
    for price in list_costs(cache, progress=progress):
        prices.add(price)
    return Story(
        directory=cache.path,
        created=now,
        version=__version__,
        since=stats.since,
        stats=stats,
        periods=cache.history(stats.since or None, progress=progress),
        packages=prices.packages.groups(),
        cpus=modules.cpus.groups(),
        llvm_versions=modules.llvm_versions.groups(),
        last_uses=modules.last_uses(),
        biggest=modules.biggest.rows(),
        oldest=modules.oldest.rows(),
        slowest=modules.slowest.rows(),
        most_missed=prices.most_missed.rows(),
        most_used=prices.most_used.rows(),
        duplicates=_duplicates(list_functions(cache, progress=progress), limit),
        duplicate_modules=len(surplus),
        duplicate_size=sum(module.size for module in surplus),
        unused_modules=len(unused),
        unused_size=sum(module.size for module in unused),
    )


class _Sums:
    """Sums by name."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, name: str, size: int, count: int) -> None:
        before = self._sums.get(name, (0, 0))
        self._sums[name] = before[0] + size, before[1] + count

    def groups(self) -> tuple[Group, ...]:
        """Return the groups, the largest first."""
        return tuple(sorted((Group(name, *total) for name, total in self._sums.items()), key=lambda group: (-group.size, group.name)))


class _First(Generic[_T]):
    """The first `limit` rows in the order of a key, equal ones as they come."""

    def __init__(self, limit: int, key: Callable[[_T], Any]) -> None:
        self._limit = limit
        self._key = key
        self._rows: list[_T] = []

    def add(self, row: _T) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * self._limit + _SOME:
            self._rows = sorted(self._rows, key=self._key)[: self._limit]

    def rows(self) -> tuple[_T, ...]:
        """Return the rows, in order."""
        return tuple(sorted(self._rows, key=self._key)[: self._limit])


class _Modules:
    """Sentences about the modules."""

    def __init__(self, now: float, limit: int) -> None:
        self._now = now
        self.cpus, self.llvm_versions = _Sums(), _Sums()
        self.biggest = _First[ModuleRow](limit, lambda row: -row.size)
        self.oldest = _First[ModuleRow](limit, lambda row: row.created)
        self.slowest = _First[ModuleRow](limit, lambda row: -row.seconds)
        self._ages = {name: (0, 0) for name, _ in _AGES} | {_NEVER: (0, 0)}

    def add(self, module: ModuleSummary) -> None:
        self.cpus.add(module.cpu, module.size, 1)
        self.llvm_versions.add(module.llvm_version, module.size, 1)
        row = _row(module)
        for first in (self.biggest, self.oldest, self.slowest):
            first.add(row)
        days = (self._now - module.last_used) / _DAY
        name = next(name for name, end in _AGES if days < end) if module.last_used else _NEVER
        size, count = self._ages[name]
        self._ages[name] = size + module.size, count + 1

    def last_uses(self) -> tuple[Group, ...]:
        """Return the modules by the time of their last use, the latest first."""
        return tuple(Group(name, *total) for name, total in self._ages.items())


class _Prices:
    """Sentences about the functions."""

    def __init__(self, limit: int) -> None:
        self.packages = _Sums()
        self.most_missed = _First[Cost](limit, lambda row: (-row.misses, row.name))
        self.most_used = _First[Cost](limit, lambda row: (-row.uses, row.name))

    def add(self, price: Cost) -> None:
        self.packages.add(price.name.partition(".")[0], price.size, price.realizations)
        if price.misses:
            self.most_missed.add(price)
        if price.uses:
            self.most_used.add(price)


def _row(module: ModuleSummary, shown: int = 3) -> ModuleRow:
    names = [split(name)[0] for name, _ in module.functions]
    return ModuleRow(
        module.module_id, tuple(names[:shown]), len(names[shown:]), module.size, module.seconds, module.created, module.last_used,
        module.uses,
    )  # fmt: skip


def _duplicates(functions: Iterable[FunctionSummary], limit: int) -> tuple[Duplicate, ...]:
    first = _First[Duplicate](limit, lambda row: (-row.size, row.name))
    for row in functions:
        if row.realizations > 1:
            first.add(Duplicate(split(row.func_name)[0], row.realizations, row.size))
    return first.rows()
