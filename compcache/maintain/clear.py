"""Empties a cache: removes all modules and the files derived from them. Other files are not touched."""

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
    """Remove every module, and the files that `compcache.store.PLACES` marks as cleared; return the number of modules.

    Modules are removed first: an index entry without its module is an ordinary miss, a module without its entry is lost.
    The host's description stays: it does not depend on the modules.

    Raises:
        StorageError: the cache is read-only.
        OSError: a module could not be removed; those before it were.
    """
    store.require_writable()
    # List them first: files that other processes add or merge meanwhile have other names, and stay.
    places = [place for place in PLACES if place.cleared and place is not MODULES]
    others = [store.path(place, name) for place in places for name in store.names(place)]
    packs = stored_packs(store)
    removed = sum([remove_file(store, module_id) and module_id not in packs for module_id in store.module_ids()])
    for module_id in list(store._in_memory):  # which could not be published
        store.tell_gone(module_id)
    store._in_memory.clear()
    store._memory_names.clear()
    store.index.close()
    for path in others:
        remove_directory(store, path)
    remove_lists(store)
    return removed
