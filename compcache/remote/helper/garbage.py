"""Garbage collection in a remote store. It never removes an object that a fetch needs.

A *mark* is an object that lists the objects that a collection found to be garbage: cards that do not decode or whose modules are all
missing, modules that no card names, packs that do not decode, leases. The store's clock gives its age. A collection removes a garbage
object only if a mark older than the grace period lists the same object, unchanged since.

* Listings only propose. Before an object is removed, the collection requests it by its key, and every object that could refer to
  it. A request that fails is not an answer: it ends the collection.
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
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from compcache.digest import check
from compcache.errors import FormatError
from compcache.formats.footer import intact_footer, sections_of
from compcache.formats.manifest_writer import WholeManifest
from compcache.messagepack import pack, unpack
from compcache.remote.card import MAX_CARDS, checked_content, decode_cards, decode_pack
from compcache.remote.helper.backends import TooLargeError
from compcache.remote.helper.packs import LARGEST_PACK
from compcache.remote.helper.reads import LARGEST_MODULE
from compcache.remote.helper.uses import USES, decode_uses, shortened_key
from compcache.remote.maintenance import LONGEST_UNUSED, RemoteGarbage
from compcache.remote.shelves import LAYOUT, card_key, module_key, platform_part_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend
    from compcache.remote.maintenance import RemoteObject

_T = TypeVar("_T")
_R = TypeVar("_R")

__all__ = ["DECISION_SECONDS", "MARKS", "SETTLE_SECONDS", "GarbageCollector", "UncertainError"]

MARKS = f"{LAYOUT}/g/"
#: The lists of stored and of read cards. Version 1.0 writes them, and does not need them.
_FORMER_LISTS = (f"{LAYOUT}/d/", f"{LAYOUT}/i/")
DECISION_SECONDS = 20.0
#: Longer than two decisions and a request that was given up, in seconds.
SETTLE_SECONDS = 120.0
#: The kinds of objects, as in their keys (`shelves.py`).
_CARDS, _LEASE, _MODULE, _PACK = "f", "l", "m", "p"
_MAX_SIZES = {_CARDS: MAX_CARDS, _LEASE: MAX_CARDS, _MODULE: LARGEST_MODULE, _PACK: LARGEST_PACK}
_MAGIC = b"CCMARK1\0"
_LARGEST_MARK = 64 << 20
#: The number of objects that are requested at once.
_AT_ONCE = 32
#: A mark that follows another one by less than this fraction of the grace period is removed.
_SPACING = 0.125


class UncertainError(Exception):
    """Raised if a store's answers are inconsistent."""


class _Mark(NamedTuple):
    """A mark: the listed object in the store, and its rows (size, time) by key."""

    item: RemoteObject
    rows: dict[str, tuple[int, int]]


