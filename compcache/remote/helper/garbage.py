"""Collects garbage in a remote store. No function that can be fetched is lost, whatever happens meanwhile.

A *mark* is an object that lists the objects that a collection found to be garbage: cards that do not decode or whose module is missing,
modules that no card names, packs that do not decode, leases. The store's clock gives its age. A collection removes a garbage object
only if a mark older than the grace period lists the same object, unchanged since.

* Listings only propose. Before an object is removed, the collection requests it by its key, and every object that could make it
  useful. A request that fails is not an answer: it ends the collection.
* At most `DECISION_SECONDS` pass between that request and the removal. `SETTLE_SECONDS` after an upload, the uploader checks whether
  everything is still there, and uploads again what is not (`uploads.py`). So an upload that crosses a collection is complete in the end.

Layout of a mark: a magic, a msgpack list of rows ``[key, size, time]``, and a check over all that. Marks are at ``ccr3/g/<random
name>``.

Limitations: a store that answers wrongly that an object does not exist is believed. A request that was given up may still take effect a
minute later.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from compcache.digest import CHECK_SIZE, check
from compcache.errors import FormatError
from compcache.formats.footer import intact_footer, sections_of
from compcache.formats.manifest_writer import WholeManifest
from compcache.remote.card import MAX_CARDS, decode_cards, decode_pack
from compcache.remote.helper.backends import TooLargeError
from compcache.remote.helper.packs import LARGEST_PACK
from compcache.remote.helper.reads import LARGEST_MODULE
from compcache.remote.helper.surveys import DELIVERIES, Survey, for_each, read_deliveries, read_surveys, write_surveys
from compcache.remote.helper.uses import USES, decode_uses, use_of
from compcache.remote.maintenance import LONGEST_UNUSED
from compcache.remote.shelves import LAYOUT, card_key, module_key, platform_shelf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from compcache.remote.helper.backends import Backend, Listed

__all__ = ["DECISION_SECONDS", "MARKS", "SETTLE_SECONDS", "Collected", "GarbageCollector", "UncertainError"]

MARKS = f"{LAYOUT}/g/"
DECISION_SECONDS = 20.0
#: Longer than two decisions and a request that was given up, in seconds.
SETTLE_SECONDS = 120.0
_MAGIC = b"CCMARK1\0"
_LARGEST_MARK = 64 << 20
_AT_ONCE = 32
#: A mark that follows another one by less than this fraction of the grace period is removed.
_SPACING = 0.125


class UncertainError(Exception):
    """Raised if the answers of a store contradict each other."""


class Collected(NamedTuple):
    """The objects that a collection removed, and the garbage that it left for a later collection."""

    removed: list[Listed]
    left: list[Listed]


class _Mark(NamedTuple):
    """A mark: the listed object in the store, and its rows (size, time) by key."""

    place: Listed
    rows: dict[str, tuple[int, int]]


class GarbageCollector:
    """Collects the garbage of one store. Its methods raise the errors of the store's client, `TimeoutError` and `UncertainError`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, Survey] = {}  # from surveys of earlier collections
        self._surveyed: dict[str, Survey] = {}  # for the surveys of this collection
        self._delivered: dict[str, Survey] = {}  # from uploads since the last collection

    async def collect(self, *, grace: float, older_than: float | None, dry_run: bool, unused_for: float | None = None) -> Collected:
        """Remove the objects that two collections found to be garbage.

        Optionally, also remove cards and packs that are too old, or unused for too long.

        Args:
            grace: the least time between the two collections, in seconds.
            older_than: also remove cards and packs that were written longer ago than this, in seconds.
            unused_for: also remove cards and packs that were written longer ago than this, in seconds, and that no reader has used since
                (`uses.py`).
            dry_run: remove nothing, and write no mark.

        Raises:
            UncertainError, TimeoutError: the store's answers contradict each other, or a decision took too long.
            Exception: an error of the store's client.
        """
        deliveries = await self._list(DELIVERIES)
        cards, packs, modules = [await self._list(f"{LAYOUT}/{kind}/") for kind in "fpm"]
        self._delivered = await read_deliveries(self._backend, deliveries)
        garbage = await self._find_garbage(cards, packs, modules)
        marks = [mark for item in (await self._list(MARKS)).values() if (mark := await self._read_mark(item)) is not None]
        if dry_run:
            now = max(
                [item.modified for item in (*cards.values(), *packs.values(), *modules.values(), *[m.place for m in marks])], default=0.0
            )
        else:
            now = await self._write_mark(garbage)
            await write_surveys(self._backend, self._known, self._surveyed)
            await for_each(self._backend.delete, deliveries)
        old = max([mark for mark in marks if mark.place.modified + grace <= now], key=lambda mark: mark.place.modified, default=None)
        doomed = [item for item in garbage if old is not None and old.rows.get(item.key) == _state(item)]
        known = (*cards.values(), *packs.values())
        aged = [item for item in known if older_than is not None and 0 < item.modified < now - older_than]
        if unused_for is not None:
            notes = await self._list(USES)
            used = await self._read_uses([note for note in notes.values() if note.modified >= now - unused_for])
            aged += [item for item in known if 0 < item.modified < now - unused_for and use_of(item.key) not in used]
            aged += [note for note in notes.values() if 0 < note.modified < now - LONGEST_UNUSED]
        removed = [
            item
            for item in dict.fromkeys([*doomed, *aged])
            if dry_run or await self._remove(item, self._is_garbage if item in doomed else self._always)
        ]
        if not dry_run:
            for mark in _superfluous(marks, old, grace):
                await self._backend.delete(mark.place.key)
        return Collected(removed, [item for item in garbage if item not in removed])

    # ---------------------------------------------------------------- surveying

    async def _list(self, prefix: str) -> dict[str, Listed]:
        """Return the objects below a prefix by key. If a key is listed several times, the newest counts."""
        found: dict[str, Listed] = {}
        async for item in self._backend.list(prefix):
            if not item.key.rpartition("/")[2].startswith("."):
                known = found.get(item.key)
                found[item.key] = item if known is None else max(known, item, key=lambda listed: listed.modified)
        return found

    async def _find_garbage(self, cards: dict[str, Listed], packs: dict[str, Listed], modules: dict[str, Listed]) -> list[Listed]:
        """Return the objects that are garbage according to the listings."""
        named: set[str] = set()
        self._known = await read_surveys(self._backend, [*cards, *packs])

        async def lacks_modules(item: Listed) -> bool:
            row = self._find_survey(item)
            if row is not None and (not row.modules or any(key in modules for key in row.modules)):
                named.update(row.modules)
                self._surveyed[item.key] = row
                return False
            data = await self._get(item.key, MAX_CARDS)
            try:
                cards = decode_cards(data) if data is not None else None
            except FormatError:
                return True
            if cards is None:
                return False
            keys = [module_key(card.module_id) for card in cards.values() if not card.module]
            named.update(keys)
            self._surveyed[item.key] = Survey(_state(item), tuple(keys))
            return len(keys) == len(cards) and all([key not in modules and await self._backend.look(key) is None for key in keys])

        async def is_damaged(item: Listed) -> bool:
            if self._find_survey(item) is None and await self._is_garbage(item.key):
                return True
            self._surveyed[item.key] = Survey(_state(item), ())
            return False

        garbage = await _select(cards.values(), lacks_modules)
        garbage += await _select(packs.values(), is_damaged)
        leases = await self._list(f"{LAYOUT}/l/")  # all count as garbage: the holder of a lease changes it each second
        return [*garbage, *[item for key, item in modules.items() if key not in named], *leases.values()]

    def _find_survey(self, item: Listed) -> Survey | None:
        """Return the known survey of an object in its listed state, or None."""
        for rows in (self._known, self._delivered):
            row = rows.get(item.key)
            if row is not None and row.holds(_state(item)):
                return row._replace(state=_state(item))
        return None

    async def _read_uses(self, notes: list[Listed]) -> set[bytes]:
        """Return the shortened keys of the functions that the notes of readers name."""
        used: set[bytes] = set()
        for at in range(0, len(notes), _AT_ONCE):
            found = await asyncio.gather(*[self._get(note.key, _LARGEST_MARK) for note in notes[at : at + _AT_ONCE]])
            used.update(*[decode_uses(data or b"") for data in found])
        return used

    async def _get(self, key: str, largest: int) -> bytes | None:
        """Return an object, or None if it does not exist. An object that is too large counts as damaged: the result is empty."""
        try:
            return await self._backend.get(key, largest)
        except TooLargeError:
            return b""

    # ----------------------------------------------------------------- deciding

    async def _remove(self, item: Listed, is_removable: Callable[[str], Awaitable[bool]]) -> bool:
        """Remove an object if it is unchanged and `is_removable` confirms it. Return whether it was removed.

        Raises:
            TimeoutError: the decision took longer than `DECISION_SECONDS`.
        """
        async with asyncio.timeout(DECISION_SECONDS):
            present = await self._backend.look(item.key)
            if present is None or _state(present) != _state(item) or not await is_removable(item.key):
                return False
            await self._backend.delete(item.key)
        return True

    async def _always(self, _: str) -> bool:
        """Return True: an old or unused object may be removed whenever it exists."""
        return True

    async def _is_garbage(self, key: str) -> bool:
        """Request an object and the objects that it needs or that refer to it, and return whether it is garbage now."""
        kind = key.removeprefix(f"{LAYOUT}/")[:1]
        largest = {"f": MAX_CARDS, "p": LARGEST_PACK, "m": LARGEST_MODULE, "l": MAX_CARDS}[kind]
        data = await self._get(key, largest)
        if data is None:
            return False
        try:
            if kind in "lp":
                return kind == "l" or not decode_pack(data)
            if kind == "f":
                cards = decode_cards(data).values()
                return all([not card.module and await self._backend.look(module_key(card.module_id)) is None for card in cards])
            places = list(_card_keys_of(data))
        except FormatError:
            return True
        except (ValueError, LookupError):  # the module is for a platform that this version does not know
            return False
        return not any([await self._names_module(place, key) for place in places])

    async def _names_module(self, place: str, key: str) -> bool:
        """Return whether one of the cards at `place` names the module at `key`."""
        data = await self._get(place, MAX_CARDS)
        try:
            return data is not None and any(module_key(card.module_id) == key for card in decode_cards(data).values())
        except FormatError:
            return False

    # -------------------------------------------------------------------- marks

    async def _write_mark(self, garbage: list[Listed]) -> float:
        """Write a mark for later collections. Return its modification time by the store's clock.

        Raises:
            UncertainError: the store does not show the mark, or its time.
        """
        key = MARKS + os.urandom(12).hex()
        data: bytes = _MAGIC + msgpack.packb([[item.key, *_state(item)] for item in garbage])
        await self._backend.replace(key, data + check(data))
        place = await self._backend.look(key)
        if place is None or not place.modified:
            raise UncertainError(f"the store does not show the object {key}, which was just stored, with its modification time")
        return place.modified

    async def _read_mark(self, item: Listed) -> _Mark | None:
        """Return a mark, or None if it was removed. A damaged mark has no rows."""
        data = await self._get(item.key, _LARGEST_MARK)
        place = await self._backend.look(item.key)
        if data is None or place is None:
            return None
        rows = {}
        if data[: len(_MAGIC)] == _MAGIC and check(data[:-CHECK_SIZE]) == data[-CHECK_SIZE:]:
            with suppress(ValueError, TypeError):
                rows = {key: (size, time) for key, size, time in msgpack.unpackb(data[len(_MAGIC) : -CHECK_SIZE])}
        return _Mark(place, rows)


