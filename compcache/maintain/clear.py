"""Emptying a cache: every module goes, and what was derived from them. Only files that the package made are touched."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["clear"]

_DERIVED = ("index-v1", "catalog-v1", "refusals-v1", "quarantine")


def clear(store: Store) -> int:
    """Remove every module, index and catalog, refusals and what is in quarantine; how many modules those were.

    The modules go first: an index that names modules which are gone is an ordinary miss, not the other way round.
    The host's description stays, for it does not depend on the modules.

    Raises:
        StorageError: the cache is read-only.
        OSError: a module could not be removed; those before it are gone.
    """
    store.require_writable()
    # What is there now: whoever adds or merges meanwhile writes files of other names, which stay.
    derived = [path for name in _DERIVED for path in _files_of(store, store.path(name))]
    removed = sum([store.remove_module(module_id) for module_id in store.module_ids()])
    store.index.close()
    for path in derived:
        with contextlib.suppress(OSError):
            store.files.unlink(path)
    return removed


def _files_of(store: Store, directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in store.files.listdir(directory)]
    except OSError:
        return []
