"""Reads what tools need of a cache: module files, their rows, and the statistics; of all modules, or of some functions.

What concerns some functions is an excerpt: all that the answer follows from, and as little more as can be. What is done with an
overview gives the same for these functions with an excerpt.

A tool that has read long statistics files folds them if possible: the next one reads a tenth of their size.
"""

from __future__ import annotations

import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import name_key
from compcache.errors import FormatError
from compcache.files import READ_FLAGS, read_at, reraise_interrupt
from compcache.formats.sorted_keys import merge_keys
from compcache.formats.statistics import read_inputs
from compcache.publish.module_lists import ListCounts, ModuleLists, base_of
from compcache.publish.module_rows import read_row
from compcache.store import STATISTICS
from compcache.usage.ledger import SETTLED_SECONDS, Uses, fold, read_ledger
from compcache.usage.module_files import FileStatus, list_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from compcache.publish.module_rows import Row, RowEntry
    from compcache.store import Store
    from compcache.usage.ledger import Ledger
    from compcache.usage.module_files import Progress

__all__ = ["Excerpts", "Overview", "count_modules", "load_rows", "look_over", "statuses_of"]

_LONG = 1 << 20
#: The most modules that are counted one by one.
_FEW = 4096


class Overview(NamedTuple):
    """The module files of a cache, the rows of the readable ones, and the sum of all statistics."""

    present: Mapping[bytes, FileStatus]
    rows: Mapping[bytes, Row]
    ledger: Ledger

    def seconds_of(self, module_id: bytes) -> float:
        """The compile time of a module; 0.0 if it is unreadable."""
        return self.rows[module_id].seconds if module_id in self.rows else 0.0


def look_over(store: Store, progress: Progress | None = None) -> Overview:
    """Read a whole cache; `progress` is called with (modules read, modules to read) now and then."""
    present = list_modules(store, progress)
    ledger = read_ledger(store)
    found = Overview(present, load_rows(store, present, progress), ledger)
    now = time.time()
    if not store.readonly and any(_is_worth_folding(store, name, now) for name in ledger.files):
        fold(store, found.seconds_of, now=now, present=present)
    return found


def _is_worth_folding(store: Store, name: str, now: float) -> bool:
    """Whether a statistics file is long because it was not folded yet."""
    try:
        descriptor = store.files.open(store.path(STATISTICS, name), READ_FLAGS)
    except OSError as failure:
        reraise_interrupt(failure)
        return False  # folded meanwhile
    try:
        status = store.files.fstat(descriptor)
        if status.st_size < _LONG:
            return False
        is_sum = bool(read_inputs(partial(read_at, store.files, descriptor)))
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        return False
    finally:
        store.files.close(descriptor)
    return not is_sum and max(status.st_mtime, status.st_ctime) < now - SETTLED_SECONDS


def load_rows(store: Store, present: Iterable[bytes], progress: Progress | None = None) -> dict[bytes, Row]:
    """The rows of the modules that are present; those that cannot be read are left out.

    Args:
        store: the cache directory.
        present: the modules.
        progress: called with (modules read, modules to read) now and then while modules are read.
    """
    wanted = dict.fromkeys(present)  # a set that keeps the order
    lists = ModuleLists(store, progress, recover=False)
    rows = {row.module_id: row for row in lists.all_rows() if row.module_id in wanted}
    _fill_packs(rows, lists.all_entries())
    missing = [module_id for module_id in wanted if module_id not in rows]
    for number, module_id in enumerate(missing):
        row = read_row(store, module_id)
        if row is not None:
            rows[module_id] = row
        if progress is not None and number % 256 == 0:
            progress(number, len(missing))
    return rows


def count_modules(store: Store, progress: Progress | None = None) -> ListCounts:
    """The numbers of modules, packs, realizations and names, and the size of the files.

    In a directory of many modules these are sums of what lists say of themselves: a module or a name that stands in two is counted twice,
    and what was removed in another way than by a prune counts until the next one.
    """
    counts = ModuleLists(store, progress).counts()
    if counts.modules + counts.packs > _FEW:
        return counts
    present = list_modules(store, progress)
    rows = load_rows(store, present, progress).values()
    names = [name for row in rows for name in row.names]
    packs = sum(row.is_pack for row in rows)
    return ListCounts(len(present) - packs, packs, len(names), len(set(names)), sum(status.size for status in present.values()))


def _fill_packs(rows: dict[bytes, Row], entries: Iterable[tuple[bytes, RowEntry | None]]) -> None:
    """Put entries of packs, which lists have by their names, into the rows of these."""
    found: dict[bytes, dict[int, RowEntry]] = {}
    for module_id, entry in entries:
        if entry is not None:
            found.setdefault(module_id, {})[entry[2]] = entry
    for module_id, mine in found.items():
        if module_id in rows:
            rows[module_id] = rows[module_id]._replace(entries=tuple([mine[offset] for offset in sorted(mine)]))


