"""Decides what a prune removes: a pure function of the modules, a policy and the time.

Modules are removed least recently used first; a use of a function counts as a use of its dependencies. A module that
a kept one needs stays, unless another kept module realizes the same functions; a module is removed together with those
that would lose an import. No files and no LLVM here; `compcache.maintain.prune` carries plans out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from fnmatch import translate
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from compcache.formats.makers import Versions
from compcache.formats.records import version_numbers
from compcache.interrupts import reraise_interrupt
from compcache.usage.limits import parse_duration, read_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from compcache.formats.makers import Maker

__all__ = ["Entry", "Outside", "Plan", "PrunePolicy", "Removal", "matcher", "plan_prune", "since"]


_DURATIONS = ("unused_for", "older_than", "stale", "grace", "quarantine_for")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePolicy:
    """The modules and files that a prune removes from a cache, and the exceptions.

    Only what a field selects is removed: a policy without arguments removes leftovers only.
    Durations are seconds, a `datetime.timedelta` or text like ``"30d"`` and ``"12h"``; sizes are bytes or text like ``"5GB"``;
    name patterns are shell patterns (``*``, ``?``, ``[abc]``).

    Args:
        max_bytes: remove the least recently used modules until their files have at most this many bytes in all.
            None (no limit) because automatic pruning keeps the cache's own size limit anyway.
        max_modules: the same for the number of modules, for file systems that limit it. None, because few do.
        unused_for: remove modules not used for this long; those never used count from their creation.
            None, because age makes no function wrong: only lack of space is a reason to remove it.
        older_than: remove modules created longer ago than this, used or not, unless a younger module needs them.
            None, for the same reason.
        duplicates: remove realizations for which another module holds the same functions for the same hosts.
            False, because duplicates are harmless, and a process that has loaded one must map another.
        stale: remove code for CPUs, LLVM versions and platforms of which no module was used or added for this long,
            and directories of other formats that have not changed for this long. None, because other hosts
            that share the directory may be switched off for a while.
        min_llvm: remove code compiled by an LLVM older than this version (text like ``"22"`` or ``"21.1"``). None, because an
            older LLVM's code is as correct as a newer one's.
        made_by: remove what these versions of a maker have made: text like ``"numba<0.66.1"`` or ``"lld>=17,<18"``, or several. Makers
            are compcache, llvmlite, llvm, the linker (ld, lld, mold, gold) and what front ends name, like numba. Empty: no condition.
        match: remove only modules all of whose functions match one of these patterns; without other criteria, all of these.
            Empty: any module.
        keep: functions that match one of these patterns stay, with their dependencies, like pinned ones.
            Empty: only pins count.
        grace: how old a temporary file must be to be a leftover. One hour: longer than any publication takes,
            even if the clocks of hosts differ.
        quarantine_for: how long damaged files stay in quarantine. A week: time to examine them.

    Raises:
        TypeError, ValueError: a limit or a duration is not valid, or is negative.
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
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("match", "keep", "made_by"):
                value = (value,) if isinstance(value, str) else tuple(value)
                for versions in value if field.name == "made_by" else ():
                    Versions.parse(versions)
            elif field.name in _DURATIONS and value is not None:
                value = _seconds(field.name, value)
            elif field.name == "max_bytes" and value is not None:
                value = read_size(value, field.name)
            elif field.name == "min_llvm" and value is not None:
                version_numbers(value)
            if isinstance(value, (int, float)) and value < 0:
                raise ValueError(f"{field.name} must not be negative: {value!r}")
            object.__setattr__(self, field.name, value)

    def allows(self, size: int) -> bool:
        """Return whether modules of this total size are within `max_bytes`.

        Args:
            size: in bytes.
        """
        return not isinstance(self.max_bytes, int) or size <= self.max_bytes

    @property
    def matches_alone(self) -> bool:
        """Whether all modules that `match` are removed."""
        conditions = (self.max_bytes, self.max_modules, self.unused_for, self.older_than, self.stale, self.min_llvm)
        return bool(self.match) and not self.duplicates and not self.made_by and all(c is None for c in conditions)

    @property
    def removes_modules(self) -> bool:
        """Whether the policy can remove modules."""
        limits = (self.max_bytes, self.max_modules, self.unused_for, self.older_than, self.stale, self.min_llvm)
        return self.duplicates or bool(self.match) or bool(self.made_by) or any(limit is not None for limit in limits)


