"""What the page of ``compcache report`` says, as data: everything is asked of the facade, nothing is formatted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.cli.commands.read.top import Cost, costs
from compcache.cli.names import split
from compcache.maintain.policy import PrunePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.cache import Cache
    from compcache.usage.summaries import CacheStats, FunctionSummary, ModuleSummary, StatsPeriod

__all__ = ["Duplicate", "Group", "ModuleRow", "Story", "tell"]

_DAY = 86400
_UNUSED_DAYS = 30
_NEVER = "never"
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
    """A function that several modules realize; `size` is that of these modules."""

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
    modules = cache.modules(progress=progress)
    functions = cache.functions(progress=progress)
    prices = costs(modules, functions)
    surplus = cache.prune(PrunePolicy(duplicates=True), dry_run=True).removed
    unused = cache.prune(PrunePolicy(unused_for=_UNUSED_DAYS * _DAY), dry_run=True).removed
    rows = [_row(module) for module in modules]

    def first(key: Callable[[ModuleRow], float]) -> tuple[ModuleRow, ...]:
        return tuple(sorted(rows, key=key)[:limit])

    return Story(
        directory=cache.path,
        created=now,
        version=__version__,
        since=stats.since,
        stats=stats,
        periods=cache.history(stats.since or None, progress=progress),
        packages=_groups((row.name.partition(".")[0], row.size, row.realizations) for row in prices),
        cpus=_groups((module.cpu, module.size, 1) for module in modules),
        llvm_versions=_groups((module.llvm_version, module.size, 1) for module in modules),
        last_uses=_by_last_use(modules, now),
        biggest=first(lambda row: -row.size),
        oldest=first(lambda row: row.created),
        slowest=first(lambda row: -row.seconds),
        most_missed=_most(prices, lambda row: row.misses, limit),
        most_used=_most(prices, lambda row: row.uses, limit),
        duplicates=_duplicates(functions, limit),
        duplicate_modules=len(surplus),
        duplicate_size=sum(module.size for module in surplus),
        unused_modules=len(unused),
        unused_size=sum(module.size for module in unused),
    )


def _groups(items: Iterable[tuple[str, int, int]]) -> tuple[Group, ...]:
    """The sums by name, the largest first."""
    sums: dict[str, tuple[int, int]] = {}
    for name, size, count in items:
        before = sums.get(name, (0, 0))
        sums[name] = before[0] + size, before[1] + count
    return tuple(sorted((Group(name, *total) for name, total in sums.items()), key=lambda group: (-group.size, group.name)))


def _by_last_use(modules: Iterable[ModuleSummary], now: float) -> tuple[Group, ...]:
    """The modules by the time of their last use, the latest first."""
    sums = {name: (0, 0) for name, _ in _AGES} | {_NEVER: (0, 0)}
    for module in modules:
        days = (now - module.last_used) / _DAY
        name = next(name for name, end in _AGES if days < end) if module.last_used else _NEVER
        size, count = sums[name]
        sums[name] = size + module.size, count + 1
    return tuple(Group(name, *total) for name, total in sums.items())


def _row(module: ModuleSummary, shown: int = 3) -> ModuleRow:
    names = [split(name)[0] for name, _ in module.functions]
    return ModuleRow(
        module.module_id, tuple(names[:shown]), len(names[shown:]), module.size, module.seconds, module.created, module.last_used,
        module.uses,
    )  # fmt: skip


def _most(rows: Iterable[Cost], key: Callable[[Cost], int], limit: int) -> tuple[Cost, ...]:
    return tuple(sorted((row for row in rows if key(row)), key=lambda row: (-key(row), row.name))[:limit])


def _duplicates(functions: Iterable[FunctionSummary], limit: int) -> tuple[Duplicate, ...]:
    several = [Duplicate(split(row.func_name)[0], row.realizations, row.size) for row in functions if row.realizations > 1]
    return tuple(sorted(several, key=lambda row: (-row.size, row.name))[:limit])
