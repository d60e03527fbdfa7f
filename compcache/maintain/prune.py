"""Carries out plans of `compcache.maintain.policy`: reads the modules, removes files, and rewrites the index.

Being killed at any point is safe: modules are removed one by one, dependents first, and look-ups skip index entries
whose file is gone; then the index is published without them. A process that opens a module meanwhile gets it or
misses; mapped code stays mapped.
"""

from __future__ import annotations

import dataclasses
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.digest import DIGEST_SIZE, KEY_SIZE
from compcache.errors import CompcacheError, FormatError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import known_faults
from compcache.formats.makers import Versions
from compcache.hit.closures.remember import remove_closures
from compcache.maintain.pins import pinned
from compcache.maintain.policy import Entry, PrunePolicy, Removal, plan_prune
from compcache.maintain.report_types import PrunedFile, PrunedModule, PruneReport
from compcache.maintain.unindexed import find_unindexed, index_modules
from compcache.publish.index_merge import (
    entries_of_modules,
    function_entries,
    keep_newest,
    readable,
    replace_segments,
    segment_level,
    unrepeated,
)  # fmt: skip
from compcache.publish.locks import wait_lock
from compcache.publish.module_rows import read_row
from compcache.publish.packs import clean_packs, stored_packs
from compcache.publish.removal import remove_file
from compcache.store import QUARANTINE, STATISTICS
from compcache.usage.ledger import fold, last_uses_since, read_ledger, settle
from compcache.usage.module_files import list_modules
from compcache.usage.snapshot import load_rows
from compcache.usage.whole_directories import files_below, other_formats, remove_path, unused_bundles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    from compcache.formats.makers import Maker
    from compcache.maintain.policy import Plan
    from compcache.maintain.unindexed import Unindexed
    from compcache.publish.module_rows import Platform, Row
    from compcache.store import Store
    from compcache.usage.ledger import Ledger
    from compcache.usage.module_files import FileStatus, Progress

__all__ = ["PruneProposal", "carry_out", "clear_leftovers", "find_leftovers", "propose", "prune", "rewrite_index"]

_INDEX_LOCK_SECONDS = 2.0


def _require_policy(policy: object) -> None:
    if not isinstance(policy, PrunePolicy):
        raise TypeError(f"prune() takes a compcache.PrunePolicy, like PrunePolicy(max_bytes='5GB'), not {type(policy).__name__}")


def prune(
    store: Store,
    policy: PrunePolicy,
    *,
    dry_run: bool = False,
    now: float | None = None,
    progress: Progress | None = None,
    spare: Container[bytes] = (),
) -> PruneReport:
    """Remove the modules and files that a policy selects.

    Args:
        store: the cache directory.
        policy: what to remove.
        dry_run: report what would be removed, remove nothing.
        now: the time that ages count from; None is the present.
        progress: called with (done, total) now and then while modules are read.
        spare: modules to keep as if they were pinned.

    Raises:
        StorageError: the cache is read-only, or a file could not be removed.
    """
    if not dry_run:
        store.require_writable()
    proposal = propose(store, policy, now=now, progress=progress, spare=spare, fold_statistics=not dry_run)
    return proposal.report if dry_run else carry_out(store, proposal)


class PruneProposal(NamedTuple):
    """A planned prune, which has changed nothing yet; `report` is that of a dry run."""

    policy: PrunePolicy
    present: Mapping[bytes, FileStatus]
    plan: Plan
    packs: Collection[bytes]
    unindexed: Unindexed
    ledger: Ledger | None
    report: PruneReport


