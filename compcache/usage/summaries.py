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
    """A function in a module.

    Attributes:
        func_name: its name.
        signature: its signature as text.
    """

    func_name: str
    signature: str


class ModuleSummary(NamedTuple):
    """One stored module.

    Attributes:
        module_id: its 32 hexadecimal digits.
        functions: those that it holds.
        imports: the functions that it takes from other modules.
        size: that of its file, in bytes.
        created: when it was compiled, in seconds since the epoch.
        seconds: the processor time that it took.
        cpu: the processor that it is for, in LLVM's words.
        features: what it requires of one, likewise.
        llvm_version: the version of LLVM that compiled it.
        image_kind: the kind of its image, like ``elf-shared``.
        problem: why this host cannot use it; empty where it can.
        uses: the loads of its functions.
        last_used: the last use of it or of a module that needs it, in seconds since the epoch (0.0: never).
        directory: the cache that holds it: this one, or a layer.
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
    """One cached function, or with `fold` all functions of a label, or a group (`Cache.add_modules`), and what belongs to them.

    A use of a function often loads its parts, too: the `uses` of a folded one are those of the functions or of their parts,
    whichever are more.

    Attributes:
        func_name: its name; of a folded one the label where there are several functions, or the name of the group.
        signature: its signature; of a folded one that of the newest that can be used, of a group ``group``.
        realizations: the number of stored copies.
        size: that of their modules, in bytes.
        created: when the newest was compiled, in seconds since the epoch.
        problem: why this host can use no realization; empty where it can.
        modules: the ids of the modules.
        uses: how often it was loaded.
        last_used: the last use of it or of a module that imports it, in seconds since the epoch (0.0: never).
        directories: the caches that hold it: this one, or layers.
        misses: the requests that found no usable realization, for as long as there is one a month.
        part_of: the function, or the label of one, that it was made for (`ModuleSource.part_of`).
        variants: of a folded one, the number of functions.
        parts: the number of functions that are parts of it.
        entries: the number of entries of data that require its modules, or have its name or its label.
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
    """An entry of data: `size` is the size of its data in bytes, `module_id` the file that contains it, since the time `created`.

    `pack` tells whether that file holds only entries; otherwise it is a module, with which the entry came. Without the modules in
    `requires` (module_ids) the entry does not count. `directory` is the cache that holds it, this one or a layer.
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
    """One source of a group: its file name, from the code, and its exported functions and variables."""

    label: str
    functions: tuple[str, ...]


class GroupSummary(NamedTuple):
    """One group of modules that were added together.

    Attributes:
        name: its name.
        members: its members in the order in which they were given, as the newest of its modules has them.
        modules: the ids of its modules for all targets, and of all additions of this name.
        size: that of their files, in bytes.
        created: when the newest was compiled, in seconds since the epoch.
        directories: the caches that hold one: this one, or layers.
    """

    name: str
    members: tuple[MemberSummary, ...]
    modules: tuple[str, ...]
    size: int
    created: float
    directories: tuple[str, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """Return all exports of the members."""
        return tuple(dict.fromkeys([name for member in self.members for name in member.functions]))


class RemoteStats(NamedTuple):
    """What the remote stores did for the processes that use a cache, or what one of them did.

    Attributes:
        hits: modules that came from it.
        misses: functions that it did not have.
        late: questions whose answer came after the compilation.
        skipped: questions that were not asked, because the store had failed.
        rejected: modules that were not taken: damaged, or without a trusted signature.
        errors: look-ups that failed.
        size: that of the `hits`, in bytes.
        answers: questions that were answered.
        seconds: how long these took.
        offered: modules that were queued for upload.
        dropped: those that the queue had no room for.
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
        compilations, compile_seconds: modules compiled, and the processor time that took, in seconds.
        saved_seconds: the processor time that modules had taken that were loaded instead.
        added_modules, added_size: modules published, and their size.
        evicted_modules, evicted_size: modules that prunes removed, automatic ones included, and their size.
        corrupt: damaged files moved to quarantine.
        remote: the statistics of the remote stores.
        remote_stores: the same for each store, by its address.
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
    """What all processes counted in an hour, or in a day if that was more than a month ago.

    Attributes:
        start: when it began, in seconds since the epoch.
        hits: as in `CacheStats`.
        misses: likewise.
        miss_reasons: likewise.
        saved_seconds: the processor time that modules had taken that were loaded instead.
        compile_seconds: the processor time that was spent.
        added_size: that of modules that were added, in bytes.
        evicted_size: that of modules that were removed by prunes, in bytes.
    """

    start: float
    hits: int
    misses: int
    miss_reasons: dict[str, int]
    saved_seconds: float
    compile_seconds: float
    added_size: int
    evicted_size: int
