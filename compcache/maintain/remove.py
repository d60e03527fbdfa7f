"""Removes functions with all their realizations, parts and entries of data, and removes single modules or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import name_key
from compcache.directory.places import MODULES, PLACES
from compcache.errors import FunctionInUseError, NotCachedError, StorageError
from compcache.formats.entry import EntryRecord, sequence_after
from compcache.formats.group import GROUP
from compcache.formats.known_faults import fault_of
from compcache.formats.linked import decode_closure
from compcache.formats.manifest import LINKED
from compcache.hit.closures.validity import remove_results
from compcache.identity import label_of
from compcache.interrupts import suppress
from compcache.maintain.candidates import lacking_imports
from compcache.maintain.pins import pinned, unpin
from compcache.maintain.policy import Entry
from compcache.maintain.prune import rewrite_index
from compcache.publish.additions import merge
from compcache.publish.module_reader import linked_closures
from compcache.publish.module_rows import read_row
from compcache.publish.numbering import interrupted_additions, noted_numbers
from compcache.publish.open_segments import readable_segments
from compcache.publish.packs import encode_pack, stored_packs
from compcache.publish.removal import remove_file
from compcache.publish.volumes import remove_orphaned_lists
from compcache.publish.writer import publish_modules
from compcache.store import is_ordered
from compcache.usage.listings import parse_module_id
from compcache.usage.snapshot import Excerpts, statuses_of
from compcache.usage.whole_directories import remove_directory
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from compcache.formats.index import Numbered
    from compcache.publish.module_lists import ModuleLists
    from compcache.publish.module_rows import Row
    from compcache.store import Store

__all__ = ["clear", "remove_function", "remove_functions", "remove_linked", "remove_module", "remove_modules"]

#: The maximum number of modules in an index that is rewritten after each removal.
_SHORT = 4096
_MOST_NAMED = 5
#: Older than any addition in the index.
_NONE = (0, 0, b"", 0, b"")


class _RemovalPlan(NamedTuple):
    """What the removal of a function or group removes: modules with their functions, the pins of `names`, entries by kind and name."""

    module_ids: list[bytes]
    names: set[str]
    entries: set[tuple[str, str]]
    func_names: set[str]


def remove_functions(
    store: Store, names: Iterable[str], *, force: bool = False, derived: bool = False, dry_run: bool = False
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Remove functions and groups, importers before the functions that they import, or only plan this. See `Cache.remove` for the options.

    Return the ids of the removed modules by name, and the reason for each function or group that was kept. With `derived`, only linked
    closures are removed, and names without linked closures are left out.

    Raise the errors of `Cache.remove` except `FunctionInUseError` and `NotCachedError`, which are the reasons.
    """
    if not dry_run:
        store.require_writable()
    gone: set[bytes] | None = set() if dry_run else None
    if derived:
        linked = {name: remove_linked(store, name, gone) for name in names}
        return {name: module_ids for name, module_ids in linked.items() if module_ids}, {}
    removed: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    reasons = dict.fromkeys(names, "")
    progress = True
    while progress:
        progress = False
        for name in list(reasons):
            try:
                plan = _plan_removal(store, name, force, gone or ())
                removed[name] = _hexadecimal(_carry_out(store, plan, gone))
                taken.update(plan.func_names)
            except (FunctionInUseError, NotCachedError) as error:
                if name not in taken:
                    reasons[name] = str(error)
                    continue
                removed[name] = ()  # removed with another function's module
            del reasons[name]
            progress = True
    return removed, reasons


def remove_function(store: Store, func_name: str, *, force: bool) -> tuple[str, ...]:
    """Remove a function or a group, and return the ids of the removed modules; see `Cache.remove`.

    Raises:
        NotCachedError: no module realizes a function or group of this name.
        FunctionInUseError: other functions need the function or share its module, or it is pinned, and `force` is false.
        StorageError: the cache is read-only, the pins or a module cannot be read, or a module could not be removed.
    """
    store.require_writable()
    return _hexadecimal(_carry_out(store, _plan_removal(store, func_name, force, ()), None))


