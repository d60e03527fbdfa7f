"""Removes all modules of a cache, and the files derived from modules. Other files are not touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.directory.places import MODULES, PLACES
from compcache.publish.packs import stored_packs
from compcache.publish.removal import remove_file
from compcache.publish.volumes import remove_lists
from compcache.usage.whole_directories import remove_directory

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["clear"]


def clear(store: Store) -> int:
    """Remove all modules and derived files (see `Place.cleared`). Return the number of removed modules.

    Modules are removed before the index, because an index entry without its module is only a miss, but a module without its index entry
    would be lost. The description of the host stays, because it does not depend on modules.

    Raises:
        StorageError: the cache is read-only.
        OSError: a module could not be removed. Other modules may have been removed before.
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
    remove_lists(store)
    return removed
