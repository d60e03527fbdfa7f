"""Prunes a cache: plans with `compcache.maintain.policy`, removes files, and rewrites the index.

A process that prunes may be killed at any point. Modules are removed one by one, dependents first, and look-ups skip index entries
whose file does not exist. Then the index is published without their entries. A process that opens a module in the meantime gets it or
misses. Mapped code stays mapped.
"""

from __future__ import annotations

import dataclasses
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compcache.directory.places import MODULE_LISTS, QUARANTINE, STATISTICS
from compcache.errors import CompcacheError, FormatError
from compcache.formats import known_faults
from compcache.formats.makers import Versions
from compcache.hit.closures.validity import remove_results
from compcache.interrupts import reraise_interrupt, suppress
from compcache.maintain.candidates import Census, Chooser
from compcache.maintain.packing import free_removed
from compcache.maintain.pins import pinned
from compcache.maintain.policy import Entry, Plan, PrunePolicy, Removal
from compcache.maintain.report_types import PrunedFile, PrunedModule, PruneReport
from compcache.maintain.unindexed import Unindexed
from compcache.publish.index_merge import merge_all
from compcache.publish.index_rebuild import index_modules
from compcache.publish.locks import wait_lock
from compcache.publish.module_lists import stray_lists
from compcache.publish.module_rows import read_row
from compcache.publish.open_segments import readable_segments
from compcache.publish.packs import clean_packs
from compcache.publish.removal import remove_file
from compcache.usage.ledger import Uses, fold, last_uses_since
from compcache.usage.module_files import statuses_by_directory
from compcache.usage.snapshot import PresentModules, Slices
from compcache.usage.whole_directories import files_below, other_formats, remove_path, unused_bundles

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator

    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["PruneProposal", "carry_out", "clear_leftovers", "find_leftovers", "propose", "prune", "rewrite_index"]

_INDEX_LOCK_SECONDS = 2.0
#: The seconds by which the clocks of hosts and file systems may differ.
_CLOCKS = 5.0


def prune(
    store: Store,
    policy: PrunePolicy,
    *,
    dry_run: bool = False,
    now: float | None = None,
    progress: Progress | None = None,
    spare: Container[bytes] = (),
) -> PruneReport:
    """Remove the modules and files that a policy selects, and return a report.

    Args:
        store: the cache directory.
        policy: the policy of the prune.
        dry_run: only report the modules and files that would be removed.
        now: the time from which ages count, in seconds since the epoch; None: the present.
        progress: called from time to time with the number of modules read so far and the number of all modules.
        spare: the modules to keep as if they were pinned.

    Raises:
        TypeError: `policy` is not a `PrunePolicy`.
        StorageError: the cache is read-only and `dry_run` is false, the index or the pins cannot be read, or a file could not be removed.
    """
    if not dry_run:
        store.require_writable()
    proposal = propose(store, policy, now=now, progress=progress, spare=spare, fold_statistics=not dry_run)
    return proposal.report if dry_run else carry_out(store, proposal)