def propose(
    store: Store,
    policy: PrunePolicy,
    *,
    now: float | None = None,
    progress: Progress | None = None,
    spare: Container[bytes] = (),
    fold_statistics: bool = False,
) -> PruneProposal:
    """Plan a prune; see `prune`."""
    _require_policy(policy)
    started = time.perf_counter()
    now = time.time() if now is None else now
    present = list_modules(store, progress)
    packs = present.keys() & stored_packs(store)
    entries, ledger = _read_entries(store, policy, present, packs, spare=spare, now=now, progress=progress, fold_statistics=fold_statistics)
    plan = plan_prune(entries, policy, now)
    assert isinstance(policy.grace, float | int)  # the policy converted durations to seconds
    unindexed = find_unindexed(store, present, now - policy.grace)
    leftovers = (*find_leftovers(store, policy, now, ledger), *_damaged(store, unindexed, present))
    gone = {removal.entry.module_id for removal in plan.removed}
    report = _report(present, packs, policy, plan, leftovers, dry_run=True)
    unknown, makers = _unknown_makers(policy, entries)
    indexed = tuple([module_id.hex() for module_id in unindexed.sound if module_id not in gone])
    seconds = time.perf_counter() - started
    report = dataclasses.replace(report, indexed=indexed, seconds=seconds, unknown_makers=unknown, known_makers=makers)
    return PruneProposal(policy, present, plan, packs, unindexed, ledger, report)


def carry_out(store: Store, proposal: PruneProposal) -> PruneReport:
    """Carry out a plan, except for modules that have been pinned, used or imported since.

    Raises:
        StorageError: the cache is read-only, or a file could not be removed.
    """
    started = time.perf_counter()
    store.require_writable()
    present = proposal.present
    removed = _remove(store, proposal.plan, present, proposal.ledger)
    leftovers = clear_leftovers(store, proposal.report.leftovers)
    gone = {removal.entry.module_id for removal in removed}
    indexed: tuple[bytes, ...] = ()
    try:
        indexed = index_modules(store, [m for m in proposal.unindexed.sound if m not in gone])
    except OSError as error:  # then they stay unindexed
        reraise_interrupt(error)
    report = _report(present, proposal.packs, proposal.policy, proposal.plan._replace(removed=removed), leftovers, dry_run=False)
    seconds = proposal.report.seconds + time.perf_counter() - started
    planned = proposal.report
    return dataclasses.replace(
        report,
        indexed=tuple([module_id.hex() for module_id in indexed]),
        seconds=seconds,
        unknown_makers=planned.unknown_makers,
        known_makers=planned.known_makers,
    )


