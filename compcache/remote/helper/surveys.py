"""What collections of garbage know of cards without reading each: what the last one has read, and what uploads have told since.

A survey: magic, a msgpack list of rows ``[key, size, time, [key of a module, ...]]`` compressed by zlib, and the check of all that. A row
says which modules the cards at a key lead to, other than those that they hold; packs have rows without modules. Cards and packs whose own
key begins with the same byte are in one survey: ``ccr3/i/<kk>``.

A delivery has the same form: what one helper process has stored of cards and packs. Its rows have no time (0), because the store alone
knows that. It is left when all that waited is uploaded, or a thousand rows are known, and removed by the collection that has read it:
``ccr3/d/<random name>``. So the first collection reads cards no more than a later one.

A survey decides nothing, nor does a delivery: what looks useless by it is asked for by its key before it is removed (`garbage.py`). One
that is lost, damaged or of another version costs the requests that it spares.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from compcache.digest import CHECK_SIZE, check
from compcache.errors import FormatError
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from compcache.remote.helper.backends import Backend

__all__ = [
    "DELIVERIES", "Deliveries", "Survey", "decode_survey", "encode_survey", "for_each", "read_deliveries", "read_surveys", "write_surveys",
]  # fmt: skip

DELIVERIES = f"{LAYOUT}/d/"
#: The rows of a delivery, and how many wait at most for a store that takes none.
_ROWS, _MOST_ROWS = 1000, 100_000

_MAGIC = b"CCSURVY1"
_LARGEST = 64 << 20
_AT_ONCE = 32
#: For fewer cards than these reading them anew costs little.
_FEWEST = 1000


class Survey(NamedTuple):
    """What was read of the cards at a key: their state then, and the keys of the modules that they lead to."""

    state: tuple[int, int]
    modules: tuple[str, ...]

    def holds(self, state: tuple[int, int]) -> bool:
        """Whether it says what an object in this state has. Of a delivery the size alone counts: it only proposes."""
        return self.state == state or self.state == (state[0], 0)


class Deliveries:
    """What one helper process has stored, for collections of garbage."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows: dict[str, Survey] = {}

    def note(self, key: str, data: bytes, modules: Iterable[str] = ()) -> None:
        """An object was stored: cards that lead to these modules, or a pack."""
        if len(self._rows) < _MOST_ROWS:
            self._rows[key] = Survey((len(data), 0), tuple(modules))

    async def leave(self, *, now: bool) -> None:
        """Store what was noted, if that is much, or `now`.

        Raises:
            Exception: what the client raises; it stays noted.
        """
        while self._rows and (now or len(self._rows) >= _ROWS):
            some = dict(list(self._rows.items())[:_ROWS])
            await self._backend.replace(DELIVERIES + os.urandom(12).hex(), encode_survey(some))
            self._rows = {key: row for key, row in self._rows.items() if some.get(key) is not row}


def encode_survey(rows: dict[str, Survey]) -> bytes:
    """The bytes of a survey."""
    plain: bytes = msgpack.packb([[key, *row.state, row.modules] for key, row in sorted(rows.items())])
    data = _MAGIC + zlib.compress(plain, 1)
    return data + check(data)


def decode_survey(data: bytes) -> dict[str, Survey]:
    """The rows of a survey.

    Raises:
        FormatError: the bytes are not one, or damaged.
    """
    if data[: len(_MAGIC)] != _MAGIC or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("it is not a survey of a known version, or damaged")
    try:
        plain = zlib.decompressobj().decompress(data[len(_MAGIC) : -CHECK_SIZE], _LARGEST)
        return {str(key): Survey((int(size), int(time)), tuple(map(str, modules))) for key, size, time, modules in msgpack.unpackb(plain)}
    except Exception as error:  # of msgpack, zlib, or fields of other types
        raise FormatError(f"the survey does not decode: {error}") from error


async def read_surveys(backend: Backend, cards: Iterable[str]) -> dict[str, Survey]:
    """What is known of these cards, by key; nothing where they are few.

    Raises:
        Exception: what the client raises.
    """
    found: dict[str, Survey] = {}

    async def read(place: str) -> None:
        data = await backend.get(place, _LARGEST)
        if data is not None:
            try:
                found.update(decode_survey(data))
            except FormatError:
                return

    await for_each(read, _by_place(cards))
    return found


async def read_deliveries(backend: Backend, places: Iterable[str]) -> dict[str, Survey]:
    """What uploads have told, by key.

    Raises:
        Exception: what the client raises.
    """
    found: dict[str, Survey] = {}

    async def read(place: str) -> None:
        data = await backend.get(place, _LARGEST)
        try:
            found.update(decode_survey(data or b""))
        except FormatError:
            return

    await for_each(read, places)
    return found


async def write_surveys(backend: Backend, known: dict[str, Survey], rows: dict[str, Survey]) -> None:
    """Store what is known now where that differs from what was `known`.

    Raises:
        Exception: what the client raises.
    """

    async def write(place: str) -> None:
        mine = {key: rows[key] for key in places[place]}
        if mine != {key: known[key] for key in mine if key in known} or len(mine) != before.get(place, 0):
            await backend.replace(place, encode_survey(mine))

    places = _by_place(rows)
    before = {place: len(keys) for place, keys in _by_place(known).items()}
    await for_each(write, places)


def _by_place(cards: Iterable[str]) -> dict[str, list[str]]:
    """The keys of cards by the place of their survey; none where they are few."""
    keys = list(cards)
    places: dict[str, list[str]] = {}
    for key in keys if len(keys) >= _FEWEST else ():
        places.setdefault(f"{LAYOUT}/i/{key.rpartition('/')[2][:2]}", []).append(key)
    return places


async def for_each(work: Callable[[str], Awaitable[None]], places: Iterable[str]) -> None:
    """Do something for each place, so many at a time."""
    left = list(places)
    while left:
        some, left = left[:_AT_ONCE], left[_AT_ONCE:]
        await asyncio.gather(*map(work, some))
