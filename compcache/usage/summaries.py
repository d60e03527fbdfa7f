"""Summaries of modules, functions and statistics. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from compcache.display import Shown

__all__ = [
    "CacheStats", "EntrySummary", "ExportedFunction", "FunctionSummary", "GroupSummary", "MemberSummary", "ModuleSummary", "RemoteStats",
    "StatsPeriod",
]  # fmt: skip


class ExportedFunction(NamedTuple):
    """A function that a module holds."""

    func_name: str
    signature: str


class ModuleSummary(NamedTuple):
    """One stored module.

    `functions` are those that it holds, `imports` the functions that it takes from other modules; `size` is that of
    its file in bytes; `created` is in seconds since the epoch, `seconds` is the compile time; `uses` counts the loads of
    its functions; `last_used` is the last use of it or of a module that needs it (0.0: never); `problem` says why this
    host cannot use it, and is empty if it can; `directory` is the cache that holds it, this one or a layer.
    """

    module_id: str
    functions: tuple[ExportedFunction, ...]
    imports: tuple[str, ...]
    size: int
    created: float
    seconds: float
    cpu: str
    features: str
    llvm_version: str
    image_kind: str
    problem: str
    uses: int
    last_used: float
    directory: str


class FunctionSummary(NamedTuple):
    """One cached function: the number of its realizations, their modules, and the total size of these in bytes.

    `created` is that of the newest; `uses` counts loads of the function; `last_used` is the last use of it or of a module
    that imports it (0.0: never); `problem` is empty if this host can use a realization; `directories` are the caches that
    hold one, this one or layers; `misses` counts the requests that found no usable realization, for as long as there is one a
    month. `part_of` is the function, or the label of one, that it was made for (`ModuleSource.part_of`).

    A folded one is all functions of a label, and what belongs to them: `func_name` is the label where there are several, `signature` that
    of the newest that can be used, `variants` their number. `parts` are the functions that are parts of them, `entries` the entries of
    data that require their modules, or have their names or their label. `modules` and `size` are those of all that. A use of a function
    often loads its parts, too, so that `uses` are those of the functions or of their parts, whichever are more. A folded group
    (`Cache.add_modules`) has its name and the signature ``group``; its functions are `parts`.
    """

    func_name: str
    signature: str
    realizations: int
    size: int
    created: float
    problem: str
    modules: tuple[str, ...]
    uses: int
    last_used: float
    directories: tuple[str, ...]
    misses: int
    part_of: str = ""
    variants: int = 1
    parts: int = 0
    entries: int = 0


class EntrySummary(NamedTuple):
    """One entry of data: `size` is that of its data in bytes, `module_id` the file that has it, from the time `created`.

    `pack` tells whether that holds entries alone; else it is a module, with which the entry came. `requires` are the module_ids without
    which it is none; `directory` is the cache that holds it, this one or a layer.
    """

    name: str
    kind: str
    size: int
    created: float
    module_id: str
    pack: bool
    requires: tuple[str, ...]
    directory: str


class MemberSummary(NamedTuple):
    """One source of a group: the file that its code says it is of, and the functions and variables that it exports."""

    label: str
    functions: tuple[str, ...]


class GroupSummary(NamedTuple):
    """One group: its members, in the order in which they were given, as the newest of its modules has them.

    `modules` are those for all targets, and of all additions of this name, `size` is that of their files in bytes. `created` is that of the
    newest; `directories` are the caches that hold one, this one or layers.
    """

    name: str
    members: tuple[MemberSummary, ...]
    modules: tuple[str, ...]
    size: int
    created: float
    directories: tuple[str, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """What all members export."""
        return tuple(dict.fromkeys([name for member in self.members for name in member.functions]))


class RemoteStats(NamedTuple):
    """What the remote stores did for the processes that use a cache, or one of them.

    `hits` are modules that came from it, of `size` bytes in all; `misses` are functions that it did not have; `late` are questions
    whose answer came after the compile; `skipped` are questions that were not asked because the store is left alone after failures;
    `rejected` are modules that were not taken (damaged, or without a trusted signature); `errors` are look-ups that failed.
    `answers` are answered questions, which took `seconds` in all. `offered` are modules that were queued for upload, and `dropped` those
    that the queue had no room for.
    """

    hits: int = 0
    misses: int = 0
    late: int = 0
    skipped: int = 0
    rejected: int = 0
    errors: int = 0
    size: int = 0
    answers: int = 0
    seconds: float = 0.0
    offered: int = 0
    dropped: int = 0

    @property
    def latency(self) -> float:
        """The mean seconds until an answer; 0.0 without answers."""
        return self.seconds / self.answers if self.answers else 0.0


@dataclass(frozen=True, slots=True)
class CacheStats(Shown):
    """The content of a cache, and the statistics of its processes since `since` (0.0: since its creation).

    Attributes:
        modules, functions, realizations: the number of modules, of distinct functions, and of stored copies of functions.
        directory: the cache directory.
        size: that of the module files, in bytes.
        max_size: the size limit in bytes; None for no limit.
        since: the time from which the counters count, in seconds since the epoch.
        hits: functions found and loaded, not those that were in memory already.
        misses: functions that were not in the cache or not usable.
        miss_reasons: misses by reason: absent, cpu, damaged, dependency, global, ...
        loads: modules loaded, each counted once per process.
        compilations, compile_seconds: modules compiled, and the total time.
        saved_seconds: the compile times of modules that were loaded instead.
        added_modules, added_size: modules published, and their size.
        evicted_modules, evicted_size: modules that prunes removed, automatic ones included, and their size.
        corrupt: damaged files moved to quarantine.
        remote: what came from the remote stores.
        remote_stores: by the address of a store, what it was asked and gave.
        counters: all counters, by name.
    """

    directory: str
    modules: int
    functions: int
    realizations: int
    size: int
    max_size: int | None
    since: float
    hits: int
    misses: int
    miss_reasons: dict[str, int]
    loads: int
    compilations: int
    compile_seconds: float
    saved_seconds: float
    added_modules: int
    added_size: int
    evicted_modules: int
    evicted_size: int
    corrupt: int
    remote: RemoteStats
    remote_stores: dict[str, RemoteStats]
    counters: dict[str, float]

    @property
    def hit_rate(self) -> float:
        """The share of hits among requests not answered from memory; 0.0 without requests."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0


class StatsPeriod(NamedTuple):
    """What all processes counted from `start` (seconds since the epoch) on, for an hour, or a day if that is a month ago.

    `hits`, `misses` and `miss_reasons` are as in `CacheStats`; `saved_seconds` are the compile times of modules that were
    loaded instead, `compile_seconds` those that were spent; bytes are those of modules that were added and evicted.
    """

    start: float
    hits: int
    misses: int
    miss_reasons: dict[str, int]
    saved_seconds: float
    compile_seconds: float
    added_size: int
    evicted_size: int