def _plan_removal(store: Store, func_name: str, force: bool, gone: Container[bytes]) -> _RemovalPlan:
    """Return what the removal of a function or group removes after the modules in `gone`. Raise the errors of `remove_function`."""
    excerpts = Excerpts(store)
    lists, *_ = excerpts.lists
    found = excerpts.with_importers(func_name)
    interrupted = set[bytes]().union(*interrupted_additions(store, noted_numbers(store)))  # the next addition would index them
    found |= {module_id: row for module_id in sorted(interrupted) if (row := read_row(store, module_id)) is not None}
    listed = [module_id for module_id, _ in store.find_here(func_name)]
    unread = [module_id for module_id in statuses_of(store, listed) if module_id not in found and module_id not in gone]
    if unread and not force:
        path = store.module_path(unread[0])
        advice = "pass force=True (rm --force) to remove the module with all its functions"
        raise StorageError(f"function {func_name!r} was not removed: {path} cannot be read; {advice}", path=path)
    rows = {key: row for key, row in found.items() if not row.parts and key not in gone}
    holders = {module_id: row for module_id, row in rows.items() if func_name in row.names}
    names = {func_name}
    if not holders:
        holders = {module_id: row for module_id, row in rows.items() if func_name in _group_names(row)}
        names = {name for row in holders.values() for name in row.names}
    if not (holders or unread):
        places = excerpts.of_name(func_name)[1:]
        layers = [layer.root for layer, (_, found, _) in places for row in found.values() if func_name in (*row.names, *_group_names(row))]
        place = f"only in the layer {layers[0]}, which this cache does not change" if layers else f"not in the cache {store.root}"
        raise NotCachedError(f"cannot remove function {func_name!r}: it is {place}", func_name=func_name, cache_dir=store.root)
    _add_former(store, lists, holders, force=force)
    rows |= holders
    if not force:
        _require_unused(store, func_name, names, holders, rows)
    owners = _owner_names(func_name, rows)
    order = {module_id: position for position, module_id in enumerate(reversed(listed))}  # so that no failure brings former code back
    oldest_first = sorted([*reversed(holders), *unread], key=lambda module_id: order.get(module_id, -1))
    module_ids = [*oldest_first, *_part_modules(store, owners, holders, rows, force=force)]
    entries = {(kind, name) for row in rows.values() if row.is_pack for kind, name, *_ in row.entries if name in owners}
    return _RemovalPlan(module_ids, names, entries, {name for key in rows.keys() & {*module_ids} for name in rows[key].names})


def _add_former(store: Store, lists: ModuleLists, holders: dict[bytes, Row], *, force: bool) -> None:
    """Add to `holders` the modules with former code that would answer after the removal, and transitively those of their functions.

    This concerns the functions of the removed modules and, with `force`, the functions that import these, because look-ups pass over code
    that lacks an import. Modules with the content of the code that answers now stay.
    """

    def read_entries(module_ids: Iterable[bytes]) -> dict[bytes, Entry]:
        """Return the entries of listed modules for `lacking_imports`."""
        rows = lists.rows(module_ids).values()
        return {row[0]: Entry(row[0], 0, 0.0, 0.0, row.names, row.imports, fault=fault_of(row.platform.made_by())) for row in rows}

    def answering(additions: list[Numbered], lacking: Container[bytes]) -> Numbered:
        """Return the newest of these additions that look-ups do not pass over."""
        usable = [found for found in additions if found[2] not in lacking and not (found[2] in entries and entries[found[2]].fault)]
        return max(usable or additions, default=_NONE)

    names = set[str]()
    added = {name for row in holders.values() for name in row.names}
    while added:
        names |= added
        importing = lists.rows({module_id for _, module_id in lists.importers_of(added)} if force else ())
        added = {name for row in importing.values() for name in row.names} - names
    numbered = [store.index.find_numbered(name_key(name)) for name in filter(is_ordered, names)]
    several = [[found for found in rows if found[3] < LINKED and store.exists(found[2])] for rows in numbered if len(rows) > 1]
    entries = read_entries({found[2] for additions in several for found in additions})
    before, after = [lacking_imports(store, entries, read_entries, gone) for gone in ((), holders)]
    former = set[bytes]()
    for additions in several:
        current = answering(additions, before)
        following = answering([found for found in additions if found[2] not in holders], after)
        if _NONE < following < current and not (any(current[4]) and following[4] == current[4]):
            former.add(following[2])
    if rows := lists.rows(former):
        holders |= rows
        _add_former(store, lists, holders, force=force)


