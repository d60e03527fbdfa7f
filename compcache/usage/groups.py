"""Lists the groups of a cache and of its layers, with their members."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.entry import decode_entry
from compcache.formats.group import GROUP, decode_group
from compcache.usage.listings import look_over_all
from compcache.usage.summaries import GroupSummary, MemberSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.store import Store
    from compcache.usage.module_files import Progress

    #: When a module was made, where it is, and where in its file its group is described.
    _Place = tuple[float, Store, bytes, int]

__all__ = ["groups"]


def groups(store: Store, progress: Progress | None = None, select: Callable[[str], object] | None = None) -> list[GroupSummary]:
    """See `Cache.groups`; only those whose names `select` accepts, sorted by name."""
    found: dict[str, list[_Place]] = {}
    sizes: dict[bytes, int] = {}
    for place, overview in look_over_all(store, progress):
        for module_id, row in overview.rows.items():
            for kind, name, offset, *_ in row.entries:
                if kind == GROUP and (select is None or select(name)):
                    sizes[module_id], modified = overview.present[module_id]
                    found.setdefault(name, []).append((modified, place, module_id, offset))
    return [_summary(name, places, sizes) for name, places in sorted(found.items())]


def _summary(name: str, places: list[_Place], sizes: dict[bytes, int]) -> GroupSummary:
    newest = max(places, key=lambda found: (found[0], found[2]))
    modules = dict.fromkeys([module_id for _, _, module_id, _ in places])
    return GroupSummary(
        name, _members(*newest[1:]), tuple(sorted([key.hex() for key in modules])), sum(sizes[key] for key in modules),
        min(newest[0], time.time()), tuple(dict.fromkeys([place.source for _, place, *_ in places])),
    )  # fmt: skip


def _members(place: Store, module_id: bytes, offset: int) -> tuple[MemberSummary, ...]:
    """What the file of a group says of its members; nothing where it cannot be read."""
    try:
        with place.open_module(module_id) as module:
            described = decode_group(decode_entry(module.read_record(offset)).data)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return ()
    return tuple([MemberSummary(label, names) for label, _, names in described.members])
