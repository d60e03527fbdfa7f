"""Folded listings: one row for each label, with the variants of a function, their parts and their entries of data."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from compcache.formats.entry import PART_OF
from compcache.formats.group import GROUP, MEMBER
from compcache.identity import label_of
from compcache.usage.summaries import EntrySummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from compcache.publish.module_rows import Row
    from compcache.store import Store
    from compcache.usage.snapshot import Overview
    from compcache.usage.summaries import FunctionSummary

__all__ = ["entries_in", "find_parts_and_entries", "fold"]


def entries_in(overviews: Iterable[tuple[Store, Overview]]) -> list[EntrySummary]:
    """Return the entries of data of a cache and its layers, sorted by name and kind.

    If packs contain several entries with the same name and kind, only the latest counts. Removed entries, and entries whose required
    modules do not exist, are left out.
    """
    overviews = list(overviews)
    entries: list[EntrySummary] = []
    latest: dict[tuple[str, str], _Version] = {}
    for directory, overview in overviews:
        for row in overview.rows.values():
            if row.entries:
                for version in _versions_in(row, directory, overview):
                    entry = version.entry
                    key = entry.kind, entry.name
                    if not entry.pack:
                        entries.append(entry)
                    elif key not in latest or latest[key].order < version.order:
                        latest[key] = version
    removed = {key for key, version in latest.items() if version.is_removal}
    entries += [version.entry for version in latest.values()]
    present = [overview.present for _, overview in overviews]

    def exists(module_id: str) -> bool:
        return any(bytes.fromhex(module_id) in modules for modules in present)

    return sorted([entry for entry in entries if (entry.kind, entry.name) not in removed and all(map(exists, entry.requires))])


class _Version(NamedTuple):
    """An entry in a module or pack. `is_removal` is whether it records the removal of an entry."""

    sequence: int
    is_removal: bool
    entry: EntrySummary

    @property
    def order(self) -> tuple[int, bool]:
        """Return the order of versions: a removal is later than an entry with the same sequence number."""
        return self.sequence, self.is_removal


def _versions_in(row: Row, directory: Store, overview: Overview) -> Iterator[_Version]:
    """Yield the entries in a module or pack, except the entries of a module that are shown otherwise or not at all."""
    created = overview.present[row.module_id].modified
    for kind, name, _, requires, sequence, size, is_removal in row.entries:
        if kind not in (PART_OF, MEMBER) or row.is_pack:  # shown as `FunctionSummary.part_of`; the code of one source of a group
            required = tuple([key.hex() for key in requires])
            entry = EntrySummary(name, kind, size, created, row.module_id.hex(), row.is_pack, required, directory.source)
            yield _Version(sequence, is_removal, entry)


def fold(
    functions: Iterable[FunctionSummary], entries: Iterable[EntrySummary], select: Callable[[str], object] | None, sizes: Mapping[str, int]
) -> list[FunctionSummary]:
    """Return a row for each group, and for each label or name outside of groups, sorted by name.

    Args:
        functions: the functions.
        entries: the entries of data.
        select: returns whether a name is selected; None: all names. A row is returned if one of its names is selected.
        sizes: the sizes of the modules in bytes, by module_id.
    """
    entries = list(entries)
    group_names = {entry.module_id: entry.name for entry in entries if entry.kind == GROUP}
    ungrouped, rows = _fold_groups(functions, group_names, select, sizes) if group_names else (functions, [])
    by_row = _FunctionsByRow(ungrouped)
    data = by_row.group_entries([entry for entry in entries if entry.kind != GROUP])
    for key, variants in by_row.variants.items():
        parts = by_row.parts.get(key, [])
        if select is None or any(select(row.func_name) for row in chain(variants, parts)):
            rows.append(_fold_row(variants, parts, data.get(key, [])))
    return sorted(rows)


def _fold_groups(
    functions: Iterable[FunctionSummary], group_names: Mapping[str, str], select: Callable[[str], object] | None, sizes: Mapping[str, int]
) -> tuple[list[FunctionSummary], list[FunctionSummary]]:
    """Return the functions with a copy outside of groups, and one row for each group with a selected name.

    `group_names` has the name of the group of each module, by module_id. See `fold` for the other arguments.
    """
    ungrouped: list[FunctionSummary] = []
    members: dict[str, list[FunctionSummary]] = {}
    for row in functions:
        names = [group_names[module_id] for module_id in row.modules if module_id in group_names]
        if len(names) < len(row.modules):
            ungrouped.append(row)
            continue
        for name in set(names):
            members.setdefault(name, []).append(row)
    group_rows = []
    for name, rows in members.items():
        if select is None or any(map(select, (name, *[row.func_name for row in rows]))):
            modules = sorted(module_id for module_id, group in group_names.items() if group == name)
            size = sum(sizes[module_id] for module_id in modules)
            group_rows.append(_fold_group(name, rows, modules, size))
    return ungrouped, group_rows


def _fold_group(name: str, rows: Sequence[FunctionSummary], modules: Sequence[str], size: int) -> FunctionSummary:
    """Return one row for a group of functions. `size` is the total size of its modules in bytes."""
    return _choose_representative(rows)._replace(
        func_name=name,
        signature=GROUP,
        realizations=len(modules),
        size=size,
        created=max(row.created for row in rows),
        modules=tuple(modules),
        uses=sum(row.uses for row in rows),
        last_used=max(row.last_used for row in rows),
        directories=tuple(dict.fromkeys([directory for row in rows for directory in row.directories])),
        misses=sum(row.misses for row in rows),
        parts=len(rows),
    )


def _choose_representative(rows: Sequence[FunctionSummary]) -> FunctionSummary:
    """Return the newest function that this host can use, or the newest function if it can use none."""
    return min(rows, key=lambda row: (bool(row.problem), -row.created))


def find_parts_and_entries(
    func_name: str, functions: Iterable[FunctionSummary], entries: Iterable[EntrySummary]
) -> tuple[list[FunctionSummary], list[EntrySummary]]:
    """Return the sorted parts of a function and of its label, and the function's entries of data.

    An entry belongs to the function if it has the function's name or label, or if it requires a module of the function or of a part.
    """
    names = {func_name, label_of(func_name)}
    rows = list(functions)
    parts = sorted(row for row in rows if row.part_of in names)
    own_rows = [row for row in rows if row.func_name == func_name]
    module_ids = set(chain.from_iterable([row.modules for row in (*parts, *own_rows)]))
    return parts, [entry for entry in entries if entry.name in names or not module_ids.isdisjoint(entry.requires)]


def _row_key(name: str) -> str:
    """Return the key of the row that shows a name: the label and a NUL, or a name without a label. Names contain no NUL."""
    label = label_of(name) if "-" in name else None  # content names contain a dash; the test saves a parse of other names
    return name if label is None else f"{label}\0"


class _FunctionsByRow:
    """The functions of each row, and their parts, by the key of the row. Parts of a removed function have their own rows."""

    def __init__(self, functions: Iterable[FunctionSummary]) -> None:
        self.variants: dict[str, list[FunctionSummary]] = {}
        self.parts: dict[str, list[FunctionSummary]] = {}
        parts, orphans = [], []
        for row in functions:
            if row.part_of:
                parts.append(row)
            else:
                self._add_variant(row)
        for row in parts:
            keys = self._row_keys(row.part_of)
            if keys:
                self.parts.setdefault(keys[0], []).append(row)
            else:
                orphans.append(row)
        for row in orphans:  # added last, so that parts of an orphan are orphans, too
            self._add_variant(row)

    def _add_variant(self, row: FunctionSummary) -> None:
        """Add a function to the variants of its row."""
        self.variants.setdefault(_row_key(row.func_name), []).append(row)

    def group_entries(self, entries: Iterable[EntrySummary]) -> dict[str, list[EntrySummary]]:
        """Return entries by the keys of the rows with their name or label, and of the rows whose modules they require."""
        entries = list(entries)
        required_ids = {module_id for entry in entries for module_id in entry.requires}
        holders: dict[str, set[str]] = {}
        if required_ids:
            for key, rows in chain(self.variants.items(), self.parts.items()):
                for row in rows:
                    for module_id in required_ids.intersection(row.modules):
                        holders.setdefault(module_id, set()).add(key)
        by_row: dict[str, list[EntrySummary]] = {}
        for entry in entries:
            keys = set(self._row_keys(entry.name))
            for key in keys.union(*[holders.get(module_id, ()) for module_id in entry.requires]):
                by_row.setdefault(key, []).append(entry)
        return by_row

    def _row_keys(self, name: str) -> list[str]:
        """Return the keys of existing rows for this name, or for functions with this label."""
        return [key for key in (_row_key(name), f"{name}\0") if key in self.variants]


def _fold_row(variants: Sequence[FunctionSummary], parts: Sequence[FunctionSummary], entries: Sequence[EntrySummary]) -> FunctionSummary:
    """Merge the variants of a function, with their parts and entries of data, into one row."""
    representative = _choose_representative(variants)
    if len(variants) == 1 and not parts and not entries:
        return representative
    name = representative.func_name
    all_rows = [*variants, *parts]
    module_sizes = {row.modules: row.size for row in all_rows}  # functions in the same modules count once
    return representative._replace(
        func_name=name if len(variants) == 1 else label_of(name) or name,
        realizations=sum(row.realizations for row in variants),
        size=sum(module_sizes.values()) + sum(entry.size for entry in entries if entry.pack),
        created=max(row.created for row in variants),
        modules=tuple(sorted({module_id for row in all_rows for module_id in row.modules})),
        uses=max(sum(row.uses for row in variants), sum(row.uses for row in parts)),
        last_used=max(row.last_used for row in all_rows),
        directories=tuple(dict.fromkeys([directory for row in all_rows for directory in row.directories])),
        misses=sum(row.misses for row in all_rows),
        variants=len(variants),
        parts=len(parts),
        entries=len(entries),
    )
