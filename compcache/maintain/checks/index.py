"""Checks that the index has the functions of the modules, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE, name_key
from compcache.errors import FormatError, IntegrityError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats.index import NUMBER_SIZE, Stamp
from compcache.formats.table import all_entries

if TYPE_CHECKING:
    import os

    from compcache.maintain.checks.state import CheckState
    from compcache.store import Store

__all__ = ["check_index"]

_NUMBER = slice(KEY_SIZE + DIGEST_SIZE + 4, KEY_SIZE + DIGEST_SIZE + 4 + NUMBER_SIZE)
_ATTEMPTS = 8  # at reading the index while other processes merge it


def check_index(state: CheckState) -> tuple[int, dict[str, int]]:
    """Compare the index with the modules."""
    store = state.store
    entries, stamps = _index_content(store)
    wanted = _wanted_entries(state)
    # Other processes add, prune and merge meanwhile: check entries that differ once more.
    there = {module_id: store.exists(module_id) for module_id in {*map(_module_of, wanted ^ entries)}}
    missing = {entry for entry in wanted - entries if there[_module_of(entry)]}
    stale = {
        entry
        for entry in entries - wanted
        if (_module_of(entry) in state.rows or not there[_module_of(entry)]) and _module_of(entry) not in state.unusable
    }
    unverified = sum(1 for module_id, status in state.present.items() if not _is_stamped(stamps.get(module_id, ()), status))
    damaged = dict(store.index.damaged)
    numbers = {"missing": len(missing), "stale": len(stale), "unverified": unverified, "damaged": len(damaged)}
    if damaged or missing or stale:
        _repair_index(state, missing, stale, damaged)
    return len(entries), numbers


def _module_of(entry: bytes) -> bytes:
    return entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE]


def _index_content(store: Store) -> tuple[set[bytes], dict[bytes, list[bytes]]]:
    """The function entries and the module entries of all segments, as of one moment."""
    for _ in range(_ATTEMPTS):
        try:
            store.index.refresh()
            return _read_index(store)
        except FileNotFoundError as error:
            reraise_interrupt(error)
            continue  # the segment was merged into another one meanwhile
        except OSError as error:
            reraise_interrupt(error)
            raise StorageError(f"cannot read the index of {store.root}: {error}", path=store.root) from error
    return _read_index(store, or_fail=False)


def _read_index(store: Store, *, or_fail: bool = True) -> tuple[set[bytes], dict[bytes, list[bytes]]]:
    entries: set[bytes] = set()
    stamps: dict[bytes, list[bytes]] = {}
    for segment in store.index.segments:
        try:
            texts = segment.requirements
            unknown = [data for data in all_entries(segment.functions) if data[_NUMBER] not in texts]
            if unknown:
                raise FormatError("a function entry names a requirement that the segment does not have")
            entries.update([data[: KEY_SIZE + DIGEST_SIZE + 4] for data in all_entries(segment.functions)])
            for data in all_entries(segment.modules):
                stamps.setdefault(data[:DIGEST_SIZE], []).append(data)
        except FileNotFoundError as error:
            reraise_interrupt(error)
            if or_fail:
                raise
        except (FormatError, OSError) as error:
            reraise_interrupt(error)
            store.index.damaged[segment.name] = str(error)
    return entries, stamps


def _wanted_entries(state: CheckState) -> set[bytes]:
    return {
        name_key(name) + module_id + offset.to_bytes(4, "little") for module_id, row in state.rows.items() for name, offset in row.indexed()
    }


def _is_stamped(entries: list[bytes] | tuple[()], status: os.stat_result) -> bool:
    wanted = Stamp.packed(status)
    return any(data.startswith(wanted, DIGEST_SIZE) for data in entries)


def _repair_index(state: CheckState, missing: set[bytes], stale: set[bytes], damaged: dict[str, str]) -> None:
    done = state.repair and _rebuild(state)
    what = "it was rebuilt" if done else "repair rebuilds it"
    root = state.store.root
    for name, reason in damaged.items():
        state.find("index", name, f"segment {name} of the index is damaged ({reason}); {what}", repaired=done)
    if missing:
        example = next(iter(missing))[KEY_SIZE : KEY_SIZE + DIGEST_SIZE].hex()
        message = (
            f"the index of {root} lacks {len(missing)} functions and entries of data, for example of module {example}: an addition was "
            f"interrupted, and look-ups of them miss; {what}{'' if done else ', prune adds them after an hour'}"
        )
        state.find("unindexed", root, message, note=True, repaired=done)
    if stale:
        message = f"the index of {root} has {len(stale)} entries of removed modules, which only cost space; {what}"
        state.find("stale", root, message, note=True, repaired=done)


def _rebuild(state: CheckState) -> bool:
    from compcache.publish.index_rebuild import rebuild_index

    try:
        rebuild_index(state.store)
    except (OSError, IntegrityError) as error:
        reraise_interrupt(error)
        return False
    return True
