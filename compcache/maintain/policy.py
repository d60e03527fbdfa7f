"""The plan of a prune: a pure function of the modules, a policy and the time.

The least recently used modules are removed first. A use of a function counts as a use of its dependencies. A module that a kept module
needs stays, unless another kept module realizes the same functions. A module is removed together with the modules that would lose an
import. Modules with older code of a plain name need the newest code, as if they imported it, so that no prune brings former code back. This
module uses neither files nor LLVM; `compcache.maintain.prune` carries plans out.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, fields
from datetime import timedelta
from fnmatch import translate
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from compcache.formats.makers import Versions
from compcache.formats.records import version_numbers
from compcache.interrupts import reraise_interrupt
from compcache.usage.limits import parse_duration, read_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from compcache.formats.makers import Maker

__all__ = ["Criteria", "Entry", "Outside", "Plan", "PrunePolicy", "Removal", "fresh_generations", "matcher", "plan_prune"]


_DURATIONS = ("unused_for", "older_than", "stale", "grace", "quarantine_for")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePolicy:
    """The selection of modules and files that a prune removes from a cache.

    A policy without arguments removes only leftovers. Durations are seconds, a `datetime.timedelta`, or text like ``"30d"`` and ``"12h"``.
    Sizes are bytes, or text like ``"5GB"``. Name patterns are shell patterns (``*``, ``?``, ``[abc]``).

    Args:
        max_bytes: remove the least recently used modules until the size of all modules is at most this many bytes.
            Default None, no limit, because additions keep the size limit of the cache.
        max_modules: remove the least recently used modules until at most this many remain, for file systems that limit the
            number of files. Default None, because few file systems do.
        unused_for: remove modules not used for this long. For a module that was never used, the time counts from its creation.
            Default None, because age makes no function wrong.
        older_than: remove modules created longer ago than this, even if they are used, unless a younger module needs them.
            Default None, because age makes no function wrong.
        duplicates: remove modules whose functions other modules realize for the same hosts. Default False, because duplicates are harmless,
            and a process that has loaded a removed module must map another module.
        stale: remove code for CPUs, LLVM versions and platforms of which no module was used or added for this long, and
            directories of other formats that have not changed for this long. Default None, because other hosts that share the
            directory may be switched off for a while.
        min_llvm: remove code compiled by an LLVM older than this version (text like ``"22"`` or ``"21.1"``). Default None, because
            code of an older LLVM is as correct as code of a newer LLVM.
        made_by: remove modules made by these versions of a maker: text like ``"numba<0.66.1"`` or ``"lld>=17,<18"``, or several texts.
            Makers are compcache, llvmlite, llvm, the linker (ld, lld, mold, gold), and makers that front ends name, like numba.
        match: remove only modules whose functions all match one of these patterns; without other criteria, remove all such modules.
            Default empty: modules with any functions.
        keep: keep functions that match one of these patterns, and their dependencies, like pinned functions.
        grace: the least age of a temporary file that is a leftover. The default, one hour, is longer than any publication takes,
            even if the clocks of hosts differ.
        quarantine_for: the time for which damaged files stay in quarantine. The default is a week, to examine them.

    Raises:
        TypeError: a limit, a duration or `min_llvm` has the wrong type.
        ValueError: a limit, a duration, or a version in `min_llvm` or `made_by` is not valid, or a number is negative or NaN.
    """

    max_bytes: int | str | None = None
    max_modules: int | None = None
    unused_for: float | timedelta | str | None = None
    older_than: float | timedelta | str | None = None
    duplicates: bool = False
    stale: float | timedelta | str | None = None
    min_llvm: str | None = None
    made_by: str | Iterable[str] = ()
    match: str | Iterable[str] = ()
    keep: str | Iterable[str] = ()
    grace: float | timedelta | str = 3600.0
    quarantine_for: float | timedelta | str = 7 * 86400.0

    def __post_init__(self) -> None:
        """Convert the fields. Raise `TypeError` or `ValueError` for a value that is not allowed."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("match", "keep", "made_by"):
                value = (value,) if isinstance(value, str) else tuple(value)
                if field.name == "made_by":
                    _require_versions(value)
            elif field.name in _DURATIONS and value is not None:
                value = _to_seconds(field.name, value)
            elif field.name == "max_bytes" and value is not None:
                value = read_size(value, field.name)
            elif field.name == "min_llvm" and value is not None:
                if not isinstance(value, str):
                    raise TypeError(f"min_llvm must be text like '22', not {type(value).__name__}: {value!r}")
                version_numbers(value)
            elif field.name == "max_modules" and not (value is None or isinstance(value, Real)):
                raise TypeError(f"max_modules must be a number of modules, not {type(value).__name__}: {value!r}")
            if isinstance(value, Real) and not value >= 0:  # type: ignore[operator]  # also refuses NaN
                raise ValueError(f"{field.name} must be 0 or more, not {value!r}")
            object.__setattr__(self, field.name, value)

    def allows(self, size: int) -> bool:
        """Return whether modules of this total size are within `max_bytes`.

        Args:
            size: the total size in bytes.
        """
        return not isinstance(self.max_bytes, int) or size <= self.max_bytes

    @property
    def matches_alone(self) -> bool:
        """Return whether `match` is the only criterion, so that all modules that match are removed."""
        conditions = (self.max_bytes, self.max_modules, self.unused_for, self.older_than, self.stale, self.min_llvm)
        return bool(self.match) and not self.duplicates and not self.made_by and all(condition is None for condition in conditions)

    @property
    def has_only_limits(self) -> bool:
        """Return whether no criterion other than `max_bytes` and `max_modules` is set."""
        conditions = (self.unused_for, self.older_than, self.stale, self.min_llvm)
        return not (self.duplicates or self.match or self.made_by) and all(condition is None for condition in conditions)

    @property
    def removes_modules(self) -> bool:
        """Return whether the policy can remove modules, and not only leftovers."""
        return not self.has_only_limits or self.max_bytes is not None or self.max_modules is not None


