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

from compcache.directory.places import QUARANTINE, STATISTICS
from compcache.errors import CompcacheError, FormatError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import known_faults
from compcache.formats.makers import Versions
from compcache.hit.closures.validity import remove_closures
from compcache.maintain.candidates import Census, Chooser
from compcache.maintain.packing import free_removed
from compcache.maintain.pins import pinned
from compcache.maintain.policy import Entry, Plan, PrunePolicy, Removal
from compcache.maintain.report_types import PrunedFile, PrunedModule, PruneReport
from compcache.maintain.unindexed import Unindexed, index_modules
from compcache.publish.index_merge import merge_all, readable
from compcache.publish.locks import wait_lock
from compcache.publish.module_rows import read_row
from compcache.publish.packs import clean_packs
from compcache.publish.removal import remove_file
from compcache.usage.ledger import Uses, fold, last_uses_since
from compcache.usage.module_files import statuses_by_directory
from compcache.usage.snapshot import Present, Slices, seconds_of
from compcache.usage.whole_directories import files_below, other_formats, remove_path, unused_bundles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator

    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["PruneProposal", "carry_out", "clear_leftovers", "find_leftovers", "propose", "prune", "rewrite_index"]

_INDEX_LOCK_SECONDS = 2.0
#: The clocks of hosts and file systems differ by so many seconds.
_CLOCKS = 5.0


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
    """A planned prune, which has changed nothing yet; `report` is that of a dry run.

    `begun` is the time when it was begun; `young` are modules that were added or changed shortly before.
    """

    policy: PrunePolicy
    plan: Plan
    unindexed: Unindexed
    uses: Uses
    report: PruneReport
    begun: float
    young: Collection[bytes]


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
    started, begun = time.perf_counter(), time.time()
    now = begun if now is None else now
    assert isinstance(policy.grace, float | int)  # the policy converted durations to seconds
    young = frozenset(_added_since(store, begun - _CLOCKS))
    census, unindexed = Census(), Unindexed(store, now - policy.grace)
    slices = Slices(store, progress)
    for each in slices:
        census.add(each)
        unindexed.add(each)
    reads = bool(known_faults.FAULTS) or (policy.removes_modules and not (_limits_only(policy) and not _exceeded(policy, census)))
    uses = _uses(store, slices, now, folds=fold_statistics and reads)
    chooser = Chooser(store, uses, policy, now, census, spare, progress)
    plan = chooser.choose() if reads else Plan((), ())
    leftovers = (*find_leftovers(store, policy, now, uses.torn), *_damaged(store, unindexed))
    gone = {removal.entry.module_id for removal in plan.removed}
    report = _report(census.modules, census.size, policy, plan, leftovers, dry_run=True)
    unknown, makers = _unknown_makers(policy, chooser.makers)
    indexed = tuple([module_id.hex() for module_id in sorted(unindexed.sound) if module_id not in gone])
    seconds = time.perf_counter() - started
    report = dataclasses.replace(report, indexed=indexed, seconds=seconds, unknown_makers=unknown, known_makers=makers)
    return PruneProposal(policy, plan, unindexed, uses, report, begun, young)


def _uses(store: Store, slices: Slices, now: float, *, folds: bool) -> Uses:
    """Return the statistics, folded first if they will be read."""
    if not folds:
        return Uses(store, verify=True)
    return fold(store, seconds_of(store, slices.lists), now=now, present=Present(slices))[0]


def carry_out(store: Store, proposal: PruneProposal) -> PruneReport:
    """Carry out a plan, except for modules that have been pinned, used or imported since.

    Raises:
        StorageError: the cache is read-only, or a file could not be removed.
    """
    started = time.perf_counter()
    store.require_writable()
    planned = proposal.report
    removed = _remove(store, proposal)
    if removed:
        _free(store)
    leftovers = clear_leftovers(store, planned.leftovers)
    gone = {removal.entry.module_id for removal in removed}
    indexed: tuple[bytes, ...] = ()
    try:
        indexed = index_modules(store, [m for m in proposal.unindexed.sound if m not in gone])
    except OSError as error:  # then they stay unindexed
        reraise_interrupt(error)
    plan = proposal.plan._replace(removed=removed)
    report = _report(planned.modules_before, planned.size_before, proposal.policy, plan, leftovers, dry_run=False)
    return dataclasses.replace(
        report,
        indexed=tuple([module_id.hex() for module_id in indexed]),
        seconds=planned.seconds + time.perf_counter() - started,
        unknown_makers=planned.unknown_makers,
        known_makers=planned.known_makers,
    )