class Excerpts:
    """Reads what concerns some functions of a cache and of its layers."""

    def __init__(self, store: Store, progress: Progress | None = None) -> None:
        self._places = [(place, ModuleLists(place, progress)) for place in (store, *store.layers)]
        self._uses = Uses(store)
        self._has_requirements = any(lists.has_requirements() for _, lists in self._places)

    @property
    def lists(self) -> list[ModuleLists]:
        """The lists of the directory and of each layer."""
        return [lists for _, lists in self._places]

    def bases(self, prefix: str = "") -> Iterator[str]:
        """The bases of the names of functions and groups that begin with a prefix, each once, sorted."""
        texts = [((base.encode("utf-8", "surrogatepass"), b"") for base in lists.bases(prefix)) for lists in self.lists]
        return (base.decode("utf-8", "surrogatepass") for base, _ in merge_keys(texts))

    def groups(self) -> list[str]:
        """The bases of the names of all groups."""
        return sorted({base for lists in self.lists for base in lists.groups()})

    def of_name(self, name: str) -> list[tuple[Store, Overview]]:
        """What concerns the functions whose names have the base that this one has."""
        base = base_of(name)
        return self.of_bases(base, base)

    def with_importers(self, name: str) -> dict[bytes, Row]:
        """The rows of what concerns a function here, and of the modules that import any of it."""
        ((_, overview), *_), lists = self.of_name(name), self.lists[0]
        rows = dict(overview.rows)
        _add_users(lists, rows, steps=1)
        there = statuses_of(lists.store, rows)
        return {module_id: row for module_id, row in rows.items() if module_id in there}

    def of_bases(self, first: str, last: str) -> list[tuple[Store, Overview]]:
        """What concerns the functions whose bases are from `first` to `last`: their modules, parts, groups, entries of data, and users."""
        return self._read(_Wanted(lists.of_bases(first, last), dict(_by_place(lists.entries(first, last)))) for lists in self.lists)

    def of_modules(self, module_ids: Iterable[bytes]) -> list[tuple[Store, Overview]]:
        """What concerns these modules."""
        wanted = set(module_ids)
        return self._read(_Wanted(set(wanted), {}) for _ in self._places)

    def _read(self, wanted: Iterable[_Wanted]) -> list[tuple[Store, Overview]]:
        parts = list(zip(self._places, wanted, strict=True))
        rows = [self._rows(lists, part) for (_, lists), part in parts]
        if self._has_requirements:
            known = {module_id for _, part in parts for module_id in part.module_ids}
            for (_, lists), part in parts:
                self._add_entries(lists, part, known)
        for ((_, lists), part), mine in zip(parts, rows, strict=True):
            part.module_ids |= {module_id for module_id, _ in part.entries}
            mine.update(lists.rows(part.module_ids - mine.keys()))
            _fill_packs(mine, [(module_id, entry) for (module_id, _), entry in part.entries.items()])
            if not self._uses.is_empty:
                _add_users(lists, mine)
        required = {key for mine in rows for row in mine.values() for entry in row.entries for key in entry[3]}
        names = {name_key(name) for mine in rows for row in mine.values() for name in row.names} if not self._uses.is_empty else ()
        ledger = self._uses.of({module_id for mine in rows for module_id in mine}, names)
        found = []
        for (place, _), mine in zip(self._places, rows, strict=True):
            present = statuses_of(place, required.union(mine))
            found.append((place, Overview(present, {key: row for key, row in mine.items() if key in present}, ledger)))
        return found

    @staticmethod
    def _rows(lists: ModuleLists, part: _Wanted) -> dict[bytes, Row]:
        """The rows of the modules, and of those whose parts they are."""
        rows = lists.rows(part.module_ids)
        for owner in {base_of(row.part_of) for row in rows.values() if row.part_of}:
            part.module_ids |= lists.of_bases(owner, owner)
        rows.update(lists.rows(part.module_ids - rows.keys()))
        return rows

    @staticmethod
    def _add_entries(lists: ModuleLists, part: _Wanted, known: set[bytes]) -> None:
        """Add the entries that require these modules, and all of the same names: the latest of them holds."""
        bases = set()
        for module_id in known:
            for holder, entry in lists.entries_requiring(module_id):
                part.module_ids.add(holder)
                if entry is not None:
                    bases.add(base_of(entry[1]))
        for base in bases:
            part.entries.update(_by_place(lists.entries(base, base)))


class _Wanted:
    """Modules, and the entries of packs by module_id and offset; of other files by module_id alone, since their rows have them."""

    def __init__(self, module_ids: set[bytes], entries: dict[tuple[bytes, int], RowEntry | None]) -> None:
        self.module_ids = module_ids
        self.entries = entries


def _by_place(entries: Iterable[tuple[bytes, RowEntry | None]]) -> Iterator[tuple[tuple[bytes, int], RowEntry | None]]:
    return (((module_id, entry[2] if entry is not None else -1), entry) for module_id, entry in entries)


def _add_users(lists: ModuleLists, rows: dict[bytes, Row], steps: float = inf) -> None:
    """Add the modules that import these, and so on: a use of one of them is a use of what it imports."""
    seen: set[str] = set()
    waiting = list(rows.values())
    while waiting and steps:
        steps -= 1
        names = {name for row in waiting for name in row.names} - seen
        seen |= names
        users = {module_id for name in names for module_id in lists.importers(name)} - rows.keys()
        others = {name for row in lists.rows(users).values() for name in row.names}
        found = lists.rows({module_id for name in others for module_id in lists.holders(name)}.union(users) - rows.keys())
        rows.update(found)
        waiting = list(found.values())


def statuses_of(store: Store, module_ids: Iterable[bytes]) -> dict[bytes, FileStatus]:
    """The status of the files that there are of these modules."""
    found = {}
    for module_id in module_ids:
        path = store.module_path(module_id)
        try:
            status = store.files.stat(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            continue
        except OSError as error:
            reraise_interrupt(error)
            store.tell_unreadable(path, error)
            continue
        found[module_id] = FileStatus(status.st_size, status.st_mtime)
    return found