def _carry_out(store: Store, plan: _RemovalPlan, gone: set[bytes] | None) -> list[bytes]:
    """Carry out a removal. Return the ids of the removed modules. See `remove_modules` for `gone` and the errors."""
    removed = remove_modules(store, plan.module_ids, gone)
    if gone is None:
        _remove_entries(store, plan.entries)
        for name in sorted(plan.names.intersection(pinned(store))):
            unpin(store, name)
    return removed


def _hexadecimal(module_ids: Iterable[bytes]) -> tuple[str, ...]:
    """Return module_ids as text."""
    return tuple([module_id.hex() for module_id in module_ids])


def _group_names(row: Row) -> list[str]:
    """Return the names of the groups that a module holds. The list has at most one name."""
    return [name for kind, name, *_ in row.entries if kind == GROUP]


def _owner_names(func_name: str, rows: Mapping[bytes, Row]) -> set[str]:
    """Return the owners whose parts and entries are removed with a function.

    These are the function itself and its label, if no other function has this label.
    """
    label = label_of(func_name)
    is_shared = label is not None and any(name != func_name and label_of(name) == label for row in rows.values() for name in row.names)
    return {func_name} if label is None or is_shared else {func_name, label}


def _part_modules(store: Store, owners: set[str], holders: Container[bytes], rows: Mapping[bytes, Row], *, force: bool) -> list[bytes]:
    """Return the ids of the parts of `owners`, without pinned or needed parts unless `force` is set. Exception: see `pinned`."""
    parts = {module_id: row for module_id, row in rows.items() if row.part_of in owners and module_id not in holders}
    if not parts or force:
        return sorted(parts)
    kept_rows = [row for module_id, row in rows.items() if module_id not in holders and module_id not in parts]
    needed = {*pinned(store), *[name for row in kept_rows for name in row.imports]}
    return sorted(module_id for module_id, row in parts.items() if needed.isdisjoint(row.names))


def _remove_entries(store: Store, keys: Iterable[tuple[str, str]]) -> None:
    """Remove the entries of data with these kinds and names. Raise `StorageError` if the removal could not be stored."""
    entries = [store.read_entry(kind, name, alone=False) for kind, name in sorted(keys)]
    removals = [
        EntryRecord(entry.kind, entry.name, sequence_after(entry), (), b"", gone=True)
        for entry in entries if entry is not None and not entry.gone
    ]  # fmt: skip
    if removals:
        publish_modules(store, [encode_pack(removals)])
        merge(store)


def remove_module(store: Store, module_id: str) -> bool:
    """Remove a module and the linked closures derived from it, and return whether the module existed. See `Cache.remove_module`."""
    store.require_writable()
    return bool(remove_modules(store, [parse_module_id(module_id)]))


def remove_modules(store: Store, module_ids: list[bytes], gone: set[bytes] | None = None) -> list[bytes]:
    """Remove modules, their index entries, and the linked closures derived from them. Return the ids of the removed modules.

    With `gone` nothing is removed. The modules in `gone` count as removed, and those that would be removed are added to it.

    Raise `StorageError` if a module could not be removed. Other modules may have been removed before.
    """
    removed: list[bytes] = []
    try:
        chosen = [*module_ids, *_derived_closures(store, set(module_ids))]
        if gone is not None:
            planned = [module_id for module_id in chosen if module_id not in gone]
            gone.update(planned)
            return planned
        removed.extend(module_id for module_id in chosen if remove_file(store, module_id))  # item by item: an error keeps earlier items
    finally:
        if removed and _has_short_index(store):
            rewrite_index(store, frozenset(removed))
        elif removed:
            remove_results(store, frozenset(removed))
    return removed