def _unknown_makers(policy: PrunePolicy, known: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in the policy that no module has among its makers; if there are any, the makers that modules have."""
    unknown = dict.fromkeys(name for name in (Versions.parse(versions).name for versions in policy.made_by) if name not in known)
    return tuple(unknown), tuple(sorted(known)) if unknown else ()


def _report(modules: int, size: int, policy: PrunePolicy, plan: Plan, leftovers: tuple[PrunedFile, ...], *, dry_run: bool) -> PruneReport:
    report = PruneReport(
        dry_run=dry_run,
        removed=tuple([_describe(removal) for removal in plan.removed if not removal.entry.is_pack]),
        removed_packs=tuple([_describe(removal) for removal in plan.removed if removal.entry.is_pack]),
        leftovers=leftovers,
        needed=tuple([entry.module_id.hex() for entry in plan.needed]),
        modules_before=modules,
        size_before=size,
        within_limits=True,
        seconds=0.0,
    )
    fits = policy.allows(report.size_after)
    fits = fits and (policy.max_modules is None or report.modules_after <= policy.max_modules)
    return dataclasses.replace(report, within_limits=fits)


def _damaged(store: Store, unindexed: Unindexed) -> Iterator[PrunedFile]:
    for module_id, size in sorted(unindexed.damaged.items()):
        yield PrunedFile(store.module_path(module_id), size, "damaged module that is not indexed")


def _describe(removal: Removal) -> PrunedModule:
    (module_id, size, created, used, functions, *_), reason = removal
    return _describe_fields((module_id.hex(), functions, size, created, used, reason))


#: A `PrunedModule` from its fields, without a constructor call in Python; the same for `Entry` below.
_describe_fields: Callable[[tuple[Any, ...]], PrunedModule] = partial(tuple.__new__, PrunedModule)


def _limits_only(policy: PrunePolicy) -> bool:
    criteria = (policy.unused_for, policy.older_than, policy.stale, policy.min_llvm)
    return not policy.duplicates and not policy.match and not policy.made_by and all(c is None for c in criteria)


def _exceeded(policy: PrunePolicy, census: Census) -> bool:
    """Return whether a limit is exceeded: if not, a prune by limits alone need not read the modules."""
    return (policy.max_modules is not None and census.modules > policy.max_modules) or not policy.allows(census.size)


def _remove(store: Store, proposal: PruneProposal) -> tuple[Removal, ...]:
    """Remove the planned modules, except those that `_spared` names; return those removed."""
    from compcache.usage.size_estimate import remember_size

    plan = proposal.plan
    if not plan.removed:
        return ()
    spared = _spared(store, proposal)
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
    rewrite_index(store, {removal.entry.module_id for removal in removed})
    freed = sum(removal.entry.size for removal in removed)
    store.stats.count("evicted_modules", sum(not removal.entry.is_pack for removal in removed))
    store.stats.count("evicted_bytes", freed)
    remember_size(store, proposal.report.size_before - freed)
    return tuple(removed)


def _free(store: Store) -> None:
    """Let volumes take at most twice the space of their content. A failure is harmless: removed parts keep taking space."""
    try:
        free_removed(store)
    except (CompcacheError, OSError) as problem:
        reraise_interrupt(problem)


def _spared(store: Store, proposal: PruneProposal) -> set[bytes]:
    """Return the modules of the plan that were pinned or used since it was made, or that modules added since import.

    Their own imports are spared, too.
    """
    plan = proposal.plan
    providers: dict[str, list[Entry]] = {}
    for removal in plan.removed:
        for name in removal.entry.functions:
            providers.setdefault(name, []).append(removal.entry)
    newcomers = [module_id for module_id in _added_since(store, proposal.begun - _CLOCKS) if module_id not in proposal.young]
    wanted = [name for row in map(partial(read_row, store), newcomers) if row is not None for name in row.imports]
    wanted += [name for name in pinned(store) if name in providers]
    used = last_uses_since(store, proposal.uses)
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


def _added_since(store: Store, when: float) -> Iterator[bytes]:
    """Yield the modules whose files and directories have changed since this time."""
    for found in statuses_by_directory(store, since=when):
        yield from [module_id for module_id, status in found.items() if status.st_ctime >= when]


def rewrite_index(store: Store, gone: Collection[bytes], *, resized: bool = False) -> None:
    """Publish the index without the entries of modules that are gone; their entries in packs go, too.

    Others whose files do not exist are left out as well. If modules were `resized` the lists of the index get their sizes. This is only an
    optimization: a failure to write is not an error.
    """
    remove_closures(store, gone)
    with wait_lock(store, "index-merge", timeout=_INDEX_LOCK_SECONDS):
        segments = readable(store.index)
        try:
            left_out = {*gone, *clean_packs(store, segments, gone)}
        except (CompcacheError, OSError) as problem:  # a half-removed pack takes space
            reraise_interrupt(problem)
            left_out = set(gone)
        try:
            merge_all(store, left_out, Present(Slices(store)), Present(Slices(store)).size_of if resized else None)
        except (FormatError, OSError) as problem:
            reraise_interrupt(problem)
            return  # the next look-up rebuilds an unreadable index; stale entries are harmless


# ---------------------------------------------------------------------- leftovers


def find_leftovers(store: Store, policy: PrunePolicy, now: float, torn: Iterable[str]) -> tuple[PrunedFile, ...]:
    """Return temporary and quarantined files past their age limit, unused unpacked bundles, and, with `stale`, directories of other
    formats.
    """
    assert isinstance(policy.grace, float | int)  # the policy converted durations to seconds
    assert isinstance(policy.quarantine_for, float | int)
    found = [
        *_older(store, store.temporary, now - policy.grace, "temporary file"),
        *_older(store, store.directory(QUARANTINE), now - policy.quarantine_for, "in quarantine"),
    ]
    found += _older(store, store.directory(STATISTICS), now - policy.grace, "damaged statistics", torn)
    for directory in unused_bundles(store, now):
        found += [PrunedFile(path, size, "an unpacked bundle that is not used") for path, size, _ in files_below(store, directory)]
    if policy.stale is not None:
        assert isinstance(policy.stale, float | int)
        found += _other_formats(store, now - policy.stale)
    return tuple(found)


def _older(store: Store, directory: str, before: float, reason: str, names: Iterable[str] | None = None) -> Iterator[PrunedFile]:
    """Return the files with these names, or all, that were not changed since `before`."""
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
