"""Listing of the groups of a cache and its layers, with their members."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompcacheError
from compcache.formats.entry import decode_entry
from compcache.formats.group import GROUP, decode_group
from compcache.interrupts import suppress
from compcache.publish.module_lists import base_of
from compcache.usage.snapshot import Excerpts
from compcache.usage.summaries import GroupSummary, MemberSummary

if TYPE_CHECKING:
    from collections.abc import Collection

    from compcache.store import Store

__all__ = ["groups"]


class _GroupCopy(NamedTuple):
    """A stored copy of a group: its module with the modification time and the directory, and the offset of the record of its members."""

    modified: float
    module_id: bytes
    store: Store
    offset: int


def groups(store: Store, names: Collection[str] | None = None) -> list[GroupSummary]:
    """Return the groups with these names, or all groups, sorted by name; see `compcache.frontend.list_groups`."""
    copies_by_name: dict[str, list[_GroupCopy]] = {}
    sizes: dict[bytes, int] = {}
    excerpts = Excerpts(store)
    bases = excerpts.group_bases() if names is None else dict.fromkeys(map(base_of, names))
    for base in bases:
        for directory, overview in excerpts.of_bases(base, base):
            for module_id, row in overview.rows.items():
                for kind, name, offset, *_ in row.entries:
                    if kind == GROUP and base_of(name) == base and (names is None or name in names):
                        sizes[module_id], modified = overview.present[module_id]
                        copies_by_name.setdefault(name, []).append(_GroupCopy(modified, module_id, directory, offset))
    return [_read_summary(name, copies, sizes) for name, copies in sorted(copies_by_name.items())]


def _read_summary(name: str, copies: list[_GroupCopy], sizes: dict[bytes, int]) -> GroupSummary:
    """Return the summary of a group from all its copies, with the members that the newest copy records."""
    newest = max(copies, key=lambda copy: (copy.modified, copy.module_id))
    modules = {copy.module_id for copy in copies}
    return GroupSummary(
        name,
        _read_members(newest),
        modules=tuple(sorted([module_id.hex() for module_id in modules])),
        size=sum(sizes[module_id] for module_id in modules),
        created=min(newest.modified, time.time()),
        directories=tuple(dict.fromkeys([copy.store.source for copy in copies])),
    )


def _read_members(copy: _GroupCopy) -> tuple[MemberSummary, ...]:
    """Return the members that a copy of a group records; empty if its module cannot be read."""
    with suppress(CompcacheError, OSError), copy.store.open_module(copy.module_id) as module:
        described = decode_group(decode_entry(module.read_record(copy.offset)).data)
        return tuple([MemberSummary(label, names) for label, _, names in described.members])
    return ()
