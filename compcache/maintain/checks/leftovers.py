"""Looks for temporary and damaged files, and for files that compcache did not write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from compcache.directory.places import MODULES, PLACES, QUARANTINE, VOLUMES, module_id_of
from compcache.files import reraise_interrupt
from compcache.maintain.checks.state import DIRECTORIES
from compcache.maintain.policy import PrunePolicy
from compcache.maintain.prune import clear_leftovers, find_leftovers
from compcache.publish.quarantine import set_aside
from compcache.publish.volumes import contents_of, write_volume
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.maintain.checks.state import CheckState
    from compcache.store import Store

__all__ = ["check_leftovers"]


def check_leftovers(state: CheckState) -> tuple[int, dict[str, int]]:
    """Look for temporary files, damaged files and files that compcache did not write."""
    store = state.store
    found = find_leftovers(store, PrunePolicy(), time.time(), Uses(store, verify=True).torn)
    removed = {file.path for file in clear_leftovers(store, found)} if state.repair else set()
    for file in found:
        done = file.path in removed
        what = "" if done else "; repair or prune removes it"
        state.find("leftover", file.path, f"{file.path}: {file.reason}, {file.size} bytes{what}", note=True, repaired=done)
    strangers = list(_strangers(store))
    for path in strangers:
        state.find("stranger", path, f"{path} was not written by compcache; delete it if it is not needed", note=True)
    _check_volumes(state)
    quarantined = len(store.names(QUARANTINE))
    return len(found) + len(strangers), {"leftovers": len(found), "strangers": len(strangers), "quarantined": quarantined}


def _check_volumes(state: CheckState) -> None:
    """Look for volumes that cannot be read completely. Repair keeps the readable modules."""
    store = state.store
    for fan in store.fans() if store.volumes.are_there() else ():
        store.volumes.of_directory(fan)
    for name, reason in list(store.volumes.damaged.items()):
        path = store.path(VOLUMES, name)
        done = state.repair and _repair_volume(store, name)
        what = "what can be read of it is in another one now" if done else "repair keeps what can be read of it"
        state.find("damaged", path, f"{path} is damaged: {reason}; {what}", repaired=done)


def _repair_volume(store: Store, name: str) -> bool:
    volume = store.volumes.known(name)
    try:
        if volume is not None:
            write_volume(store, contents_of(volume), [volume])
        set_aside(store, store.path(VOLUMES, name))
    except OSError as error:
        reraise_interrupt(error)
        return False
    store.volumes.close()
    return True


def _strangers(store: Store) -> Iterator[str]:
    base = store.directory(MODULES)
    for fan in store.names_in(base):
        for name in store.names_in(f"{base}/{fan}"):
            if module_id_of(name) is None or name[:2] != fan:
                yield f"{base}/{fan}/{name}"
    for directory in DIRECTORIES:
        kinds = [place for place in PLACES if place.directory == directory]
        for name in store.names_in(f"{store.root}/{directory}") if MODULES not in kinds else ():
            if not any(kind.includes(name) for kind in kinds):
                yield f"{store.root}/{directory}/{name}"
