"""The linked closures of a cache, from its index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.entry import decode_entry, index_name
from compcache.formats.linked import KIND, NAME
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from compcache.formats.entry import EntryRecord
    from compcache.store import Store

__all__ = ["linked_closures"]


def linked_closures(store: Store) -> dict[bytes, EntryRecord]:
    """Return the describing entry of each linked closure, by the closure's module_id. Unreadable closures are left out."""
    closures = {}
    for module_id, offset in store.find_all(index_name(KIND, NAME)):
        with suppress(CompcacheError, OSError), store.open_module(module_id) as file:
            entry = decode_entry(file.read_record(offset))
            if (entry.kind, entry.name) == (KIND, NAME):
                closures[module_id] = entry
    return closures
