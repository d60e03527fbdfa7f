"""The parts of a cache that tools read: module files, their rows, and the statistics, for all modules or for some functions.

An excerpt has the data about some functions, and as little other data as possible. Operations on an excerpt give the same results for
these functions as operations on an overview of the whole cache.

Before a tool reads long journals, it replaces them, if possible, by sums, which can be searched.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import name_key
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_lists import ListCounts, ModuleLists, base_of
from compcache.publish.module_rows import read_row
from compcache.usage.ledger import Uses, fold_long
from compcache.usage.module_files import FileStatus, modules_by_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from compcache.publish.module_rows import Row, RowEntry
    from compcache.store import Store
    from compcache.usage.ledger import Ledger
    from compcache.usage.module_files import Progress

__all__ = ["Excerpts", "Overview", "PresentModules", "Slice", "Slices", "count_modules", "look_over", "statuses_of"]

#: The maximum number of modules that are counted exactly.
_MAX_COUNTED = 4096


class Overview(NamedTuple):
    """The status of the modules of a cache, the rows of the readable modules, and the sum of all statistics."""

    present: Mapping[bytes, FileStatus]
    rows: Mapping[bytes, Row]
    ledger: Ledger


def look_over(store: Store, progress: Progress | None = None) -> Overview:
    """Fold the long journals, and return an overview of a whole cache.

    `progress` is called now and then with the numbers of read modules and of all modules.
    """
    fold_long(store)
    slices = Slices(store, progress)
    present: dict[bytes, FileStatus] = {}
    rows: dict[bytes, Row] = {}
    for slice_ in slices:
        present.update(slice_.present)
        rows.update(slice_.rows())
    _fill_packs(rows, slices.lists.all_entries())
    return Overview(present, rows, Uses(store, verify=True).ledger())


class Slices:
    """A whole cache, read one directory (first byte of the module_ids) at a time. Memory does not grow with the number of modules.

    Args:
        store: the cache directory.
        progress: called now and then with the numbers of read modules and of all modules.
    """

    def __init__(self, store: Store, progress: Progress | None = None) -> None:
        self.store = store
        self._progress = progress
        self.lists = ModuleLists(store, progress, recover=False)
        #: The listed modules that do not exist, in the slices read so far.
        self.gone: set[bytes] = set()
        #: The rows of existing modules that no list has, in the slices read so far.
        self.unlisted: dict[bytes, Row] = {}

    def __iter__(self) -> Iterator[Slice]:
        for first, present in modules_by_directory(self.store, self._progress):
            yield Slice(self, first, present)


class Slice:
    """The modules whose module_ids begin with the byte `first`. `present` has the status of each."""

    def __init__(self, slices: Slices, first: int, present: dict[bytes, FileStatus]) -> None:
        self._slices = slices
        self.first = first
        self.present = present

    def rows(self) -> dict[bytes, Row]:
        """Return the rows of the readable modules. Rows of listed packs lack their entries. Exception: see `_record_unlisted`."""
        listed_rows = self._slices.lists.rows_of_directory(self.first)
        unlisted = self._record_unlisted(listed_rows)
        return {module_id: row for module_id in self.present if (row := listed_rows.get(module_id) or unlisted.get(module_id)) is not None}

    def _record_unlisted(self, listed: Mapping[bytes, object]) -> dict[bytes, Row]:
        """Record in the slices the existing modules that are not listed, and the listed modules that do not exist.

        Return the rows of the existing modules that are not listed.

        Raise `StorageError` if a module cannot be read at the moment (`SHORTAGES`).
        """
        slices = self._slices
        slices.gone.update(listed.keys() - self.present.keys())
        rows = {}
        for module_id in self.present.keys() - listed.keys():
            row = slices.unlisted.get(module_id) or read_row(slices.store, module_id)
            if row is not None:
                rows[module_id] = slices.unlisted[module_id] = row
        return rows


class PresentModules:
    """The existing modules and their sizes, for callers that proceed in the order of module_ids. One directory is in memory at a time."""

    def __init__(self, slices: Slices) -> None:
        self._slices = iter(slices)
        self._lists = slices.lists
        self._first = -1
        self._present: Mapping[bytes, FileStatus] = {}

    def __contains__(self, module_id: object) -> bool:
        assert isinstance(module_id, bytes)
        return self.size_of(module_id) >= 0

    def size_of(self, module_id: bytes) -> int:
        """Return the size of a module on disk in bytes; -1 if it does not exist. Calls must be in order of the module_ids."""
        first_byte = module_id[0]
        while self._first < first_byte:
            current_slice = next(self._slices, None)
            self._first, self._present = (current_slice.first, current_slice.present) if current_slice is not None else (1 << 8, {})
        status = self._present.get(module_id) if self._first == first_byte else None
        return -1 if status is None else status.size


def count_modules(store: Store, progress: Progress | None = None) -> ListCounts:
    """Return the numbers of modules, packs, realizations and names, and the total size of the modules in bytes.

    In a directory with many modules, the numbers are sums from the heads of the lists. Then a module or a name in two lists counts twice,
    and modules that were removed otherwise than by a prune count until the next prune.
    """
    counts = ModuleLists(store, progress).counts()
    if counts.modules + counts.packs > _MAX_COUNTED:
        return counts
    count = packs = realizations = size = 0
    names: set[str] = set()
    for slice_ in Slices(store, progress):
        rows = slice_.rows().values()
        count += len(slice_.present)
        packs += sum(row.is_pack for row in rows)
        realizations += sum(len(row.names) for row in rows)
        names.update(*(row.names for row in rows))
        size += sum(status.size for status in slice_.present.values())
    return ListCounts(count - packs, packs, realizations, len(names), size)


def _fill_packs(rows: dict[bytes, Row], entries: Iterable[tuple[bytes, RowEntry | None]]) -> None:
    """Set the entries of the packs in `rows`. Lists store these entries by name, apart from the rows."""
    by_pack: dict[bytes, dict[int, RowEntry]] = {}
    for module_id, entry in entries:
        if entry is not None:
            _, _, offset, *_ = entry
            by_pack.setdefault(module_id, {})[offset] = entry
    for module_id, pack_entries in by_pack.items():
        if module_id in rows:
            rows[module_id] = rows[module_id]._replace(entries=tuple([pack_entries[offset] for offset in sorted(pack_entries)]))


class Excerpts:
    """A reader of the data about some functions of a cache and its layers."""

    def __init__(self, store: Store, progress: Progress | None = None) -> None:
        self._directories = [(directory, ModuleLists(directory, progress)) for directory in (store, *store.layers)]
        fold_long(store)
        self._uses = Uses(store)
        self._has_requirements = any(lists.has_requirements() for _, lists in self._directories)

    @property
    def lists(self) -> list[ModuleLists]:
        """Return the lists of the directory and of each layer."""
        return [lists for _, lists in self._directories]

    def bases(self, prefix: str = "") -> Iterator[str]:
        """Yield the bases of names of functions and groups that begin with `prefix`, each once, sorted."""
        last_base = None
        for base in heapq.merge(*[lists.bases(prefix) for lists in self.lists]):
            if base != last_base:
                yield base
            last_base = base

    def group_bases(self) -> list[str]:
        """Return the bases of the names of all groups in the lists, sorted."""
        return sorted({base for lists in self.lists for base in lists.group_bases()})

    def of_name(self, name: str) -> list[tuple[Store, Overview]]:
        """Return the data about functions with the same base as `name`."""
        base = base_of(name)
        return self.of_bases(base, base)

    def with_importers(self, name: str) -> dict[bytes, Row]:
        """Return the rows of the modules with data about a function in this directory, and of all modules that import from them."""
        (_, overview), *_ = self.of_name(name)  # the first item is this directory; the others are layers
        lists, *_ = self.lists
        rows = dict(overview.rows)
        _add_importers(lists, rows, steps=1)
        existing = statuses_of(lists.store, rows)
        return {module_id: row for module_id, row in rows.items() if module_id in existing}

    def of_bases(self, first: str, last: str) -> list[tuple[Store, Overview]]:
        """Return the data about functions with bases from `first` to `last`: their modules, parts, groups, entries of data and users."""
        selections = [
            _Selection(lists.module_ids_of_bases(first, last), dict(_by_location(lists.entries(first, last)))) for lists in self.lists
        ]
        return self._read_selections(selections)

    def of_modules(self, module_ids: Iterable[bytes]) -> list[tuple[Store, Overview]]:
        """Return the data about the modules with these module_ids, for the directory and each layer."""
        requested = set(module_ids)
        return self._read_selections(_Selection(set(requested), {}) for _ in self._directories)

    def _read_selections(self, selections: Iterable[_Selection]) -> list[tuple[Store, Overview]]:
        """Return the selected modules and entries that exist in the directory and in each layer, with their users and uses.

        `selections` has one item for each directory. The owners of selected parts and the entries that require selected modules are added.
        """
        searches = list(zip(self._directories, selections, strict=True))
        rows = [self._add_owners(lists, selection) for (_, lists), selection in searches]
        if self._has_requirements:
            module_ids = {module_id for _, selection in searches for module_id in selection.module_ids}
            for (_, lists), selection in searches:
                self._add_entries(lists, selection, module_ids)
        for ((_, lists), selection), layer_rows in zip(searches, rows, strict=True):
            selection.module_ids.update([module_id for module_id, _ in selection.entries])
            layer_rows.update(lists.rows(selection.module_ids - layer_rows.keys()))
            _fill_packs(layer_rows, [(module_id, entry) for (module_id, _), entry in selection.entries.items()])
            if not self._uses.is_empty:
                _add_importers(lists, layer_rows)
        all_rows = [row for layer_rows in rows for row in layer_rows.values()]
        required = {module_id for row in all_rows for _, _, _, requires, *_ in row.entries for module_id in requires}
        names = {name_key(name) for row in all_rows for name in row.names} if not self._uses.is_empty else set()
        ledger = self._uses.of({row.module_id for row in all_rows}, names)
        overviews = []
        for (directory, _), layer_rows in zip(self._directories, rows, strict=True):
            present = statuses_of(directory, required.union(layer_rows))
            overviews.append((directory, Overview(present, {key: row for key, row in layer_rows.items() if key in present}, ledger)))
        return overviews

    @staticmethod
    def _add_owners(lists: ModuleLists, selection: _Selection) -> dict[bytes, Row]:
        """Add to `selection` all modules of the functions that own selected parts. Return the rows of the selected modules."""
        rows = lists.rows(selection.module_ids)
        for owner in {base_of(row.part_of) for row in rows.values() if row.part_of}:
            selection.module_ids.update(lists.module_ids_of_bases(owner, owner))
        rows.update(lists.rows(selection.module_ids - rows.keys()))
        return rows

    @staticmethod
    def _add_entries(lists: ModuleLists, selection: _Selection, module_ids: set[bytes]) -> None:
        """Add the entries that require these modules, and all entries with the same names, because only the latest counts."""
        bases = set()
        for module_id in module_ids:
            for holder, entry in lists.entries_requiring(module_id):
                selection.module_ids.add(holder)
                if entry is not None:
                    _, name, *_ = entry
                    bases.add(base_of(name))
        for base in bases:
            selection.entries.update(_by_location(lists.entries(base, base)))


class _Selection(NamedTuple):
    """The modules and the entries of packs to read. Entries are by module_id and offset.

    Entries in modules need only the module_id, because rows contain them.
    """

    module_ids: set[bytes]
    entries: dict[tuple[bytes, int], RowEntry | None]


def _by_location(entries: Iterable[tuple[bytes, RowEntry | None]]) -> Iterator[tuple[tuple[bytes, int], RowEntry | None]]:
    """Yield entries by their location: the module_id of the holder, and the offset of the record (-1 if the entry is None)."""
    for module_id, entry in entries:
        _, _, offset, *_ = entry or ("", "", -1)
        yield (module_id, offset), entry


def _add_importers(lists: ModuleLists, rows: dict[bytes, Row], steps: float = inf) -> None:
    """Add to `rows` the modules that import from its modules in at most `steps` steps, and all modules that define functions of importers.

    A use of an importer counts as a use of the imported module.
    """
    visited: set[str] = set()
    pending = list(rows.values())
    while pending and steps:
        steps -= 1
        names = {name for row in pending for name in row.names} - visited
        visited |= names
        # Names are looked up in order, because neighbours are in the same blocks of the lists.
        importers = {module_id for name in sorted(names) for module_id in lists.importers(name)} - rows.keys()
        importer_names = sorted({name for row in lists.rows(importers).values() for name in row.names})
        providers = {module_id for name in importer_names for module_id in lists.holders(name)}
        new_rows = lists.rows((providers | importers) - rows.keys())
        rows.update(new_rows)
        pending = list(new_rows.values())


def statuses_of(store: Store, module_ids: Iterable[bytes]) -> dict[bytes, FileStatus]:
    """Return the status of each of these modules that exists, by module_id.

    `Store.report_unreadable` raises `StorageError` or issues a warning for a module that cannot be read. After a warning, the module is
    left out.
    """
    statuses = {}
    for module_id in module_ids:
        try:
            statuses[module_id] = FileStatus(*store.status_of(module_id))
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            continue
        except OSError as error:
            reraise_interrupt(error)
            store.report_unreadable(store.module_path(module_id), error)
    return statuses
