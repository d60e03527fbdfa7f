"""Listing of the groups of a cache and its layers, with their members."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.entry import decode_entry
from compcache.formats.group import GROUP, decode_group
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_lists import base_of
from compcache.usage.snapshot import Excerpts
from compcache.usage.summaries import GroupSummary, MemberSummary

if TYPE_CHECKING:
    from collections.abc import Collection

    from compcache.store import Store

    #: The modification time of a module, its directory, its module_id, and the offset of the record that describes its group.
    _Place = tuple[float, Store, bytes, int]

__all__ = ["groups"]


def groups(store: Store, names: Collection[str] | None = None) -> list[GroupSummary]:
    """Return the groups with these names, or all groups, sorted by name; see `compcache.frontend.list_groups`."""
    places_by_name: dict[str, list[_Place]] = {}
    sizes: dict[bytes, int] = {}
    excerpts = Excerpts(store)
    bases = excerpts.groups() if names is None else dict.fromkeys(map(base_of, names))
    for requested_base, (place, overview) in [(base, pair) for base in bases for pair in excerpts.of_bases(base, base)]:
        for module_id, row in overview.rows.items():
            for kind, name, offset, *_ in row.entries:
                if kind == GROUP and base_of(name) == requested_base and (names is None or name in names):
                    sizes[module_id], modified = overview.present[module_id]
                    places_by_name.setdefault(name, []).append((modified, place, module_id, offset))
    return [_read_summary(name, places, sizes) for name, places in sorted(places_by_name.items())]


def _read_summary(name: str, places: list[_Place], sizes: dict[bytes, int]) -> GroupSummary:
    """Return the summary of a group from the modules in `places`, with the members that its newest module records."""
    modified, holder, newest_id, offset = max(places, key=itemgetter(0, 2))  # by time, then by module_id
    modules = dict.fromkeys([module_id for _, _, module_id, _ in places])
    return GroupSummary(
        name, _read_members(holder, newest_id, offset), tuple(sorted([key.hex() for key in modules])), sum(sizes[key] for key in modules),
        min(modified, time.time()), tuple(dict.fromkeys([place.source for _, place, *_ in places])),
    )  # fmt: skip


def _read_members(place: Store, module_id: bytes, offset: int) -> tuple[MemberSummary, ...]:
    """Return the members of a group from the record in its module; empty if the module cannot be read."""
    try:
        with place.open_module(module_id) as module:
            described = decode_group(decode_entry(module.read_record(offset)).data)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return ()
    return tuple([MemberSummary(label, names) for label, _, names in described.members])
