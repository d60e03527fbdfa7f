"""Check that the index has the functions of all modules, and no other functions."""

from __future__ import annotations

import heapq
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE, name_key
from compcache.errors import FormatError, StorageError
from compcache.formats.entry import index_name
from compcache.formats.index import NUMBER_SIZE, STAMP_SIZE
from compcache.formats.table import all_entries
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.index_rebuild import rebuild_index
from compcache.publish.open_segments import readable_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compcache.formats.index import Segment
    from compcache.maintain.checks.state import CheckState
    from compcache.store import Store

__all__ = ["check_index", "entry_start"]

_NUMBER = slice(KEY_SIZE + DIGEST_SIZE + 4, KEY_SIZE + DIGEST_SIZE + 4 + NUMBER_SIZE)
#: The maximum number of entries of the index in memory at a time.
_RANGE = 1 << 13
#: For how many seconds an addition may be between the publication of its module and of its index entries.
_ADDITION_SECONDS = 1.0
_PAUSE = 0.02  # seconds
#: The maximum number of modules whose existence is remembered.
_REMEMBERED = 1 << 16


def check_index(state: CheckState) -> tuple[int, dict[str, int]]:
    """Compare the index with the modules. If they differ and repair is requested, rebuild the index.

    The entries of data in packs are added to `state.indexed`, which has the functions and the other entries.

    Return the number of index entries that were read, and counts for the report. Raise `StorageError` if the index cannot be read.
    """
    store = state.store
    segments = list(readable_segments(store.index))
    if store.index.problem:
        raise StorageError(f"{store.index.problem}; check needs the index: correct this, and run check again", path=store.root)
    for module_id, entry in state.slices.lists.all_entries():
        if entry is not None:
            kind, name, offset, *_ = entry
            state.indexed.add(entry_start(index_name(kind, name), module_id, offset))
    required = (entry for entry, _ in state.indexed if state.is_present(entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE]))
    missing, stale, checked = _Differences(state), _Differences(state), 0
    for entries, expected in _read_ranges(state, segments, required):
        checked += len(entries)
        missing.add(_still_missing(state, expected - entries), lambda _, exists: exists)
        stale.add(entries - expected, lambda module_id, exists: _was_read(state, module_id) if exists else module_id not in state.unusable)
    damaged = dict(store.index.damaged)
    numbers = {"missing": missing.count, "stale": stale.count, "unverified": _count_unverified(state, segments), "damaged": len(damaged)}
    if damaged or missing.count or stale.count:
        _repair_index(state, missing, stale.count, damaged)
    return checked, numbers


def _still_missing(state: CheckState, entries: set[bytes]) -> set[bytes]:
    """Return the entries that the index still lacks. First wait for additions that may be about to index new modules."""
    store, now = state.store, time.time()
    module_ids = {entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE] for entry in entries}
    latest_change = max([_change_time(store, module_id) for module_id in module_ids], default=0.0)
    end = min(latest_change, now) + _ADDITION_SECONDS
    while entries and now < end:
        time.sleep(_PAUSE)
        now, segments = time.time(), readable_segments(store.index)
        entries = {entry for entry in entries if not any(_has_entry(store, segment, entry) for segment in segments)}
    return entries


def _change_time(store: Store, module_id: bytes) -> float:
    """Return when a module's file was changed, in seconds since the epoch; 0.0 if the file has no readable status."""
    with suppress(OSError):
        return store.files.stat(store.module_path(module_id)).st_ctime
    return 0.0


def _has_entry(store: Store, segment: Segment, entry: bytes) -> bool:
    """Return whether a segment has a function entry, given without the number and the requirement."""
    values = store.index.look_up(segment, entry[:KEY_SIZE], modules=False)
    return any(value.startswith(entry[KEY_SIZE:]) for value in values or ())


class _Differences:
    """Counts the entries that are only in the index, or only in the modules.

    Other processes may change the directory during the check, so the existence of each module is checked again.

    Attributes:
        count: the number of entries.
        example: the module_id of one of these entries, or b"".
    """

    def __init__(self, state: CheckState) -> None:
        self._exists: dict[bytes, bool] = {}
        self._store = state.store
        self.count = 0
        self.example = b""

    def add(self, entries: set[bytes], is_difference: Callable[[bytes, bool], bool]) -> None:
        """Count the entries for which `is_difference(module_id, exists)` returns true. `exists` says whether the module exists now."""
        for entry in entries:
            module_id = entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE]
            exists = self._exists.get(module_id)
            if exists is None:
                exists = self._store.exists(module_id)
                if len(self._exists) < _REMEMBERED:
                    self._exists[module_id] = exists
            if is_difference(module_id, exists):
                self.count += 1
                self.example = self.example or module_id


