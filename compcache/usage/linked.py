"""The linked closures of a cache, from its index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.entry import decode_entry, index_name
from compcache.formats.linked import KIND, NAME
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from compcache.formats.entry import EntryRecord
    from compcache.store import Store

__all__ = ["linked_closures"]


def linked_closures(store: Store) -> dict[bytes, EntryRecord]:
    """Return the describing entry of each linked closure, by the closure's module_id. Unreadable closures are left out."""
    closures = {}
    for module_id, offset in store.find_all(index_name(KIND, NAME)):
        try:
            with store.open_module(module_id) as file:
                entry = decode_entry(file.read_record(offset))
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            continue
        if (entry.kind, entry.name) == (KIND, NAME):
            closures[module_id] = entry
    return closures