class GarbageCollector:
    """Collects the garbage of one store. Its methods raise the errors of the store's client, `TimeoutError` and `UncertainError`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def collect(self, *, grace: float, older_than: float | None, dry_run: bool, unused_for: float | None = None) -> RemoteGarbage:
        """Remove the objects that this collection and an earlier one found to be garbage.

        Args:
            grace: the least time between the two collections, in seconds.
            older_than: also remove cards and packs that were written longer ago than this, in seconds.
            unused_for: also remove cards and packs that were written longer ago than this, in seconds, and that no reader has used since
                (`uses.py`).
            dry_run: remove nothing, and write no mark.

        Returns:
            The removed objects, and the garbage that remains.

        Raises:
            UncertainError: the store's answers are inconsistent.
            TimeoutError: a decision took longer than `DECISION_SECONDS`.
            Exception: an error of the store's client.
        """
        cards, packs, modules = [await self._list_objects(f"{LAYOUT}/{kind}/") for kind in (_CARDS, _PACK, _MODULE)]
        garbage = await self._find_garbage(cards, packs, modules)
        marks = await self._read_marks()
        if dry_run:  # writes no mark, so the newest object gives the present time of the store's clock
            listed_objects = [*cards.values(), *packs.values(), *modules.values(), *[mark.item for mark in marks]]
            now = max([item.modified for item in listed_objects], default=0.0)
        else:
            now = await self._write_mark(garbage)
        earlier_marks = [mark for mark in marks if mark.item.modified + grace <= now]
        confirming = max(earlier_marks, key=_time_of_mark, default=None)
        confirmed = [item for item in garbage if confirming is not None and confirming.rows.get(item.key) == _state_of(item)]
        cards_and_packs = (*cards.values(), *packs.values())
        expired = [item for item in cards_and_packs if older_than is not None and 0 < item.modified < now - older_than]
        if unused_for is not None:
            expired += await self._find_unused(cards_and_packs, now, unused_for)
        chosen = dict.fromkeys([*confirmed, *expired])
        removed = [item for item in chosen if dry_run or await self._remove_object(item, only_garbage=item in confirmed)]
        if not dry_run:
            for mark in _marks_to_remove(marks, confirming, grace):
                await self._backend.delete(mark.item.key)
            for prefix in _FORMER_LISTS:
                await _call_concurrently(self._backend.delete, await self._list_objects(prefix))
        return RemoteGarbage(tuple(removed), tuple([item for item in garbage if item not in removed]))

    async def _list_objects(self, prefix: str) -> dict[str, RemoteObject]:
        """Return the newest object listed for each key that begins with a prefix, by key."""
        objects: dict[str, RemoteObject] = {}
        async for item in self._backend.list(prefix):
            objects[item.key] = max(objects.get(item.key, item), item, key=lambda listed: listed.modified)
        return objects

    async def _find_garbage(
        self, cards: dict[str, RemoteObject], packs: dict[str, RemoteObject], modules: dict[str, RemoteObject]
    ) -> list[RemoteObject]:
        """Return the garbage in the listings of cards, packs and modules, and all leases. Each card and each pack is read."""
        named: set[str] = set()

        async def lacks_modules(item: RemoteObject) -> bool:
            """Return whether an object of cards is damaged, or names only modules that the store does not have.

            Add the keys of its modules to `named`.
            """
            data = await self._get_object(item.key, MAX_CARDS)
            if data is None:
                return False
            try:
                cards = decode_cards(data)
            except FormatError:
                return True
            keys = [module_key(card.module_id) for card in cards.values() if not card.module]
            named.update(keys)
            return modules.keys().isdisjoint(keys) and await self._lack_modules(cards.values())

        garbage_cards = await _select_concurrently(cards.values(), lacks_modules)
        damaged_packs = await _select_concurrently(packs.values(), lambda pack: self._is_garbage(pack.key))
        unnamed_modules = [item for key, item in modules.items() if key not in named]
        leases = await self._list_objects(f"{LAYOUT}/{_LEASE}/")  # all count as garbage: the holder of a lease changes it each second
        return [*garbage_cards, *damaged_packs, *unnamed_modules, *leases.values()]

    async def _find_unused(self, cards_and_packs: Iterable[RemoteObject], now: float, seconds: float) -> list[RemoteObject]:
        """Return the cards and packs that are older than `seconds` and that no note of the last `seconds` names.

        Notes that are older than `LONGEST_UNUSED` follow. Objects without a modification time are left out.
        """
        notes = await self._list_objects(USES)
        used_keys = await self._read_uses([note for note in notes.values() if note.modified >= now - seconds])
        unused = [item for item in cards_and_packs if 0 < item.modified < now - seconds and shortened_key(item.key) not in used_keys]
        return unused + [note for note in notes.values() if 0 < note.modified < now - LONGEST_UNUSED]

    async def _read_uses(self, notes: list[RemoteObject]) -> set[bytes]:
        """Read notes of uses, and return the shortened keys of the functions that they name."""

        async def read(note: RemoteObject) -> set[bytes]:
            return decode_uses(await self._get_object(note.key, _LARGEST_MARK) or b"")

        return set[bytes]().union(*await _call_concurrently(read, notes))

    async def _get_object(self, key: str, max_size: int) -> bytes | None:
        """Return an object, or None if it does not exist. Return b"" for an object that is too large, which then counts as damaged."""
        try:
            return await self._backend.get(key, max_size)
        except TooLargeError:
            return b""

    async def _remove_object(self, item: RemoteObject, *, only_garbage: bool) -> bool:
        """Remove an object if it has not changed since the listing; with `only_garbage`, only if it still is garbage.

        Return whether the object was removed.

        Raises:
            TimeoutError: the decision took longer than `DECISION_SECONDS`.
        """
        async with asyncio.timeout(DECISION_SECONDS):
            current = await self._backend.stat(item.key)
            if current is None or _state_of(current) != _state_of(item):
                return False
            if only_garbage and not await self._is_garbage(item.key):
                return False
            await self._backend.delete(item.key)
        return True

    async def _is_garbage(self, key: str) -> bool:
        """Return whether an object is garbage, after requesting the object, the objects that it needs and those that refer to it.

        Damaged objects, empty packs and leases are garbage; missing objects and modules for platforms unknown to this version are not.
        """
        kind = key.removeprefix(f"{LAYOUT}/")[:1]
        data = await self._get_object(key, _MAX_SIZES[kind])
        if data is None or kind == _LEASE:
            return data is not None  # the holder of a lease would have changed it since the listing
        try:
            if kind == _PACK:
                return not decode_pack(data)
            if kind == _CARDS:
                return await self._lack_modules(decode_cards(data).values())
            card_keys = list(_card_keys_of(data))
        except FormatError:
            return True
        except (ValueError, LookupError):  # the module is for a platform that this version does not know
            return False
        return not any([await self._names_module(card_key, key) for card_key in card_keys])

    async def _lack_modules(self, cards: Iterable[Card]) -> bool:
        """Return whether no card contains its module, and the store has none of the modules."""
        for card in cards:
            if card.module or await self._backend.stat(module_key(card.module_id)) is not None:
                return False
        return True

    async def _names_module(self, cards_key: str, key: str) -> bool:
        """Return whether one of the cards at the key `cards_key` names the module at `key`. Missing and damaged cards name none."""
        data = await self._get_object(cards_key, MAX_CARDS)
        try:
            return data is not None and any(module_key(card.module_id) == key for card in decode_cards(data).values())
        except FormatError:
            return False

    async def _write_mark(self, garbage: list[RemoteObject]) -> float:
        """Store a mark for later collections. Return its modification time by the store's clock.

        Raise `UncertainError` if the store does not report the mark or its modification time.
        """
        key = MARKS + os.urandom(12).hex()
        data = _MAGIC + pack([[item.key, *_state_of(item)] for item in garbage])
        await self._backend.replace(key, data + check(data))
        stored = await self._backend.stat(key)
        if stored is None:
            raise UncertainError(f"the store lacks the object {key}, which was just stored: try again later")
        if not stored.modified:
            raise UncertainError(f"the store reports no modification time for the object {key}, so its garbage cannot be removed safely")
        return stored.modified

    async def _read_marks(self) -> list[_Mark]:
        """Return the marks of earlier collections. Marks that another collection removes in the meantime are left out."""
        marks = [await self._read_mark(item) for item in (await self._list_objects(MARKS)).values()]
        return [mark for mark in marks if mark is not None]

    async def _read_mark(self, item: RemoteObject) -> _Mark | None:
        """Read and decode a mark. Return None if it was removed. A damaged mark has no rows."""
        data = await self._get_object(item.key, _LARGEST_MARK)
        stored = await self._backend.stat(item.key)
        if data is None or stored is None:
            return None
        rows = {}
        with suppress(FormatError, ValueError, TypeError):
            rows = {key: (size, time) for key, size, time in unpack(checked_content(data, _MAGIC, "the mark"))}
        return _Mark(stored, rows)


def _state_of(item: RemoteObject) -> tuple[int, int]:
    """Return an object's size and its modification time in whole seconds, which identify one version of the object.

    Fractions are dropped, because only listings contain them.
    """
    return item.size, int(item.modified)


def _time_of_mark(mark: _Mark) -> float:
    """Return when a mark was written, in seconds since the epoch."""
    return mark.item.modified


def _marks_to_remove(marks: list[_Mark], confirming: _Mark | None, grace: float) -> Iterator[_Mark]:
    """Yield the marks that no later collection needs: marks older than `confirming`, if any, and marks that closely follow another mark."""
    last_time = _time_of_mark(confirming) if confirming is not None else float("-inf")
    for mark in sorted(marks, key=_time_of_mark):
        if mark is not confirming and _time_of_mark(mark) < last_time + _SPACING * grace:
            yield mark
        else:
            last_time = _time_of_mark(mark)


async def _select_concurrently(items: Iterable[RemoteObject], choose: Callable[[RemoteObject], Awaitable[bool]]) -> list[RemoteObject]:
    """Return the items for which `choose` returns True. At most `_AT_ONCE` calls run concurrently. Raise the first exception."""
    items = list(items)
    return list(compress(items, await _call_concurrently(choose, items)))


async def _call_concurrently(work: Callable[[_T], Awaitable[_R]], items: Iterable[_T]) -> list[_R]:
    """Await `work(item)` for each item, at most `_AT_ONCE` at a time, and return the results in order. Raise the first exception."""
    remaining, results = iter(items), list[_R]()
    while batch := list(islice(remaining, _AT_ONCE)):
        results += await asyncio.gather(*map(work, batch))
    return results


def _card_keys_of(data: bytes) -> Iterator[str]:
    """Yield the keys of all cards that may name this module.

    Raises:
        FormatError: the bytes are not an intact module.
        ValueError, LookupError: the module is for a platform that this version does not know.
    """
    _image, records, *_ = sections_of(data, intact_footer(data))
    manifest: Any = WholeManifest(records)
    platform_part = platform_part_of(manifest.header.triple, manifest.header.abi)
    for name, *_ in manifest.indexed():
        yield card_key(platform_part, name)
