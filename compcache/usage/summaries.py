"""Records of what a cache holds and of what its processes counted. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CacheStats", "FunctionSummary", "ModuleSummary"]


class ModuleSummary(NamedTuple):
    """One stored module.

    `functions` are (func_name, signature), `imports` the functions that it takes from other modules; `size` is that of
    its file in bytes; `created` is in seconds since the epoch, `seconds` is how long compiling took; `uses` is how
    often a function was loaded from it; it, or what needs it, was last used at `last_used` (0.0: never); `problem` says why this host cannot use it, and is
    empty where it can.
    """

    module_id: str
    functions: tuple[tuple[str, str], ...]
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


class FunctionSummary(NamedTuple):
    """One cached function: how many modules realize it, which ones, their size in bytes together.

    `created` is when the newest of them was; `uses` is how often one was loaded; `last_used` is when one, or a module that imports
    it, was last used (0.0: never);
    `problem` is empty where this host can use one of them.
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


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache holds, and what its processes counted since `since` (0.0: ever, or since the last zeroing).

    Attributes:
        modules, functions, realizations: how many modules; distinct functions in them; copies of functions.
        bytes: the size of the module files.
        max_size: the size in bytes that additions keep; None for no limit.
        since: what the counters count from, in seconds since the epoch.
        hits: functions found and loaded, not those that were in memory already.
        misses: functions that were not there or not usable.
        miss_reasons: the same by reason: absent, cpu, damaged, dependency, global, ...
        loads: how often a process loaded a module for the first time.
        compilations, compile_seconds: modules compiled, and the time that took.
        saved_seconds: the compile times of modules that were loaded instead.
        added_modules, added_bytes: what was published.
        evicted_modules, evicted_bytes: what prunes removed, automatic ones included.
        corrupt: damaged files that were put in quarantine.
        counters: everything that was counted, by name.
    """

    path: str
    modules: int
    functions: int
    realizations: int
    bytes: int
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
    added_bytes: int
    evicted_modules: int
    evicted_bytes: int
    corrupt: int
    counters: dict[str, float]

    @property
    def hit_rate(self) -> float:
        """Hits among all requests that were not answered from memory; 0.0 where there were none."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0