def _was_read(state: CheckState, module_id: bytes) -> bool:
    """Return whether a module existed and was intact when the check read the modules."""
    is_listed = module_id in state.slices.unlisted or module_id in state.slices.lists.rows([module_id])
    return is_listed and state.is_present(module_id) and module_id not in state.unusable


def _read_ranges(state: CheckState, segments: list[Segment], required: Iterator[bytes]) -> Iterator[tuple[set[bytes], set[bytes]]]:
    """Yield (entries in the segments, entries in `required`) of each range of keys, in order. `required` is sorted.

    A damaged segment is recorded in the index, removed from `segments`, and left out.
    """
    store = state.store
    for segment in list(segments):
        with _record_damage(store, segments, segment):
            texts = segment.requirements
            if any(data[_NUMBER] not in texts for data in all_entries(segment.functions)):
                raise FormatError(f"the segment {segment.name} lacks the CPU requirement of a function")
    bits = (sum(segment.functions.count for segment in segments) // _RANGE).bit_length()
    next_required = next(required, None)
    for number in range(1 << bits):
        entries: set[bytes] = set()
        for segment in list(segments):
            with _record_damage(store, segments, segment):
                entries.update([data[: KEY_SIZE + DIGEST_SIZE + 4] for data in segment.functions.entries_of_range(number, bits)])
        expected = set()
        while next_required is not None and int.from_bytes(next_required[:4], "big") >> (32 - bits) == number:
            expected.add(next_required)
            next_required = next(required, None)
        yield entries, expected
        state.show((number + 1) * _RANGE, _RANGE << bits)


@contextmanager
def _record_damage(store: Store, segments: list[Segment], segment: Segment) -> Iterator[None]:
    """Record a segment as damaged and remove it from `segments` if the block raises `FormatError` or `OSError`."""
    try:
        yield
    except (FormatError, OSError) as error:
        reraise_interrupt(error)
        store.index.damaged[segment.name] = str(error)
        segments.remove(segment)


def entry_start(name: str, module_id: bytes, offset: int) -> bytes:
    """Return the start of the index entry of a function or an entry of data: without the number and the requirement."""
    return name_key(name) + module_id + offset.to_bytes(4, "little")


def _count_unverified(state: CheckState, segments: list[Segment]) -> int:
    """Return the number of modules without a valid stamp and without a reported problem. See `all_entries` for the exception."""
    unverified = 0
    entries = heapq.merge(*[all_entries(segment.modules) for segment in segments])
    entry = next(entries, None)
    for record in state.stamps.pieces(DIGEST_SIZE + STAMP_SIZE):
        module_id, is_stamped = record[:DIGEST_SIZE], False
        while entry is not None and entry[:DIGEST_SIZE] <= module_id:
            is_stamped = is_stamped or entry.startswith(record)
            entry = next(entries, None)
        unverified += not is_stamped and state.is_sound(module_id)
    return unverified


def _repair_index(state: CheckState, missing: _Differences, stale: int, damaged: dict[str, str]) -> None:
    """Report the problems of the index, after rebuilding the index if repair is requested."""
    is_rebuilt = state.try_repair(rebuild_index, state.store)
    advice = "the index was rebuilt" if is_rebuilt else "run check with repair to rebuild the index"
    root = state.store.root
    for name, reason in damaged.items():
        state.report("index", name, f"segment {name} of the index of {root} cannot be used ({reason}); {advice}", repaired=is_rebuilt)
    if missing.count:
        cause = "segments cannot be used" if damaged else "an addition was interrupted"
        delay = "" if is_rebuilt or damaged else ", or run prune an hour after the addition"
        message = (
            f"the index of {root} lacks functions or entries of data ({missing.count}), for example of module {missing.example.hex()}, "
            f"because {cause}; {advice}{delay}"
        )
        state.report("unindexed", root, message, note=True, repaired=is_rebuilt)
    if stale:
        message = f"the index of {root} has entries of removed modules ({stale}), which only take space; {advice}"
        state.report("stale", root, message, note=True, repaired=is_rebuilt)