def _unknown_makers(policy: PrunePolicy, entries: Iterable[Entry]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names in the policy that no module has among its makers; if there are any, the makers that modules have."""
    known = {maker.name for entry in entries for maker in entry.makers} if policy.made_by else set()
    unknown = dict.fromkeys(name for name in (Versions.parse(versions).name for versions in policy.made_by) if name not in known)
    return tuple(unknown), tuple(sorted(known)) if unknown else ()


def _report(
    present: Mapping[bytes, FileStatus],
    packs: Collection[bytes],
    policy: PrunePolicy,
    plan: Plan,
    leftovers: tuple[PrunedFile, ...],
    *,
    dry_run: bool,
) -> PruneReport:
    report = PruneReport(
        dry_run=dry_run,
        removed=tuple([_describe(removal) for removal in plan.removed if not removal.entry.is_pack]),
        removed_packs=tuple([_describe(removal) for removal in plan.removed if removal.entry.is_pack]),
        leftovers=leftovers,
        needed=tuple([entry.module_id.hex() for entry in plan.needed]),
        modules_before=len(present) - len(packs),
        size_before=sum(status.size for status in present.values()),
        within_limits=True,
        seconds=0.0,
    )
    fits = policy.allows(report.size_after)
    fits = fits and (policy.max_modules is None or report.modules_after <= policy.max_modules)
    return dataclasses.replace(report, within_limits=fits)


def _damaged(store: Store, unindexed: Unindexed, present: Mapping[bytes, FileStatus]) -> Iterator[PrunedFile]:
    for module_id in unindexed.damaged:
        yield PrunedFile(store.module_path(module_id), present[module_id].size, "damaged module that is not indexed")


def _describe(removal: Removal) -> PrunedModule:
    (module_id, size, created, used, functions, *_), reason = removal
    return _describe_fields((module_id.hex(), functions, size, created, used, reason))


#: A `PrunedModule` from its fields, without a constructor call in Python; the same for `Entry` below.
_describe_fields: Callable[[tuple[Any, ...]], PrunedModule] = partial(tuple.__new__, PrunedModule)


def _read_entries(
    store: Store,
    policy: PrunePolicy,
    present: Mapping[bytes, FileStatus],
    packs: Collection[bytes],
    *,
    spare: Container[bytes],
    now: float,
    progress: Progress | None,
    fold_statistics: bool,
) -> tuple[list[Entry], Ledger | None]:
    """All modules as the policy sees them, and the statistics; an empty list if it has nothing to remove."""
    if not known_faults.FAULTS and (not policy.removes_modules or (_limits_only(policy) and not _exceeded(policy, present, len(packs)))):
        return [], None
    rows: dict[bytes, Row] = {}

    def read_rows(_: Ledger) -> None:
        rows.update(load_rows(store, present, progress))

    def seconds_of(module_id: bytes) -> float:
        return rows[module_id].seconds if module_id in rows else 0.0

    if fold_statistics:
        ledger = fold(store, seconds_of, now=now, present=present, prepare=read_rows)
    else:
        ledger = read_ledger(store)
        read_rows(ledger)
        ledger = settle(ledger, seconds_of, now)
    return list(_entries(present, rows, ledger, frozenset(pinned(store)), spare)), ledger


def _limits_only(policy: PrunePolicy) -> bool:
    criteria = (policy.unused_for, policy.older_than, policy.stale, policy.min_llvm)
    return not policy.duplicates and not policy.match and not policy.made_by and all(c is None for c in criteria)


def _exceeded(policy: PrunePolicy, present: Mapping[bytes, FileStatus], packs: int) -> bool:
    """Whether a limit is exceeded: if not, a prune by limits alone need not read the modules."""
    if policy.max_modules is not None and len(present) - packs > policy.max_modules:
        return True
    return not policy.allows(sum(s.size for s in present.values()))


def _entries(
    present: Mapping[bytes, FileStatus], rows: Mapping[bytes, Row], ledger: Ledger, pins: frozenset[str], spare: Container[bytes]
) -> Iterator[Entry]:
    """The entries of all modules: unreadable ones have no functions and no imports."""
    used = _with_parts(ledger.last_uses(), rows)
    # Numbers for platforms: the policy compares them a hundred thousand times, and platforms are long.
    targets: dict[tuple[object, ...], int] = {}
    generations: dict[Platform, tuple[int, int]] = {}
    numbers: dict[int, tuple[int, int, tuple[Maker, ...], str]] = {}  # the same, and the makers, by identity: rows share their platforms
    pinned_modules = {key for key, row in rows.items() if key in spare or (pins and not pins.isdisjoint(row.names))}
    for module_id, (size, created) in present.items():
        last = used.get(module_id, 0.0)
        row = rows.get(module_id)
        if row is not None and row.is_pack:
            # As young, as recently used and as firmly held as what its entries belong to. It goes alone: they are made again.
            belongs_to = {key for entry in row.entries for key in entry[3]}
            last = max([last, *[used.get(key, 0.0) for key in belongs_to]])
            newest = max([present[key].modified for key in belongs_to if key in present], default=created)
            held = module_id in spare or not pinned_modules.isdisjoint(belongs_to)
            yield Entry(module_id, size, newest, last, (), (), module_id, module_id, held, is_pack=True)
            continue
        if row is None:
            yield Entry(module_id, size, created, last, (), (), module_id, None, module_id in spare)
            continue
        _, platform, _, names, _, imports, *_ = row
        known = numbers.get(id(platform))
        if known is None:
            target = targets.setdefault((platform.abi, platform.triple, platform.features), len(targets))
            makers = platform.made_by()
            same = generations.setdefault(platform._replace(makers=""), (target, len(generations)))
            known = numbers[id(platform)] = (*same, makers, known_faults.fault_of(makers))
        is_pinned = module_id in pinned_modules
        parts = row.parts if row.entries else ()
        if parts:
            names, imports, is_pinned = (), (), module_id in spare
        yield _new((module_id, size, created, last, names, imports, *known[:2], is_pinned, platform.llvm_version, False, *known[2:], parts))


def _with_parts(used: Mapping[bytes, float], rows: Mapping[bytes, Row]) -> dict[bytes, float]:
    """The last uses of modules, where using a linked closure is to use what it is derived of."""
    found = dict(used)
    for module_id, row in rows.items():
        last = used.get(module_id, 0.0)
        for part in row.parts if last and row.entries else ():
            found[part] = max(last, found.get(part, 0.0))
    return found


_new: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)


def _remove(store: Store, plan: Plan, present: Mapping[bytes, FileStatus], ledger: Ledger | None) -> tuple[Removal, ...]:
    """Remove the planned modules, except those that `_spared` names; return those removed."""
    from compcache.usage.size_estimate import remember_size

    if not plan.removed:
        return ()
    spared = _spared(store, plan, present, ledger)
    removed = []
    for removal in plan.removed:
        if removal.entry.module_id in spared:
            continue
        try:
            remove_file(store, removal.entry.module_id)
        except OSError as error:
            reraise_interrupt(error)
            path = store.module_path(removal.entry.module_id)
            raise StorageError(f"cannot remove {path}: {error.strerror}", path=path, errno=error.errno) from error
        removed.append(removal)
    gone = {removal.entry.module_id for removal in removed}
    rewrite_index(store, {module_id for module_id in present if module_id not in gone}, gone)
    freed = sum(removal.entry.size for removal in removed)
    store.stats.count("evicted_modules", sum(not removal.entry.is_pack for removal in removed))
    store.stats.count("evicted_bytes", freed)
    remember_size(store, sum(status.size for status in present.values()) - freed)
    return tuple(removed)


def _spared(store: Store, plan: Plan, present: Mapping[bytes, object], ledger: Ledger | None) -> set[bytes]:
    """The modules of the plan that were pinned or used since it was made, or that modules added since import.

    Their own imports are spared, too.
    """
    providers: dict[str, list[Entry]] = {}
    for removal in plan.removed:
        for name in removal.entry.functions:
            providers.setdefault(name, []).append(removal.entry)
    newcomers = [module_id for module_id in store.module_ids() if module_id not in present]
    wanted = [name for row in map(partial(read_row, store), newcomers) if row is not None for name in row.imports]
    wanted += [name for name in pinned(store) if name in providers]
    used = last_uses_since(store, ledger) if ledger is not None else {}
    spared: set[bytes] = set()
    for entry in [r.entry for r in plan.removed if used.get(r.entry.module_id, 0.0) > r.entry.used]:
        spared.add(entry.module_id)
        wanted += entry.imports
    seen = set(wanted)
    for name in wanted:  # grows while it is walked
        for entry in providers.get(name, ()):
            if entry.module_id not in spared:
                spared.add(entry.module_id)
                wanted += [other for other in entry.imports if other not in seen]
                seen.update(entry.imports)
    return spared


class _Absent:
    """The modules that are not there."""

    def __init__(self, is_there: Callable[[bytes], bool]) -> None:
        self._is_there = is_there

    def __contains__(self, module_id: object) -> bool:
        return not (isinstance(module_id, bytes) and self._is_there(module_id))


def rewrite_index(store: Store, present: Container[bytes], gone: Collection[bytes]) -> None:
    """Publish the index without the entries of modules that are gone or never existed; what belongs to these in packs goes, too.

    Modules that were added meanwhile, in neither set, are looked up on disk. This is only an optimization: a failure
    to write is not an error.
    """
    remove_closures(store, gone)
    with wait_lock(store, "index-merge", timeout=_INDEX_LOCK_SECONDS):
        segments = readable(store.index)
        try:
            gone = {*gone, *clean_packs(store, segments, gone)}
            segments = readable(store.index)
        except (CompcacheError, OSError) as problem:  # what is half dead takes space
            reraise_interrupt(problem)
        functions: set[bytes] = set()
        modules: dict[bytes, bytes] = {}
        known: dict[bytes, bool] = {}

        def is_there(module_id: bytes) -> bool:
            there = known.get(module_id)
            if there is None:
                there = module_id not in gone and (module_id in present or store.exists(module_id))
                known[module_id] = there
            return there

        try:
            requirements: set[str] = set()
            for segment in segments:
                requirements.update(segment.requirements.values())
                for data in entries_of_modules(store.index, segment):
                    if is_there(data[:DIGEST_SIZE]):
                        keep_newest(modules, data)
                functions.update([e for e in function_entries(segment) if is_there(e[KEY_SIZE : KEY_SIZE + DIGEST_SIZE])])
            level = segment_level(len(modules))
            kept = [modules[key] for key in sorted(modules)]
            replace_segments(store.index, unrepeated(functions), kept, requirements, level, segments, store=store, gone=_Absent(is_there))
        except (FormatError, OSError) as problem:
            reraise_interrupt(problem)
            return  # the next look-up rebuilds an unreadable index; stale entries are harmless


# ---------------------------------------------------------------------- leftovers


def find_leftovers(store: Store, policy: PrunePolicy, now: float, ledger: Ledger | None = None) -> tuple[PrunedFile, ...]:
    """Temporary and quarantined files past their age limit, unused unpacked bundles, and, with `stale`, directories of other
    formats.
    """
    assert isinstance(policy.grace, float | int)  # the policy converted durations to seconds
    assert isinstance(policy.quarantine_for, float | int)
    found = [
        *_older(store, store.temporary, now - policy.grace, "temporary file"),
        *_older(store, store.directory(QUARANTINE), now - policy.quarantine_for, "in quarantine"),
    ]
    torn = (ledger or read_ledger(store)).torn
    found += _older(store, store.directory(STATISTICS), now - policy.grace, "damaged statistics", torn)
    for directory in unused_bundles(store, now):
        found += [PrunedFile(path, size, "an unpacked bundle that is not used") for path, size, _ in files_below(store, directory)]
    if policy.stale is not None:
        assert isinstance(policy.stale, float | int)
        found += _other_formats(store, now - policy.stale)
    return tuple(found)


def _older(store: Store, directory: str, before: float, reason: str, names: Iterable[str] | None = None) -> Iterator[PrunedFile]:
    """The files of these names, or all, that nothing has changed since `before`."""
    for name in store.names_in(directory) if names is None else names:
        path = f"{directory}/{name}"
        try:
            status = store.files.lstat(path)
        except OSError as error:
            reraise_interrupt(error)
            continue
        # The change time as well: a rename into quarantine sets it, but keeps the modification time.
        if max(status.st_mtime, status.st_ctime) >= before:
            continue
        files = list(files_below(store, path)) if stat.S_ISDIR(status.st_mode) else [(path, status.st_size, 0.0)]
        if all(changed < before for _, _, changed in files):
            yield from [PrunedFile(below, size, reason) for below, size, _ in files]


def _other_formats(store: Store, before: float) -> list[PrunedFile]:
    found: list[PrunedFile] = []
    for name in other_formats(store):
        files = list(files_below(store, f"{store.root}/{name}"))
        if all(changed < before for _, _, changed in files):
            found += [PrunedFile(path, size, "another format") for path, size, _ in files]
    return found


def clear_leftovers(store: Store, leftovers: tuple[PrunedFile, ...]) -> tuple[PrunedFile, ...]:
    """Remove these files; return those removed. Failures are ignored."""
    return tuple([leftover for leftover in leftovers if remove_path(store, leftover.path)])