def _require_versions(specifications: Iterable[str]) -> None:
    """Check specifications of versions of makers. Raise `ValueError` if one is not valid."""
    for specification in specifications:
        Versions.parse(specification)


def _to_seconds(name: str, value: float | timedelta | str) -> float:
    """Convert a duration to seconds.

    Raises:
        TypeError, ValueError: the duration is not valid. The message contains `name`, the name of the argument.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            reraise_interrupt(error)
            raise ValueError(f"{name}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds, a timedelta or text like '30d', not {type(value).__name__}: {value!r}")
    return value


class Entry(NamedTuple):
    """A module as input of the policy.

    `created` and `used` (0.0: never) are in seconds since the epoch. `imports` are the func_names that the module needs from other
    modules. `newest` are the plain names, each after a NUL, of which it has the newest code. A module with older code of such a name has
    the same text in its `imports`, because look-ups would use the older code if the newest code were gone. Code of the same `target` runs
    on the same hosts. Modules of the same `generation` (CPU, LLVM version and platform) become stale together. A pack, which holds only
    entries of data, counts for the size limit and not for the number of modules. `fault` describes a known fault of one of the `makers`.
    `parts` are the modules from which a linked closure is derived. A linked closure needs its parts, provides no function to other modules,
    and is removed first if a limit is exceeded. `passed_over` are functions of a module that lacks an import; other modules provide them.
    """

    module_id: bytes
    size: int
    created: float
    used: float
    functions: tuple[str, ...]
    imports: tuple[str, ...]
    target: object = None
    generation: object = None
    pinned: bool = False
    llvm: str = ""
    is_pack: bool = False
    makers: tuple[Maker, ...] = ()
    fault: str = ""
    parts: tuple[bytes, ...] = ()
    newest: tuple[str, ...] = ()
    passed_over: frozenset[str] = frozenset()

    @property
    def provides(self) -> tuple[str, ...]:
        """The names that other modules may need from this module: its functions, and `newest`."""
        functions = tuple([name for name in self.functions if name not in self.passed_over]) if self.passed_over else self.functions
        return functions + self.newest


class Removal(NamedTuple):
    """An entry to remove with its reason: fault, made_by, unused, old, duplicate, stale, llvm, matched, size, count or derived."""

    entry: Entry
    reason: str


class Plan(NamedTuple):
    """The result of planning: the entries to remove, first those with a known fault, then the others, dependents before dependencies.

    `needed` are entries that the policy selects and a kept entry needs. `exceeded` is the limit that is still exceeded: "size", "count",
    or "" for none.
    """

    removed: tuple[Removal, ...]
    needed: tuple[Entry, ...]
    exceeded: str = ""


class Outside(NamedTuple):
    """The modules that are not part of a plan, if only some modules are planned.

    No such module imports or realizes a function of the planned modules.

    Attributes:
        size: the total size of these modules in bytes.
        modules: the number of these modules.
        horizon: all of these modules were used after this time. Limits remove only modules that were last used before this time.
        fresh: the generations that are not stale (`fresh_generations` of all modules).
    """

    size: int = 0
    modules: int = 0
    horizon: float = inf
    fresh: frozenset[object] = frozenset()


def plan_prune(entries: Sequence[Entry], policy: PrunePolicy, now: float, outside: Outside | None = None) -> Plan:
    """Return the plan of a prune.

    Args:
        entries: the modules of the cache, or a part of them.
        policy: the policy of the prune.
        now: the time from which ages count, in seconds since the epoch. Later times of creation and use count as now.
        outside: a summary of the other modules; None if `entries` are all modules.
    """
    outside = Outside(fresh=fresh_generations(entries, policy, now)) if outside is None else outside
    faulty = [entry for entry in entries if entry.fault and not entry.pinned]  # look-ups do not use modules with a known fault
    faulty += _derived_closures(entries, {entry.module_id for entry in faulty})
    if faulty:
        faulty_ids = {entry.module_id for entry in faulty}
        sound = [entry for entry in entries if entry.module_id not in faulty_ids]
        plan = plan_prune(sound, policy, now, outside)
        return plan._replace(removed=(*[Removal(entry, "fault") for entry in faulty], *plan.removed))
    if not policy.removes_modules:
        return Plan((), ())
    population = _Population(entries, now)
    protected = population.protected_entries(policy)
    removable = _removable_entries(entries, policy, protected)
    reasons = _select_by_criteria(Criteria(policy, now, outside.fresh), population, removable)
    needed = population.keep_needed(reasons)
    if policy.duplicates:
        _add_duplicates(population, removable, reasons)
    exceeded = _enforce_limits(population, policy, removable, reasons, outside)
    _add_derived(entries, reasons)
    order = sorted(reasons, key=population.rank.__getitem__)
    return Plan(
        tuple([Removal(entries[number], reasons[number]) for number in order]),
        tuple([entries[number] for number in sorted(needed) if number not in reasons]),
        exceeded,
    )


def _append_number(numbers: dict[str, Sequence[int]], name: str, number: int) -> None:
    """Add a number to the numbers of a name. A single number, the usual case, is in a tuple, which takes half the memory of a list."""
    existing = numbers.get(name)
    if isinstance(existing, list):
        existing.append(number)
    else:
        numbers[name] = (number,) if existing is None else [*existing, number]


class _Population:
    """The entries of a plan, referred to by their numbers.

    Attributes:
        providers: the entries that realize a function, by func_name.
        importers: the entries that import a function, by func_name.
        recency: the last use or the creation of each entry.
        used: the last use of each entry or of its dependents.
        rank: the position of each entry in the order of removal.
        position: the position of each entry in the order of `recency`, the newest first.
    """

    def __init__(self, entries: Sequence[Entry], now: float) -> None:
        self.entries = entries
        self.providers: dict[str, Sequence[int]] = {}
        self.importers: dict[str, Sequence[int]] = {}
        for number, entry in enumerate(entries):
            for name in entry.provides:
                _append_number(self.providers, name, number)
        for number, entry in enumerate(entries):
            for name in entry.imports:
                if name in self.providers:  # no removal loses an import that no entry provides
                    _append_number(self.importers, name, number)
        self.recency = array("d", [min(max(entry.used, entry.created), now) for entry in entries])
        self.used = array("d", self.recency)
        self._order = self._newest_first()
        self.position = array("q", bytes(8 * len(entries)))
        for position, number in enumerate(self._order):
            self.position[number] = position
        self.rank = array("q", bytes(8 * len(entries)))
        self.propagate_uses(())

    def _newest_first(self) -> array[int]:
        """Return the numbers of the entries by `recency`, the newest first; equal ones by creation, the latest first, then by module_id.

        Sort three times, the least important key first, because comparing tuples of keys takes three times as long.
        """
        entries, recency = self.entries, self.recency
        order = sorted(range(len(entries)), key=[entry.module_id for entry in entries].__getitem__)
        order.sort(key=[entry.created for entry in entries].__getitem__, reverse=True)
        order.sort(key=recency.__getitem__, reverse=True)
        return array("q", order)

    def propagate_uses(self, removed: Collection[int]) -> None:
        """Propagate uses to dependencies and rank the entries, except those in `removed`.

        A depth-first walk that starts at the most recently used entries reaches each entry first with the latest use of all dependents of
        the entry, and leaves the entry before these dependents. Entries in `removed` keep their ranks, which come before all other ranks.
        """
        alive = [number for number in self._order if number not in removed] if removed else self._order
        visited = bytearray(len(self.entries))
        finished = array("q")
        for root in alive:
            if visited[root]:
                continue
            visited[root] = 1
            walk = [(root, self._dependencies(root, removed))]
            while walk:
                number, dependencies = walk[-1]
                for dependency in dependencies:
                    if not visited[dependency]:
                        visited[dependency] = 1
                        walk.append((dependency, self._dependencies(dependency, removed)))
                        break
                else:
                    self.used[number] = self.recency[root]
                    finished.append(number)
                    walk.pop()
        # The least recently used entries come first. Among entries used at the same time, dependents come before dependencies.
        first = len(self.entries) if removed else 0
        finished.reverse()
        for position, number in enumerate(sorted(finished, key=self.used.__getitem__)):
            self.rank[number] = first + position

    def _dependencies(self, number: int, removed: Collection[int]) -> Iterator[int]:
        """Yield, for each import of an entry, the number of the most recently used provider that is not in `removed`, if there is one."""
        for name in self.entries[number].imports:
            providers = self.providers.get(name, ())
            if removed:
                providers = [provider for provider in providers if provider not in removed]
            if providers:
                yield providers[0] if len(providers) == 1 else min(providers, key=self.position.__getitem__)

    def protected_entries(self, policy: PrunePolicy) -> set[int]:
        """Return the numbers of the entries that are pinned or match `keep`, and of their dependencies."""
        matches = matcher(policy.keep)
        protected = [
            number for number, entry in enumerate(self.entries) if entry.pinned or (policy.keep and any(map(matches, entry.functions)))
        ]
        visited = set(protected)
        for number in protected:  # the loop appends to the list
            for dependency in self._dependencies(number, ()):
                if dependency not in visited:
                    visited.add(dependency)
                    protected.append(dependency)
        return visited

    def keep_needed(self, reasons: dict[int, str]) -> set[int]:
        """Remove from `reasons` the entries that a kept entry needs and no kept entry replaces. Return the numbers of these entries."""
        rescued: set[int] = set()
        if not reasons:
            return rescued
        staying = [number for number in range(len(self.entries)) if number not in reasons]
        provided = {name for number in staying for name in self.entries[number].provides}
        for number in staying:  # the loop appends to the list
            for name in self.entries[number].imports:
                if name in provided or name not in self.providers:
                    continue
                best = min(self.providers[name], key=self.position.__getitem__)
                del reasons[best]
                rescued.add(best)
                staying.append(best)
                provided.update(self.entries[best].provides)
        return rescued

    def with_dependents(self, number: int, alive: bytearray) -> list[int]:
        """Return the numbers of an entry and of the live entries that would lose an import without it, the most indirect ones first."""
        if not self._has_importer(number, alive):
            return [number]  # the usual case, because the least recently used entries are removed first
        group = [number]
        visited = {number}
        lost_counts: dict[str, int] = {}  # by name: how many of the live entries with this function are in `group`
        for member in group:  # the loop appends to the list
            for name in self.entries[member].provides:
                if name not in self.importers:
                    continue
                lost_counts[name] = lost_counts.get(name, 0) + 1
                if lost_counts[name] < sum(alive[other] for other in self.providers[name]):
                    continue
                for other in self.importers[name]:
                    if alive[other] and other not in visited:
                        visited.add(other)
                        group.append(other)
        return group[::-1]

    def _has_importer(self, number: int, alive: bytearray) -> bool:
        """Return whether a live entry imports a function of this entry."""
        importers = self.importers
        for name in self.entries[number].provides:
            if name in importers:
                for other in importers[name]:
                    if alive[other]:
                        return True
        return False


def matcher(patterns: str | Iterable[str]) -> Callable[[str], object]:
    """Return a function that returns a true value for names that match one of these shell patterns. Without patterns, no name matches."""
    texts = [translate(pattern) for pattern in ((patterns,) if isinstance(patterns, str) else patterns)]
    return re.compile("|".join(texts)).match if texts else lambda _: None


def _removable_entries(entries: Sequence[Entry], policy: PrunePolicy, protected: set[int]) -> list[int]:
    """Return the numbers of the entries that are neither protected nor excluded by `match`."""
    free = [number for number in range(len(entries)) if number not in protected]
    if not policy.match:
        return free
    matches = matcher(policy.match)
    return [number for number in free if (functions := entries[number].functions) and all(map(matches, functions))]


def _select_by_criteria(criteria: Criteria, population: _Population, removable: list[int]) -> dict[int, str]:
    """Return the entries that a criterion other than a limit selects, with the reason for each."""
    reasons: dict[int, str] = {}
    for number in removable:
        reason = criteria.reason(population.entries[number], population.used[number])
        if reason:
            reasons[number] = reason
    return reasons


class Criteria:
    """The criteria of a policy that concern single modules. The time `now` is in seconds since the epoch.

    If the policy has `stale`, code of the generations in `fresh` is not stale, and all other code is.
    """

    def __init__(self, policy: PrunePolicy, now: float, fresh: frozenset[object]) -> None:
        self._fresh = fresh if policy.stale is not None else None
        self._matches_alone = policy.matches_alone
        self._makers = [Versions.parse(versions) for versions in policy.made_by]
        self._unused_since = _cutoff(policy.unused_for, now)
        self._created_before = _cutoff(policy.older_than, now)
        self._oldest_llvm = version_numbers(policy.min_llvm) if policy.min_llvm is not None else ()

    def reason(self, entry: Entry, used: float) -> str:
        """Return why an entry that was last used at the time `used` is removed (`Removal.reason`), or "" if no criterion selects it."""
        if self._matches_alone:
            return "matched"
        if self._makers and any(versions.includes(maker) for versions in self._makers for maker in entry.makers):
            return "made_by"
        if used < self._unused_since:
            return "unused"
        if entry.created < self._created_before:
            return "old"
        if self._fresh is not None and entry.generation not in self._fresh:
            return "stale"
        return "llvm" if self._oldest_llvm and entry.llvm and version_numbers(entry.llvm) < self._oldest_llvm else ""


def _cutoff(age: object, now: float) -> float:
    """Return the time before which an entry is too old: `age` seconds before `now`, or minus infinity if `age` is None."""
    return now - age if isinstance(age, (int, float)) else float("-inf")


def fresh_generations(entries: Iterable[Entry], policy: PrunePolicy, now: float) -> frozenset[object]:
    """Return the generations with an entry that was used or added recently enough not to be stale. `entries` are all modules."""
    oldest = _cutoff(policy.stale, now)
    return frozenset([entry.generation for entry in entries if min(max(entry.used, entry.created), now) >= oldest])


def _add_duplicates(population: _Population, removable: list[int], reasons: dict[int, str]) -> None:
    """Select modules whose functions are all in other modules for the same hosts, the least recently used first; update `reasons`."""
    entries = population.entries
    shared_names = {name for name, providers in population.providers.items() if len(providers) > 1}
    removable = [number for number in removable if number not in reasons and shared_names.issuperset(entries[number].provides)]
    if not removable:
        return
    copies: dict[tuple[str, object], int] = {}
    for number, entry in enumerate(entries):
        if number not in reasons:
            for name in shared_names.intersection(entry.provides):
                copies[name, entry.target] = copies.get((name, entry.target), 0) + 1
    for number in sorted(removable, key=population.position.__getitem__, reverse=True):
        keys = [(name, entries[number].target) for name in entries[number].provides]
        if keys and all(copies[key] > 1 for key in keys):
            reasons[number] = "duplicate"
            for key in keys:
                copies[key] -= 1


def _derived_closures(entries: Iterable[Entry], removed_ids: Container[bytes]) -> list[Entry]:
    """Return the linked closures that are derived from a module in `removed_ids`, except closures in `removed_ids`."""
    return [entry for entry in entries if entry.module_id not in removed_ids and any(part in removed_ids for part in entry.parts)]


def _add_derived(entries: Sequence[Entry], reasons: dict[int, str]) -> None:
    """Add to `reasons` the linked closures with a part that is removed or does not exist."""
    kept_ids = {entry.module_id for number, entry in enumerate(entries) if number not in reasons}
    without_parts = [number for number, entry in enumerate(entries) if entry.parts and not kept_ids.issuperset(entry.parts)]
    reasons |= {number: "derived" for number in without_parts if number not in reasons}


def _flags_of(numbers: Iterable[int], count: int) -> bytearray:
    """Return `count` bytes, which are 1 at these numbers. The bytes take less memory than a set."""
    flags = bytearray(count)
    for number in numbers:
        flags[number] = 1
    return flags


def _removal_order(population: _Population, removable: list[int], alive: bytearray) -> list[int]:
    """Return the numbers in `removable` of live entries in the order of removal: linked closures, then the least recently used entries."""
    order = sorted([number for number in removable if alive[number]], key=population.rank.__getitem__)
    order.sort(key=lambda number: not population.entries[number].parts)
    return order


def _enforce_limits(population: _Population, policy: PrunePolicy, removable: list[int], reasons: dict[int, str], outside: Outside) -> str:
    """Add the least recently used entries to `reasons` until the limits are met, or no further entry may be removed.

    Return the limit that is still exceeded, "size" or "count", or "" if the limits are met.
    """
    entries = population.entries
    alive = bytearray([number not in reasons for number in range(len(entries))])
    size = outside.size + sum(entry.size for number, entry in enumerate(entries) if alive[number])
    count = outside.modules + sum(alive) - sum(entry.is_pack for number, entry in enumerate(entries) if alive[number])

    def excess() -> str:
        """Return the limit that is exceeded now, or "" if none is."""
        if not policy.allows(size):
            return "size"
        return "count" if policy.max_modules is not None and count > policy.max_modules else ""

    if not excess():
        return ""
    if reasons:
        population.propagate_uses(reasons)
    is_removable = _flags_of(removable, len(entries))
    for number in _removal_order(population, removable, alive):
        reason = excess()
        if not reason or (population.used[number] >= outside.horizon and not entries[number].parts):
            break
        if not alive[number] or (reason == "count" and entries[number].is_pack):
            continue
        group = population.with_dependents(number, alive)
        if not all(map(is_removable.__getitem__, group)):
            continue
        for member in group:
            reasons[member] = reason
            alive[member] = 0
            size -= entries[member].size
            count -= not entries[member].is_pack
    return excess()
