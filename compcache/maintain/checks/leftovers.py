"""Check for temporary files, damaged files, and files that compcache did not write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache.directory.places import MODULES, PLACES, QUARANTINE, VOLUMES, module_id_of
from compcache.maintain.checks.state import DIRECTORIES
from compcache.maintain.policy import PrunePolicy
from compcache.maintain.prune import clear_leftovers, find_leftovers
from compcache.publish.quarantine import move_to_quarantine
from compcache.publish.volumes import contents_of, write_volume
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.maintain.checks.state import CheckState
    from compcache.store import Store

__all__ = ["check_leftovers"]


def check_leftovers(state: CheckState) -> tuple[int, dict[str, int]]:
    """Report leftovers, unknown files and damaged volumes. A repair removes leftovers and rewrites damaged volumes.

    Return the number of leftovers and unknown files, and counts for the report.
    """
    store = state.store
    leftovers = find_leftovers(store, PrunePolicy(), time.time(), Uses(store, verify=True).torn)
    removed = {file.path for file in clear_leftovers(store, leftovers)} if state.repair else set()
    for file in leftovers:
        is_removed = file.path in removed
        advice = "" if is_removed else "; run check with repair, or prune, to remove the file"
        state.report("leftover", file.path, f"{file.path} ({file.size} bytes) is {file.reason}{advice}", note=True, repaired=is_removed)
    unknown = list(_unknown_files(store))
    for path in unknown:
        state.report("stranger", path, f"compcache did not write {path}; delete the file if it is not needed", note=True)
    _check_volumes(state)
    quarantined = len(store.names(QUARANTINE))
    return len(leftovers) + len(unknown), {"leftovers": len(leftovers), "strangers": len(unknown), "quarantined": quarantined}


def _check_volumes(state: CheckState) -> None:
    """Report volumes that cannot be read completely. A repair saves their readable modules."""
    store = state.store
    if store.volumes.has_volumes():
        for fan in store.fans():
            store.volumes.of_directory(fan)  # reads all tables, and records damage
    for name, reason in list(store.volumes.damaged.items()):
        path = store.path(VOLUMES, name)
        is_repaired = state.try_repair(_repair_volume, store, name)
        advice = "its readable modules were saved" if is_repaired else "run check with repair to save its readable modules"
        state.report("damaged", path, f"{path} cannot be used completely: {reason}; {advice}", repaired=is_repaired)


def _repair_volume(store: Store, name: str) -> None:
    """Copy the readable modules of a volume into a new volume, and move the old file to quarantine. Raise `OSError` if that fails."""
    volume = store.volumes.known(name)
    if volume is not None:
        write_volume(store, contents_of(volume), [volume])
    move_to_quarantine(store, store.path(VOLUMES, name))
    store.volumes.close()


def _unknown_files(store: Store) -> Iterator[str]:
    """Yield the paths of files in the directories of the cache that compcache did not write."""
    base = store.directory(MODULES)
    for fan in store.names_in(base):
        for name in store.names_in(f"{base}/{fan}"):
            if module_id_of(name) is None or name[:2] != fan:
                yield f"{base}/{fan}/{name}"
    for directory in DIRECTORIES:
        places = [place for place in PLACES if place.directory == directory]
        if MODULES in places:
            continue
        for name in store.names_in(f"{store.root}/{directory}"):
            if not any(kind.includes(name) for kind in places):
                yield f"{store.root}/{directory}/{name}"
