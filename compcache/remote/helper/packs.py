"""Packs: the functions that a program asks for when it starts, in one object, so that one request serves a new worker.

A pack is stored under the alphabetically first name in the first question of the start-up: ``ccr3/p/<platform part>/<shelf>/<kk>/<key of
the name>``. It is on the shelf of the card with this name, which is requested first. The name is a content name, so a changed program has
another pack. Packs are learned: a process that may write leaves a pack behind after its start-up. Like a card, a pack is not trusted: each
module in it is verified by its digest and signature. Functions that it lacks are looked up by their cards.

Limitations: packs contain no functions with plain names, because such names may change their meaning.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.identity import label_of
from compcache.remote.card import MAX_UNPACKED, PackedFunction, decode_pack, encode_pack
from compcache.remote.shelves import pack_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from compcache.remote.card import Card

__all__ = ["LARGEST_PACK", "Packs", "StartUp"]

#: The largest total size of the modules in a pack that is made, and the limit when a pack is read, in bytes.
MAX_PACK, LARGEST_PACK = 32 << 20, MAX_UNPACKED
#: The largest size of a module in a pack, in bytes.
_MAX_MODULE = 1 << 20
#: Fewer functions than this are not worth a pack.
_MIN_FUNCTIONS = 4
#: The number of bytes of modules that are remembered for packs.
_REMEMBERED = 64 << 20
#: A start-up ends when it has asked for nothing for this long, or after the longest time, when the program does something else.
_QUIET_SECONDS = 20.0
_LONGEST_SECONDS = 600.0
#: A new pack replaces a stored one if it has more functions by this factor.
_GROWTH = 1.25


class StartUp:
    """The functions that one process has requested so far, and the pack that it started with.

    Args:
        first_name: the alphabetically first name of the first question, under which the pack is stored.
        platform_part: the part of keys for the process's platform (`platform_part_of`).
        shelves: the shelves that it can use, the best first.
        writes: the positions of the stores that it may write to.
    """

    def __init__(self, first_name: str, platform_part: str, shelves: list[str], writes: Sequence[int]) -> None:
        self.first = first_name
        self.platform_part = platform_part
        self.shelves = shelves
        self.writes = writes
        self.names: dict[str, None] = {}
        self.began = self.asked = time.monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.shelf, self.store = "", -1  # where the pack was found, or nowhere
        self.pack: dict[str, PackedFunction] = {}
        self.stored = 0  # the number of functions in the stored pack, as far as this start-up knows

    async def find(self, name: str, seconds: float) -> PackedFunction | None:
        """Return a function from the pack, or None if the pack lacks it or has not arrived within `seconds`."""
        if self.loading is not None and not self.loading.done():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.loading), seconds)
        return self.pack.get(name)

    def is_over(self) -> bool:
        """Return whether the start-up has ended, because it has sent no request lately or has lasted too long."""
        now = time.monotonic()
        return now - self.asked > _QUIET_SECONDS or now - self.began > _LONGEST_SECONDS


class Packs:
    """Fetches and assembles the packs of one helper process's stores.

    The last argument of each callable has the positions of the stores that it may use.

    Args:
        fetch: returns an object and the position of the store that had it, or None.
        store: stores an object, replacing any other; returns whether all stores have it.
        find_shelf: returns the shelf with the best card of a function, or "". The function's pack is on the same shelf.
        note: adds a card to the cards of its function, unless it is there.
    """

    def __init__(
        self, fetch: Callable[[str, Sequence[int]], Awaitable[tuple[bytes, int] | None]],
        store: Callable[[str, bytes, Sequence[int]], Awaitable[bool]],
        find_shelf: Callable[[str, str, list[str], Sequence[int]], Awaitable[str]],
        note: Callable[[str, str, Card, Sequence[int]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._fetch = fetch
        self._find_shelf = find_shelf
        self._note = note
        self._store = store
        self._start_ups: dict[bytes, StartUp] = {}
        self._remembered: OrderedDict[tuple[str, str, str], PackedFunction] = OrderedDict()
        self._remembered_size = 0  # of the modules, in bytes

    def distrust_start_up(self, token: bytes) -> None:
        """Record that a process has rejected a module in its pack. Its look-ups then use cards, and its pack may be replaced."""
        start_up = self._start_ups.get(token)
        if start_up is not None:
            start_up.pack, start_up.stored, start_up.shelf, start_up.store = {}, 0, "", -1

    def knows_process(self, token: bytes) -> bool:
        """Return whether a process has requested a function, and its start-up is not over."""
        return token in self._start_ups

    def join_start_up(self, token: bytes, names: list[str], platform_part: str, shelves: list[str], writes: list[int]) -> StartUp | None:
        """Add a question to the start-up of its process, and return the start-up, or None if the question does not belong to one.

        The first question creates the start-up and begins to fetch its pack.
        """
        content_names = [name for name in names if label_of(name) is not None]
        start_up = self._start_ups.get(token)
        if not token or not (start_up or content_names):
            return start_up
        if start_up is None:
            start_up = self._start_ups[token] = StartUp(min(content_names), platform_part, shelves, writes)
            start_up.loading = asyncio.ensure_future(self._load_pack(start_up))
        start_up.asked = time.monotonic()
        start_up.names.update(dict.fromkeys(content_names))
        return start_up

    def announce_start_up(self, names: list[str], platform_part: str, shelves: list[str], writes: Sequence[int]) -> None:
        """Request a pack of these functions. A later call of `store_packs` stores it."""
        content_names = [name for name in names if label_of(name) is not None]
        if content_names:
            start_up = StartUp(min(content_names), platform_part, shelves, writes)
            start_up.names.update(dict.fromkeys(content_names))
            self._start_ups[repr(sorted(content_names)).encode()] = start_up

    def remember_module(self, platform_part: str, shelf: str, card: Card, module: bytes) -> None:
        """Remember a function for packs. Functions with plain names and large modules are ignored."""
        if label_of(card.name) is None or len(module) > _MAX_MODULE:
            return
        card = card._replace(module=b"", imports=())
        key = platform_part, card.name, shelf
        self._remembered_size += len(module) - len(self._remembered[key].module if key in self._remembered else b"")
        self._remembered[key] = PackedFunction(card, module)
        while self._remembered_size > _REMEMBERED:
            _, dropped = self._remembered.popitem(last=False)
            self._remembered_size -= len(dropped.module)

    async def store_packs(self, *, now: bool) -> None:
        """Store the packs of ended start-ups, or of all start-ups if `now` is set. Raise the error of the store if its client fails."""
        for token, start_up in list(self._start_ups.items()):
            is_over = start_up.is_over()
            if is_over:
                del self._start_ups[token]
            if (is_over or now) and start_up.writes:
                await self._store_pack(start_up)

    async def _store_pack(self, start_up: StartUp) -> None:
        """Store the pack of a start-up under its first function. Do nothing if it is too small, has hardly grown, or has no shelf."""
        items: dict[str, PackedFunction] = {}
        remaining_size = MAX_PACK
        for name in start_up.names:
            _, packed = self._find_known_realization(start_up, name) or ("", None)
            if packed is not None and remaining_size >= len(packed.module):
                items[name] = packed
                remaining_size -= len(packed.module)
        if len(items) < max(_MIN_FUNCTIONS, _GROWTH * start_up.stored):
            return
        first_known = self._find_known_realization(start_up, start_up.first)
        if first_known is not None:  # the card may not have been worth an upload of its own, but refers to the pack
            shelf, first = first_known
            await self._note(start_up.platform_part, shelf, first.card._replace(module=first.module), start_up.writes)
        else:
            shelf = await self._find_shelf(start_up.first, start_up.platform_part, start_up.shelves, start_up.writes)
        key = pack_key(start_up.platform_part, shelf, start_up.first)
        if shelf and await self._store(key, encode_pack(items.values()), start_up.writes):
            start_up.stored = len(items)

    def _find_known_realization(self, start_up: StartUp, name: str) -> tuple[str, PackedFunction] | None:
        """Return the best known realization of a function and its shelf, or None if no realization is known."""
        for shelf in start_up.shelves:
            remembered = self._remembered.get((start_up.platform_part, name, shelf))
            if remembered is None and shelf == start_up.shelf:
                remembered = start_up.pack.get(name)
            if remembered is not None:
                return shelf, remembered
        return None

    async def _load_pack(self, start_up: StartUp) -> None:
        """Fetch and decode the pack of a start-up. A missing or damaged pack leaves the start-up unchanged."""
        shelf = await self._find_shelf(start_up.first, start_up.platform_part, start_up.shelves, start_up.writes)
        pack = await self._fetch(pack_key(start_up.platform_part, shelf, start_up.first), start_up.writes) if shelf else None
        if pack is not None:
            data, store = pack
            with suppress(FormatError):
                start_up.pack, start_up.store = decode_pack(data), store
                start_up.shelf, start_up.stored = shelf, len(start_up.pack)
