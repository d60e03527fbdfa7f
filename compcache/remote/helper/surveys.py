"""What garbage collections know about cards without reading each one: surveys of the last collection, and deliveries of uploads since then.

A survey: magic, a msgpack list of rows ``[key, size, time, [key of a module, ...]]`` compressed by zlib, and a check over all that. A row
lists the modules that the cards at a key lead to, other than those that they contain; rows of packs list none. A survey at ``ccr3/i/<kk>``
has the cards and packs whose key begins with the same byte.

A delivery has the same layout, and lists the cards and packs that one helper process has stored. Its rows have no time (0), because only
the store knows it. A delivery is stored when all uploads are done or it has a thousand rows, at ``ccr3/d/<random name>``. The collection
that reads it removes it. So the first collection need not read more cards than a later one.

Surveys and deliveries decide nothing: what looks useless by them is requested by its key before it is removed (`garbage.py`). One that is
lost, damaged or of another version costs only the requests that it would have saved.
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
#: How many rows a delivery has, and how many wait at most if the store accepts none.
_ROWS, _MOST_ROWS = 1000, 100_000

_MAGIC = b"CCSURVY1"
_LARGEST = 64 << 20
_AT_ONCE = 32
#: Fewer cards than this are simply read again.
_FEWEST = 1000


class Survey(NamedTuple):
    """The cards at a key when they were read: their state, and the keys of the modules that they lead to."""

    state: tuple[int, int]
    modules: tuple[str, ...]

    def holds(self, state: tuple[int, int]) -> bool:
        """Return whether the survey describes an object in this state. Of a delivery only the size counts, because it only proposes."""
        return self.state == state or self.state == (state[0], 0)


class Deliveries:
    """Collects what one helper process has stored, for garbage collections."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows: dict[str, Survey] = {}

    def note(self, key: str, data: bytes, modules: Iterable[str] = ()) -> None:
        """Record that an object was stored: cards that lead to these modules, or a pack."""
        if len(self._rows) < _MOST_ROWS:
            self._rows[key] = Survey((len(data), 0), tuple(modules))

    async def leave(self, *, now: bool) -> None:
        """Store the recorded rows if there are many, or with `now`.

        Raises:
            Exception: an error of the store's client; the rows are kept.
        """
        while self._rows and (now or len(self._rows) >= _ROWS):
            some = dict(list(self._rows.items())[:_ROWS])
            await self._backend.replace(DELIVERIES + os.urandom(12).hex(), encode_survey(some))
            self._rows = {key: row for key, row in self._rows.items() if some.get(key) is not row}


def encode_survey(rows: dict[str, Survey]) -> bytes:
    """Encode the rows of a survey."""
    plain: bytes = msgpack.packb([[key, *row.state, row.modules] for key, row in sorted(rows.items())])
    data = _MAGIC + zlib.compress(plain, 1)
    return data + check(data)


def decode_survey(data: bytes) -> dict[str, Survey]:
    """Decode the rows of a survey.

    Raises:
        FormatError: the bytes are not a survey, or are damaged.
    """
    if data[: len(_MAGIC)] != _MAGIC or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("these bytes are not a survey of a known version, or are damaged")
    try:
        plain = zlib.decompressobj().decompress(data[len(_MAGIC) : -CHECK_SIZE], _LARGEST)
        return {str(key): Survey((int(size), int(time)), tuple(map(str, modules))) for key, size, time, modules in msgpack.unpackb(plain)}
    except Exception as error:  # from msgpack or zlib, or a field of the wrong type
        raise FormatError(f"the survey does not decode: {error}") from error


async def read_surveys(backend: Backend, cards: Iterable[str]) -> dict[str, Survey]:
    """Return what surveys say about these cards, by key; nothing if there are few cards.

    Raises:
        Exception: an error of the store's client.
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
    """Return what deliveries say, by key.

    Raises:
        Exception: an error of the store's client.
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
    """Store the surveys that differ from what was `known`.

    Raises:
        Exception: an error of the store's client.
    """

    async def write(place: str) -> None:
        mine = {key: rows[key] for key in places[place]}
        if mine != {key: known[key] for key in mine if key in known} or len(mine) != before.get(place, 0):
            await backend.replace(place, encode_survey(mine))

    places = _by_place(rows)
    before = {place: len(keys) for place, keys in _by_place(known).items()}
    await for_each(write, places)


def _by_place(cards: Iterable[str]) -> dict[str, list[str]]:
    """Group the keys of cards by the place of their survey; return nothing if there are few."""
    keys = list(cards)
    places: dict[str, list[str]] = {}
    for key in keys if len(keys) >= _FEWEST else ():
        places.setdefault(f"{LAYOUT}/i/{key.rpartition('/')[2][:2]}", []).append(key)
    return places


async def for_each(work: Callable[[str], Awaitable[None]], places: Iterable[str]) -> None:
    """Call `work` for each place, several at a time."""
    left = list(places)
    while left:
        some, left = left[:_AT_ONCE], left[_AT_ONCE:]
        await asyncio.gather(*map(work, some))