class PruneProposal(NamedTuple):
    """A planned prune. Nothing was removed yet.

    `report` is the report of a dry run. `begun` is the time when planning began, in seconds since the epoch. `young` are the modules that
    were added or changed shortly before that time.
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
    """Plan a prune without removing anything; see `prune` for the arguments.

    With `fold_statistics`, the statistics files are folded before they are read.

    Raise `TypeError` if `policy` is not a `PrunePolicy`, or `StorageError` if the index or the pins cannot be read.
    """
    if not isinstance(policy, PrunePolicy):
        raise TypeError(f"prune() requires a compcache.PrunePolicy, like PrunePolicy(max_bytes='5GB'), not {type(policy).__name__}")
    started, start_time = time.perf_counter(), time.time()
    now = start_time if now is None else now
    assert isinstance(policy.grace, float | int)  # the policy converted durations to seconds
    young = frozenset(_changed_since(store, start_time - _CLOCKS))
    census, unindexed = Census(), Unindexed(store, now - policy.grace)
    slices = Slices(store, progress)
    for slice_ in slices:
        census.add(slice_)
        unindexed.add(slice_)
    # Modules with known faults are always removed. A policy with only limits that are not exceeded removes no others.
    may_select = not policy.has_only_limits or _exceeds_limit(policy, census.modules, census.size)
    reads = bool(known_faults.FAULTS) or may_select
    uses = _read_uses(store, slices, now, folds=fold_statistics and reads)
    chooser = Chooser(slices, uses, policy, now, census, spare)
    plan = chooser.choose() if reads else Plan((), ())
    unindexed_damage = sorted(unindexed.damaged.items())
    damaged = [PrunedFile(store.module_path(key), size, "a damaged module without an index entry") for key, size in unindexed_damage]
    leftovers = (*find_leftovers(store, policy, now, uses.torn), *damaged)
    removed_ids = {removal.entry.module_id for removal in plan.removed}
    unknown, makers = _unknown_makers(policy, chooser.makers)
    report = PruneReport(
        dry_run=True,
        removed=(),
        leftovers=leftovers,
        needed=tuple([entry.module_id.hex() for entry in plan.needed]),
        modules_before=census.modules,
        size_before=census.size,
        within_limits=True,
        seconds=time.perf_counter() - started,
        indexed=tuple([module_id.hex() for module_id in sorted(unindexed.sound) if module_id not in removed_ids]),
        unknown_makers=unknown,
        known_makers=makers,
    )
    return PruneProposal(policy, plan, unindexed, uses, _with_removals(report, policy, plan.removed), start_time, young)


def _read_uses(store: Store, slices: Slices, now: float, *, folds: bool) -> Uses:
    """Return the statistics of all processes. With `folds`, fold the statistics files first."""
    if not folds:
        return Uses(store, verify=True)
    uses, _counters = fold(store, slices.lists.seconds_of, now=now, present=PresentModules(slices))
    return uses


def carry_out(store: Store, proposal: PruneProposal) -> PruneReport:
    """Carry out a planned prune, and return a report. Modules that were pinned, used or imported since planning are kept.

    Raise `StorageError` if the cache is read-only, the pins cannot be read, or a file could not be removed.
    """
    started = time.perf_counter()
    store.require_writable()
    planned = proposal.report
    removed = _remove_planned(store, proposal)
    with suppress(CompcacheError, OSError):  # removed modules in volumes then still take space
        if removed:
            free_removed(store)
    leftovers = clear_leftovers(store, planned.leftovers)
    removed_ids = {removal.entry.module_id for removal in removed}
    indexed: tuple[bytes, ...] = ()
    with suppress(OSError):  # the modules stay without index entries
        indexed = index_modules(store, [module_id for module_id in proposal.unindexed.sound if module_id not in removed_ids])
    indexed_ids = tuple([module_id.hex() for module_id in indexed])
    seconds = planned.seconds + time.perf_counter() - started
    report = dataclasses.replace(planned, dry_run=False, leftovers=leftovers, indexed=indexed_ids, seconds=seconds)
    return _with_removals(report, proposal.policy, removed)


def _unknown_makers(policy: PrunePolicy, makers: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the policy's makers that made no module, and the sorted makers of all modules; two empty tuples if each made a module."""
    names = [Versions.parse(versions).name for versions in policy.made_by]
    unknown = dict.fromkeys([name for name in names if name not in makers])
    return tuple(unknown), tuple(sorted(makers)) if unknown else ()


def _with_removals(report: PruneReport, policy: PrunePolicy, removed: tuple[Removal, ...]) -> PruneReport:
    """Return a report with these removals, and with whether the remaining modules are within the limits of the policy."""
    modules = tuple([_row_of_removal(removal) for removal in removed if not removal.entry.is_pack])
    packs = tuple([_row_of_removal(removal) for removal in removed if removal.entry.is_pack])
    report = dataclasses.replace(report, removed=modules, removed_packs=packs)
    return dataclasses.replace(report, within_limits=not _exceeds_limit(policy, report.modules_after, report.size_after))


def _row_of_removal(removal: Removal) -> PrunedModule:
    """Return the row of the report for a removal."""
    (module_id, size, created, last_used, functions, *_), reason = removal
    return PrunedModule(module_id.hex(), functions, size, created, last_used, reason)


def _exceeds_limit(policy: PrunePolicy, modules: int, size: int) -> bool:
    """Return whether a number of modules, or their total size in bytes, exceeds a limit of a policy."""
    return (policy.max_modules is not None and modules > policy.max_modules) or not policy.allows(size)


def _remove_planned(store: Store, proposal: PruneProposal) -> tuple[Removal, ...]:
    """Remove the planned modules and their index entries, except modules that must be kept now. Return the removals.

    Raise `StorageError` if a module cannot be removed. Other modules may have been removed before.
    """
    from compcache.usage.size_estimate import remember_size

    plan = proposal.plan
    if not plan.removed:
        return ()
    spared = _modules_to_keep(store, proposal)
    removed = []
    for removal in plan.removed:
        if removal.entry.module_id in spared:
            continue
        remove_file(store, removal.entry.module_id)
        removed.append(removal)
    rewrite_index(store, {removal.entry.module_id for removal in removed})
    freed = sum(removal.entry.size for removal in removed)
    store.stats.count("evicted_modules", sum(not removal.entry.is_pack for removal in removed))
    store.stats.count("evicted_bytes", freed)
    remember_size(store, proposal.report.size_before - freed)
    return tuple(removed)


def _modules_to_keep(store: Store, proposal: PruneProposal) -> set[bytes]:
    """Return the modules of a plan that must be kept because of changes since planning, with their planned dependencies.

    These are modules that were pinned or used, and modules that new modules import functions from. See `pinned` for the exception.
    """
    plan = proposal.plan
    providers: dict[str, list[Entry]] = {}
    for removal in plan.removed:
        for name in removal.entry.functions:
            providers.setdefault(name, []).append(removal.entry)
    newcomers = [module_id for module_id in _changed_since(store, proposal.begun - _CLOCKS) if module_id not in proposal.young]
    needed_names = [name for row in map(partial(read_row, store), newcomers) if row is not None for name in row.imports]
    needed_names += [name for name in pinned(store) if name in providers]
    last_uses = last_uses_since(store, proposal.uses)
    spared: set[bytes] = set()
    for entry in [removal.entry for removal in plan.removed if last_uses.get(removal.entry.module_id, 0.0) > removal.entry.used]:
        spared.add(entry.module_id)
        needed_names += entry.imports
    visited_names = set(needed_names)
    for name in needed_names:  # the loop appends to the list
        for entry in providers.get(name, ()):
            if entry.module_id not in spared:
                spared.add(entry.module_id)
                needed_names += [imported for imported in entry.imports if imported not in visited_names]
                visited_names.update(entry.imports)
    return spared


