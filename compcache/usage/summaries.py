"""Frozen summaries of modules, functions and statistics."""

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
        func_name: the name of the function.
        signature: the signature as text.
    """

    func_name: str
    signature: str


class ModuleSummary(NamedTuple):
    """A stored module.

    Attributes:
        module_id: the module_id as 32 hexadecimal digits.
        functions: the functions in the module.
        imports: the functions that the module imports from other modules.
        size: the size of the module in bytes.
        created: the time when the module was added, in seconds since the epoch.
        seconds: the processor time of the compilation.
        cpu: LLVM's name of the processor for which the module was compiled.
        features: the features of the processor that the module requires, in LLVM's terms.
        llvm_version: the version of the LLVM that compiled the module.
        image_kind: the kind of the image, like ``elf-shared``.
        problem: the reason why this host cannot use the module; empty if it can.
        uses: the number of loads of its functions.
        last_used: the last use of the module or of a module that needs it, in seconds since the epoch (0.0: never).
        directory: the directory that holds the module: the cache directory or a layer.
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
    """A cached function. A folded row is a summary of all functions of a label, or of a group (`Cache.add_modules`).

    A use of a function often loads its parts, too. The `uses` of a folded row are the uses of the functions or the uses of their parts,
    whichever number is greater.

    Attributes:
        func_name: the name of the function; in a folded row the label of several functions, or the name of the group.
        signature: the signature; in a folded row the signature of the newest usable function; ``group`` for a group.
        realizations: the number of stored copies.
        size: the total size of the modules in bytes.
        created: the time when the newest copy was added, in seconds since the epoch.
        problem: the reason why this host can use no copy; empty if it can use one.
        modules: the module_ids of the modules.
        uses: the number of loads.
        last_used: the last use of the function or of a module that imports it, in seconds since the epoch (0.0: never).
        directories: the directories that hold the function: the cache directory or layers.
        misses: the number of requests without a usable copy, forgotten after a month without such a request.
        part_of: the function or label for which the function was made (`ModuleSource.part_of`); empty for other functions.
        variants: the number of functions in a folded row.
        parts: the number of functions that are parts of the function.
        entries: the number of entries of data that require its modules, or have its name or label.
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
    """An entry of data. `size` is the size of its data in bytes.

    `module_id` identifies the file that has contained the entry since `created`. `pack` says whether this file is a pack, which contains
    only entries, or a module. The entry counts only if the modules in `requires` (module_ids) exist. `directory` is the directory that
    holds the entry, the cache directory or a layer.
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
    """A source of a group. `label` is the name of its source file; `functions` are its exported functions and variables."""

    label: str
    functions: tuple[str, ...]


class GroupSummary(NamedTuple):
    """A group of sources that were added together.

    Attributes:
        name: the name of the group.
        members: the members of the newest module of the group, in the order in which they were given.
        modules: the module_ids of the modules for all targets, from all additions of this name.
        size: the total size of the modules in bytes.
        created: the time when the newest module was added, in seconds since the epoch.
        directories: the directories that hold the group: the cache directory or layers.
    """

    name: str
    members: tuple[MemberSummary, ...]
    modules: tuple[str, ...]
    size: int
    created: float
    directories: tuple[str, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the exports of all members, each once."""
        return tuple(dict.fromkeys([name for member in self.members for name in member.functions]))


class RemoteStats(NamedTuple):
    """Counters of all remote stores of a cache, or of one remote store, over all processes that use the cache.

    Attributes:
        hits: fetched modules.
        misses: requested functions that the store did not have.
        late: requests whose answer came after the function was compiled.
        skipped: requests that were not sent, because the store had failed before.
        rejected: fetched modules that were not used, because they were damaged or had no trusted signature.
        errors: look-ups that failed.
        size: the total size of the fetched modules in bytes.
        answers: requests that were answered.
        seconds: the total time until the answers.
        offered: modules that were queued for upload.
        dropped: modules that were not queued for upload, because the queue was full.
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
        """Return the mean time until an answer in seconds; 0.0 without answers."""
        return self.seconds / self.answers if self.answers else 0.0


@dataclass(frozen=True, slots=True)
class CacheStats(Shown):
    """The content of a cache, and the statistics of all processes that use it.

    In a cache of thousands of modules, the content is a sum of numbers that are stored beside the index. They count removed modules until
    the next prune, and a module or function in several segments of the index several times.

    Attributes:
        directory: the path of the cache directory.
        modules, functions, realizations: the numbers of modules, of names of functions, and of stored copies of functions.
        size: the total size of the modules in bytes.
        max_size: the size limit in bytes; None for no limit.
        since: the time from which the counters count, in seconds since the epoch; 0.0: from the creation of the cache.
        hits: the number of functions found and loaded, without functions that were already in memory.
        misses: the number of requested functions that were not in the cache or not usable.
        miss_reasons: the misses by reason: absent, cpu, damaged, dependency, global, ...
        loads: the number of modules loaded, each counted once per process.
        compilations, compile_seconds: the number of compiled modules, and the processor time of their compilation.
        saved_seconds: the processor time that compiling the loaded modules had taken; for removed modules and those of layers, the mean.
        added_modules, added_size: the number of published modules, and their total size in bytes.
        evicted_modules, evicted_size: the number of modules that prunes removed, with automatic prunes, and their total size in bytes.
        corrupt: the number of damaged files moved to quarantine.
        remote: the statistics of all remote stores together.
        remote_stores: the statistics of each remote store, by its address.
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
        """Return the share of hits in the requests not answered from memory; 0.0 without such requests."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0


class StatsPeriod(NamedTuple):
    """The counters of all processes for an hour, or for a day if the day was more than a month ago.

    Attributes:
        start: the start of the period, in seconds since the epoch.
        hits: the number of hits, as in `CacheStats`.
        misses: the number of misses, as in `CacheStats`.
        miss_reasons: the misses by reason, as in `CacheStats`.
        saved_seconds: the processor time that compiling the loaded modules had taken.
        compile_seconds: the processor time spent on compilation.
        added_size: the total size of the added modules in bytes.
        evicted_size: the total size of the modules removed by prunes, in bytes.
    """

    start: float
    hits: int
    misses: int
    miss_reasons: dict[str, int]
    saved_seconds: float
    compile_seconds: float
    added_size: int
    evicted_size: int