def _state(item: Listed) -> tuple[int, int]:
    """Return the size and the time in whole seconds, which distinguish an object from a later one with the same key.

    Only listings contain fractions of a second.
    """
    return item.size, int(item.modified)


def _superfluous(marks: list[_Mark], old: _Mark | None, grace: float) -> Iterator[_Mark]:
    """Yield the marks that no later collection needs: those before the mark that was used, and those that closely follow another mark."""
    kept = old.place.modified if old is not None else float("-inf")
    for mark in sorted(marks, key=lambda mark: mark.place.modified):
        if mark is not old and mark.place.modified < kept + _SPACING * grace:
            yield mark
        else:
            kept = mark.place.modified


async def _select(items: Iterable[Listed], choose: Callable[[Listed], Awaitable[bool]]) -> list[Listed]:
    """Return the items for which `choose` returns True. Several calls run at a time."""
    items = list(items)
    found: list[Listed] = []
    for at in range(0, len(items), _AT_ONCE):
        some = items[at : at + _AT_ONCE]
        answers = await asyncio.gather(*[choose(item) for item in some])
        found += [item for item, answer in zip(some, answers, strict=True) if answer]
    return found


def _card_keys_of(data: bytes) -> Iterator[str]:
    """Yield the keys of all cards that can name a module.

    Raises:
        FormatError: the bytes are not an intact module.
    """
    manifest: Any = WholeManifest(sections_of(data, intact_footer(data))[1])
    platform = platform_shelf(manifest.header.triple, manifest.header.abi)
    for name, *_ in manifest.indexed():
        yield card_key(platform, name)