def _seconds(name: str, value: float | timedelta | str) -> float:
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
    """One module as the policy sees it.

    `created` and `used` (0.0: never) are in seconds since the epoch. `imports` are the func_names that it needs from
    other modules. Code of the same `target` runs on the same hosts; `generation` is what goes stale together. A pack, which holds entries
    of data alone, counts for the size and not for the number. `fault` says what is known to be wrong with one of its `makers`. `parts` are
    the modules that a linked closure is derived of: it provides nothing, needs them, and is the first to go where a limit is exceeded.
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


class Removal(NamedTuple):
    """An entry to remove, and its reason: fault, made_by, unused, old, duplicate, stale, llvm, matched, size, count or derived."""

    entry: Entry
    reason: str


class Plan(NamedTuple):
    """Entries to remove, dependents before dependencies; and those that stay only because a kept entry needs them.

    `exceeded` is the limit that is still exceeded: size, count, or empty for none.
    """

    removed: tuple[Removal, ...]
    needed: tuple[Entry, ...]
    exceeded: str = ""


class Outside(NamedTuple):
    """The facts about the other modules that a plan for some modules needs.

    The planned part contains every module that imports its functions, or also realizes them. `size` is the size of the others in bytes,
    `modules` their number. Limits remove modules that were last used before the `horizon`; the others were all used after it. A `fresh`
    generation is not stale.
    """

    size: int = 0
    modules: int = 0
    horizon: float = inf
    fresh: object = None


_NOTHING = Outside()


def plan_prune(entries: Sequence[Entry], policy: PrunePolicy, now: float, outside: Outside = _NOTHING) -> Plan:
    """Decide what a prune removes.

    Args:
        entries: the modules of the cache.
        policy: what to remove.
        now: the time that ages count from; later times count as now.
        outside: the facts about other modules.
    """
    faulty = [entry for entry in entries if entry.fault and not entry.pinned]  # nobody uses them
    faulty += _derived_of(entries, {entry.module_id for entry in faulty})
    if faulty:
        gone = {entry.module_id for entry in faulty}
        sound = [entry for entry in entries if entry.module_id not in gone]
        plan = plan_prune(sound, policy, now, outside)
        return plan._replace(removed=(*[Removal(entry, "fault") for entry in faulty], *plan.removed))
    if not policy.removes_modules:
        return Plan((), ())
    population = _Population(entries, now)
    protected = population.protect(policy)
    may_go = _eligible(entries, policy, protected)
    reasons = _by_criteria(population, policy, now, may_go, outside.fresh)
    needed = population.rescue(reasons)
    if policy.duplicates:
        _add_duplicates(population, may_go, reasons)
    exceeded = _keep_limits(population, policy, may_go, reasons, outside)
    _add_derived(entries, reasons)
    order = sorted(reasons, key=population.rank.__getitem__)
    return Plan(
        tuple([Removal(entries[number], reasons[number]) for number in order]),
        tuple([entries[number] for number in sorted(needed) if number not in reasons]),
        exceeded,
    )


class _Population:
    """The entries by number, the providers and importers of each function, and the effective last use of each entry."""

    def __init__(self, entries: Sequence[Entry], now: float) -> None:
        self.entries = entries
        self.providers: dict[str, list[int]] = {}
        self.importers: dict[str, list[int]] = {}
        for number, entry in enumerate(entries):
            for name in entry.functions:
                self.providers.setdefault(name, []).append(number)
            for name in entry.imports:
                self.importers.setdefault(name, []).append(number)
        self.recency = [min(max(entry.used, entry.created), now) for entry in entries]
        self.used = list(self.recency)
        self._order = self._newest_first()
        self.place = [0] * len(entries)
        for place, number in enumerate(self._order):
            self.place[number] = place
        self.rank = [0] * len(entries)
        self.account(())

    def _newest_first(self) -> list[int]:
        """Return the numbers of the entries: latest used first, then latest created, then by module_id.

        Three stable sorts, the least important key first: comparing tuples of keys takes three times as long.
        """
        entries, recency = self.entries, self.recency
        order = sorted(range(len(entries)), key=[entry.module_id for entry in entries].__getitem__)
        order.sort(key=[entry.created for entry in entries].__getitem__, reverse=True)
        order.sort(key=recency.__getitem__, reverse=True)
        return order

    def account(self, gone: Collection[int]) -> None:
        """Propagate uses to dependencies and rank the entries, except those in `gone`.

        A depth-first walk from the most recently used entries on first reaches each entry with the latest use of all
        its dependents, and leaves it before them. Entries in `gone` keep their rank, before all others.
        """
        alive = [number for number in self._order if number not in gone] if gone else self._order
        needs = self._needs(gone)
        seen = bytearray(len(self.entries))
        left: list[int] = []
        for root in alive:
            if seen[root]:
                continue
            seen[root] = 1
            if not needs[root]:
                self.used[root] = self.recency[root]
                left.append(root)
                continue
            walk = [(root, iter(needs[root]))]
            while walk:
                number, rest = walk[-1]
                for following in rest:
                    if not seen[following]:
                        seen[following] = 1
                        walk.append((following, iter(needs[following])))
                        break
                else:
                    self.used[number] = self.recency[root]
                    left.append(number)
                    walk.pop()
        # Least recently used first; among those used at the same time, dependents before dependencies.
        first = len(self.entries) if gone else 0
        left.reverse()
        for place, number in enumerate(sorted(left, key=self.used.__getitem__)):
            self.rank[number] = first + place

    def _needs(self, gone: Collection[int]) -> list[Sequence[int]]:
        """Return for each entry the providers of its imports: of several not in `gone`, the most recently used one."""
        needs: list[Sequence[int]] = []
        for entry in self.entries:
            needed = []
            for name in entry.imports:
                found: Sequence[int] = self.providers.get(name, ())
                if gone:
                    found = [number for number in found if number not in gone]
                if found:
                    needed.append(found[0] if len(found) == 1 else min(found, key=self.place.__getitem__))
            needs.append(needed)
        return needs

    def protect(self, policy: PrunePolicy) -> set[int]:
        """Return the entries that are pinned or match `keep`, and their dependencies."""
        keep = matcher(policy.keep)
        roots = [n for n, e in enumerate(self.entries) if e.pinned or (policy.keep and any(map(keep, e.functions)))]
        seen = set(roots)
        needs = self._needs(()) if roots else []
        for number in roots:  # grows while it is walked
            for other in needs[number]:
                if other not in seen:
                    seen.add(other)
                    roots.append(other)
        return seen

    def rescue(self, reasons: dict[int, str]) -> set[int]:
        """Drop from `reasons`, and return, entries that kept ones need and no kept one replaces."""
        rescued: set[int] = set()
        if not reasons:
            return rescued
        kept = [number for number in range(len(self.entries)) if number not in reasons]
        have = {name for number in kept for name in self.entries[number].functions}
        for number in kept:  # grows while it is walked
            for name in self.entries[number].imports:
                if name in have or name not in self.providers:
                    continue
                best = min(self.providers[name], key=self.place.__getitem__)
                del reasons[best]
                rescued.add(best)
                kept.append(best)
                have.update(self.entries[best].functions)
        return rescued

    def dependents(self, number: int, alive: bytearray) -> list[int]:
        """Return the entry and the live ones that would lose an import with it, the most indirect first."""
        if not self._has_importer(number, alive):
            return [number]  # nearly always: the least recently used comes first
        group = [number]
        seen = {number}
        lost: dict[str, int] = {}
        for member in group:  # grows while it is walked
            for name in self.entries[member].functions:
                if name not in self.importers:
                    continue
                lost[name] = lost.get(name, 0) + 1
                if lost[name] < sum(alive[other] for other in self.providers[name]):
                    continue
                for other in self.importers[name]:
                    if alive[other] and other not in seen:
                        seen.add(other)
                        group.append(other)
        return group[::-1]

    def _has_importer(self, number: int, alive: bytearray) -> bool:
        """Return whether a live entry imports a function of this one."""
        importers = self.importers
        for name in self.entries[number].functions:
            if name in importers:
                for other in importers[name]:
                    if alive[other]:
                        return True
        return False


def matcher(patterns: str | Iterable[str]) -> Callable[[str], object]:
    """Return the predicate for names that match one of these shell patterns; without patterns it is always false."""
    texts = [translate(pattern) for pattern in patterns]
    return re.compile("|".join(texts)).match if texts else lambda _: None


def _eligible(entries: Sequence[Entry], policy: PrunePolicy, protected: set[int]) -> list[int]:
    """Return the entries that are neither protected nor excluded by `match`."""
    free = [number for number in range(len(entries)) if number not in protected]
    if not policy.match:
        return free
    matches = matcher(policy.match)
    return [n for n in free if entries[n].functions and all(matches(name) for name in entries[n].functions)]


def _by_criteria(population: _Population, policy: PrunePolicy, now: float, may_go: list[int], fresh: object) -> dict[int, str]:
    """Return the entries that a criterion other than the limits removes, with the reason."""
    entries, reasons = population.entries, dict[int, str]()
    stale = _stale_generations(population, policy, now, fresh)
    oldest = version_numbers(policy.min_llvm) if policy.min_llvm is not None else ()
    selected = [Versions.parse(versions) for versions in policy.made_by]
    unused_since = since(policy.unused_for, now)
    created_before = since(policy.older_than, now)
    for number in may_go:
        if policy.matches_alone:
            reasons[number] = "matched"
        elif selected and any(versions.includes(maker) for versions in selected for maker in entries[number].makers):
            reasons[number] = "made_by"
        elif population.used[number] < unused_since:
            reasons[number] = "unused"
        elif entries[number].created < created_before:
            reasons[number] = "old"
        elif entries[number].generation in stale:
            reasons[number] = "stale"
        elif oldest and entries[number].llvm and version_numbers(entries[number].llvm) < oldest:
            reasons[number] = "llvm"
    return reasons


def since(age: object, now: float) -> float:
    """Return the time before which an entry is too old; minus infinity without an age. The policy converted durations to seconds."""
    return now - age if isinstance(age, (int, float)) else float("-inf")


def _stale_generations(population: _Population, policy: PrunePolicy, now: float, fresh: object) -> set[object]:
    if policy.stale is None:
        return set()
    newest: dict[object, float] = {}
    for entry, used in zip(population.entries, population.used, strict=True):
        newest[entry.generation] = max(used, newest.get(entry.generation, used))
    oldest = since(policy.stale, now)
    return {generation for generation, used in newest.items() if used < oldest and generation is not fresh}


def _add_duplicates(population: _Population, may_go: list[int], reasons: dict[int, str]) -> None:
    """Remove modules all of whose functions others hold for the same hosts, the least recently used first."""
    entries = population.entries
    several = {name for name, providers in population.providers.items() if len(providers) > 1}
    may_go = [n for n in may_go if n not in reasons and several.issuperset(entries[n].functions)]
    copies: dict[tuple[str, object], int] = {}
    for number, entry in enumerate(entries if may_go else ()):
        if number not in reasons:
            for name in several.intersection(entry.functions):
                copies[name, entry.target] = copies.get((name, entry.target), 0) + 1
    for number in sorted(may_go, key=population.place.__getitem__, reverse=True):
        keys = [(name, entries[number].target) for name in entries[number].functions]
        if keys and all(copies[key] > 1 for key in keys):
            reasons[number] = "duplicate"
            for key in keys:
                copies[key] -= 1


def _derived_of(entries: Iterable[Entry], gone: Container[bytes]) -> list[Entry]:
    """Return the linked closures that are derived from modules that are gone."""
    return [entry for entry in entries if entry.parts and entry.module_id not in gone and any(part in gone for part in entry.parts)]


def _add_derived(entries: Sequence[Entry], reasons: dict[int, str]) -> None:
    """Remove the linked closures that are derived from modules which are, or were, removed."""
    left = {entry.module_id for number, entry in enumerate(entries) if number not in reasons}
    lost = [number for number, entry in enumerate(entries) if entry.parts and not left.issuperset(entry.parts)]
    reasons |= {number: "derived" for number in lost if number not in reasons}


def _keep_limits(population: _Population, policy: PrunePolicy, may_go: list[int], reasons: dict[int, str], outside: Outside) -> str:
    """Remove the least recently used entries until the limits are met or no more may be removed; return a limit still exceeded."""
    entries = population.entries
    alive = bytearray([number not in reasons for number in range(len(entries))])
    size = outside.size + sum(entry.size for number, entry in enumerate(entries) if alive[number])
    count = outside.modules + sum(alive) - sum(entry.is_pack for number, entry in enumerate(entries) if alive[number])

    def excess() -> str:
        if not policy.allows(size):
            return "size"
        return "count" if policy.max_modules is not None and count > policy.max_modules else ""

    if not excess():
        return ""
    if reasons:
        population.account(reasons)
    allowed = set(may_go)
    for number in sorted((n for n in may_go if alive[n]), key=lambda n: (not entries[n].parts, population.rank[n])):
        reason = excess()
        if not reason or (population.used[number] >= outside.horizon and not entries[number].parts):
            break
        if not alive[number] or (reason == "count" and entries[number].is_pack):
            continue
        group = population.dependents(number, alive)
        if not allowed.issuperset(group):
            continue
        for member in group:
            reasons[member] = reason
            alive[member] = 0
            size -= entries[member].size
            count -= not entries[member].is_pack
    return excess()