def remove_linked(store: Store, func_name: str | None, gone: set[bytes] | None = None) -> tuple[str, ...]:
    """Remove the linked closures of a function, or all linked closures if `func_name` is None. Return the module_ids of these closures.

    See `remove_modules` for `gone`. Raise `StorageError` if the cache is read-only or a closure could not be removed, or `FormatError` if a
    closure's entry is damaged.
    """
    if gone is None:
        store.require_writable()
    closures = linked_closures(store)
    if func_name is None:
        linked = set(closures)
    else:
        linked = {module_id for module_id, entry in closures.items() if decode_closure(entry.data).label == func_name}
        linked |= closures.keys() & {module_id for module_id, _ in store.find_here(func_name, linked=True)}
    return _hexadecimal(remove_modules(store, sorted(linked), gone))


def _derived_closures(store: Store, removed: set[bytes]) -> list[bytes]:
    """Return the ids of the linked closures that are derived from these modules, without closures among these modules."""
    return [key for key, entry in linked_closures(store).items() if key not in removed and not removed.isdisjoint(entry.requires)]


def _has_short_index(store: Store) -> bool:
    """Return whether the index is short enough to be rewritten after a removal. In a longer index, stale entries stay until a prune.

    The result is False if the index cannot be read, for example because another process is changing it.
    """
    with suppress(OSError):
        return sum(segment.modules.count for segment in readable_segments(store.index)) <= _SHORT
    return False


def _require_unused(store: Store, func_name: str, names: set[str], holders: Mapping[bytes, Row], rows: Mapping[bytes, Row]) -> None:
    """Raise `FunctionInUseError` if a function or group must not be removed without `force`.

    The reasons are: its modules realize other functions, other modules import one of its functions (`names`), or one of these is pinned.
    `holders` are the rows of its modules, and `rows` those of all modules that may import it. See `pinned` for another exception.
    """
    other_functions = tuple(sorted({name for row in holders.values() for name in row.names} - names))
    importing = [row for module_id, row in rows.items() if module_id not in holders and not names.isdisjoint(row.imports)]
    importers = tuple(sorted([name for row in importing for name in row.names]))
    reasons = []
    groups = sorted({group for row in holders.values() for group in _group_names(row)}) if other_functions else []
    if groups:
        reasons.append(f"it is a part of the group {groups[0]!r}, which can only be removed completely")
    elif other_functions:
        reasons.append(f"its module also holds {join_first(map(repr, other_functions), _MOST_NAMED)}")
    if importers:
        reasons.append(f"{join_first(map(repr, importers), _MOST_NAMED)} import{'s' if len(importers) == 1 else ''} it")
    if not names.isdisjoint(pinned(store)):
        reasons.append("it is pinned")
    if reasons:
        kind = "function" if func_name in names else "group"
        raise FunctionInUseError(
            f"{kind} {func_name!r} was not removed: {'; '.join(reasons)}; pass force=True (rm --force) to remove the {kind} anyway",
            func_name=func_name,
            others=other_functions,
            importers=importers,
        )


def clear(store: Store) -> int:
    """Remove all modules and derived files (see `Place.cleared`), and no other files. Return the number of removed modules.

    Modules are removed before the index, because an index entry without its module is only a miss, but a module without its index entry
    would be lost. The description of the host stays, because it does not depend on modules.

    Raise `StorageError` if the cache is read-only, or a module could not be removed. Other modules may have been removed before.
    """
    store.require_writable()
    # The files are listed first. Files that other processes add or merge in the meantime have other names, and stay.
    places = [place for place in PLACES if place.cleared and place is not MODULES]
    other_files = [store.path(place, name) for place in places for name in store.names(place)]
    packs = stored_packs(store)
    removed = sum([remove_file(store, module_id) and module_id not in packs for module_id in store.module_ids()])
    for module_id in list(store._in_memory):  # modules that could not be published
        store.tell_gone(module_id)
    store._in_memory.clear()
    store._memory_names.clear()
    store.index.close()
    for path in other_files:
        remove_directory(store, path)
    remove_orphaned_lists(store)
    return removed