def _changed_since(store: Store, since: float) -> Iterator[bytes]:
    """Yield the modules whose files have changed since a time in seconds since the epoch."""
    for statuses in statuses_by_directory(store, since=since):
        yield from [module_id for module_id, status in statuses.items() if status.st_ctime >= since]


def rewrite_index(store: Store, removed: Collection[bytes], *, resized: bool = False) -> None:
    """Publish the index without entries of modules that do not exist, and remove entries of data that require removed modules.

    A failure is ignored, because stale entries are harmless.

    Args:
        store: the cache directory.
        removed: the ids of the removed modules.
        resized: update the sizes in the module lists.
    """
    remove_results(store, removed)
    with wait_lock(store, "index-merge", timeout=_INDEX_LOCK_SECONDS):  # also without the lock, which only saves work
        segments = readable_segments(store.index)
        try:
            left_out = {*removed, *clean_packs(store, segments, removed)}
        except (CompcacheError, OSError) as problem:  # packs with unneeded entries only take space
            reraise_interrupt(problem)
            left_out = set(removed)
        with suppress(FormatError, OSError):  # the next look-up rebuilds an unreadable index; stale entries are harmless
            merge_all(store, left_out, PresentModules(Slices(store)), PresentModules(Slices(store)).size_of if resized else None)


def find_leftovers(store: Store, policy: PrunePolicy, now: float, torn: Iterable[str]) -> tuple[PrunedFile, ...]:
    """Return the leftovers in a cache directory.

    These are temporary and quarantined files past their age limits, damaged statistics files, lists of modules without index
    segments, and unused unpacked bundles. If the policy has `stale`, they include directories of other formats.

    Args:
        store: the cache directory.
        policy: the policy with the age limits.
        now: the time from which ages count, in seconds since the epoch.
        torn: the names of damaged statistics files.
    """
    assert isinstance(policy.grace, float | int)  # the policy converted durations to seconds
    assert isinstance(policy.quarantine_for, float | int)
    leftovers = [
        *_older_files(store, store.temporary, now - policy.grace, "a temporary file"),
        *_older_files(store, store.directory(QUARANTINE), now - policy.quarantine_for, "in quarantine"),
    ]
    leftovers += _older_files(store, store.directory(STATISTICS), now - policy.grace, "a damaged statistics file", torn)
    lists = store.directory(MODULE_LISTS)
    leftovers += _older_files(store, lists, now - policy.grace, "a list of modules without its index segment", stray_lists(store))
    for directory in unused_bundles(store, now):
        leftovers += [PrunedFile(path, size, "an unpacked bundle that is not used") for path, size, _ in files_below(store, directory)]
    if policy.stale is not None:
        assert isinstance(policy.stale, float | int)
        leftovers += _files_of_other_formats(store, now - policy.stale)
    return tuple(leftovers)


def _older_files(store: Store, directory: str, before: float, reason: str, names: Iterable[str] | None = None) -> Iterator[PrunedFile]:
    """Yield the files of a directory that have not changed since `before`. `names` limits the result to these file names.

    A subdirectory is yielded with its files if none of them has changed since `before`.
    """
    for name in store.names_in(directory) if names is None else names:
        path = f"{directory}/{name}"
        try:
            status = store.files.lstat(path)
        except OSError as error:
            reraise_interrupt(error)
            continue
        # A rename into quarantine sets only the change time, not the modification time.
        if max(status.st_mtime, status.st_ctime) >= before:
            continue
        files = list(files_below(store, path)) if stat.S_ISDIR(status.st_mode) else [(path, status.st_size, 0.0)]
        if all(changed < before for _, _, changed in files):
            yield from [PrunedFile(file_path, size, reason) for file_path, size, _ in files]


def _files_of_other_formats(store: Store, before: float) -> list[PrunedFile]:
    """Return the files in directories of other formats, except directories in which a file has changed since `before`."""
    leftovers: list[PrunedFile] = []
    for name in other_formats(store):
        files = list(files_below(store, f"{store.root}/{name}"))
        if all(changed < before for _, _, changed in files):
            leftovers += [PrunedFile(path, size, "of another format") for path, size, _ in files]
    return leftovers


def clear_leftovers(store: Store, leftovers: tuple[PrunedFile, ...]) -> tuple[PrunedFile, ...]:
    """Remove leftovers, and return the removed files. A file that cannot be removed is skipped."""
    return tuple([leftover for leftover in leftovers if remove_path(store, leftover.path)])
