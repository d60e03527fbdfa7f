"""Emptying a cache: every module goes, and what was derived from them. Only files that the package made are touched."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from compcache.store import MODULES, PLACES

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["clear"]


def clear(store: Store) -> int:
    """Remove every module, and what `compcache.store.PLACES` says goes with them; how many modules those were.

    The modules go first: an index that names modules which are gone is an ordinary miss, not the other way round.
    The host's description stays, for it does not depend on the modules.

    Raises:
        StorageError: the cache is read-only.
        OSError: a module could not be removed; those before it are gone.
    """
    store.require_writable()
    # What is there now: whoever adds or merges meanwhile writes files of other names, which stay.
    places = [place for place in PLACES if place.cleared and place is not MODULES]
    others = [store.path(place, name) for place in places for name in store.names(place)]
    removed = sum([store.remove_module(module_id) for module_id in store.module_ids()])
    store.index.close()
    for path in others:
        with contextlib.suppress(OSError):
            store.files.unlink(path)
    return removed
