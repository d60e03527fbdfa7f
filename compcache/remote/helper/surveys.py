"""Surveys and deliveries, which spare garbage collections the reading of cards.

Layout of a survey: a magic, a msgpack list of rows ``[key, size, time, [key of a module, ...]]`` compressed with zlib, and a check over
all that. A row lists the modules that the cards at a key name and do not contain; rows of packs list none. The survey at
``ccr3/i/<kk>`` has the cards and packs whose key begins with the same byte.

A delivery has the same layout, and lists the cards and packs that one helper process has stored. Its rows have no time (0), because only
the store knows it. A delivery is stored at ``ccr3/d/<random name>`` when all uploads are done or it has a thousand rows. The collection
that reads it removes it. So the first collection need not read more cards than a later one.

Surveys and deliveries decide nothing: an object that is garbage according to them is requested by its key before it is removed
(`garbage.py`). A survey that is lost, damaged or of another version costs only the requests that it would have saved.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from compcache.digest import check
from compcache.errors import FormatError
from compcache.interrupts import as_format_error
from compcache.messagepack import pack, unpack
from compcache.remote.card import checked_content
from compcache.remote.helper.backends import TooLargeError
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from compcache.remote.helper.backends import Backend

__all__ = [
    "DELIVERIES", "Deliveries", "SurveyRow", "call_concurrently", "decode_survey", "encode_survey", "read_deliveries", "read_surveys",
    "write_surveys",
]  # fmt: skip

_T = TypeVar("_T")
_R = TypeVar("_R")
DELIVERIES = f"{LAYOUT}/d/"
#: The number of rows in a delivery, and the most rows that wait if the store accepts none.
_ROWS, _MOST_ROWS = 1000, 100_000

_MAGIC = b"CCSURVY1"
_LARGEST = 64 << 20
_AT_ONCE = 32
#: If there are fewer cards than this, they have no surveys and are read again.
_FEWEST = 1000


class SurveyRow(NamedTuple):
    """The row for the cards at a key: their size and time when they were read, and the keys of the modules that are not in the cards."""

    state: tuple[int, int]
    modules: tuple[str, ...]

    def describes(self, state: tuple[int, int]) -> bool:
        """Return whether the survey describes an object with this size and time. For a delivery, only the size is compared."""
        size, _ = state
        return self.state in (state, (size, 0))


class Deliveries:
    """Records the objects that one helper process has stored, for garbage collections."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows: dict[str, SurveyRow] = {}

    def note(self, key: str, data: bytes, modules: Iterable[str] = ()) -> None:
        """Record that a pack, or cards that name these modules, were stored. Records beyond a limit are dropped."""
        if len(self._rows) < _MOST_ROWS:
            self._rows[key] = SurveyRow((len(data), 0), tuple(modules))

    async def store_rows(self, *, now: bool) -> None:
        """Store the recorded rows if there are many, or if `now` is set. If the store's client raises an error, the rows are kept."""
        while self._rows and (now or len(self._rows) >= _ROWS):
            batch = dict(list(self._rows.items())[:_ROWS])
            await self._backend.replace(DELIVERIES + os.urandom(12).hex(), encode_survey(batch))
            self._rows = {key: row for key, row in self._rows.items() if batch.get(key) is not row}


def encode_survey(rows: dict[str, SurveyRow]) -> bytes:
    """Encode the rows of a survey, given by key."""
    plain = pack([[key, *row.state, row.modules] for key, row in sorted(rows.items())])
    data = _MAGIC + zlib.compress(plain, 1)
    return data + check(data)


def decode_survey(data: bytes) -> dict[str, SurveyRow]:
    """Decode a survey, and return its rows by key. Raise `FormatError` if the bytes are not a survey of a known version, or are damaged."""
    content = checked_content(data, _MAGIC, "the survey")
    with as_format_error("the survey is malformed"):
        plain = zlib.decompressobj().decompress(content, _LARGEST)
        rows = unpack(plain)
        return {str(key): SurveyRow((int(size), int(time)), tuple(map(str, modules))) for key, size, time, modules in rows}


async def read_surveys(backend: Backend, cards: Iterable[str]) -> dict[str, SurveyRow]:
    """Read the surveys of these cards, and return their rows by key. Errors of the store's client are raised.

    Damaged surveys are ignored. The result is empty if there are fewer than `_FEWEST` cards.
    """
    return await read_deliveries(backend, _group_by_survey(cards))


async def read_deliveries(backend: Backend, keys: Iterable[str]) -> dict[str, SurveyRow]:
    """Read deliveries, and return their rows by key. Damaged deliveries are ignored. Errors of the store's client are raised."""
    deliveries: dict[str, SurveyRow] = {}

    async def read(key: str) -> None:
        """Add the deliveries in one object. A damaged, oversized or missing object has none."""
        with suppress(FormatError, TooLargeError):
            deliveries.update(decode_survey(await backend.get(key, _LARGEST) or b""))

    await call_concurrently(read, keys)
    return deliveries


async def write_surveys(backend: Backend, known_rows: dict[str, SurveyRow], rows: dict[str, SurveyRow]) -> None:
    """Store the surveys whose rows differ from the known rows. Raise the error of the store if its client fails."""

    async def write(survey_key: str) -> None:
        """Write the rows that belong to one object, if they have changed."""
        own_rows = {key: rows[key] for key in cards_by_survey[survey_key]}
        if own_rows != {key: known_rows[key] for key in known_cards_by_survey.get(survey_key, ())}:
            await backend.replace(survey_key, encode_survey(own_rows))

    cards_by_survey = _group_by_survey(rows)
    known_cards_by_survey = _group_by_survey(known_rows)
    await call_concurrently(write, cards_by_survey)


def _group_by_survey(cards: Iterable[str]) -> dict[str, list[str]]:
    """Group the keys of cards by the key of their survey. The result is empty if there are fewer than `_FEWEST` cards."""
    keys = list(cards)
    if len(keys) < _FEWEST:
        return {}
    by_survey: dict[str, list[str]] = {}
    for key in keys:
        _, _, digest = key.rpartition("/")
        by_survey.setdefault(f"{LAYOUT}/i/{digest[:2]}", []).append(key)
    return by_survey


async def call_concurrently(work: Callable[[_T], Awaitable[_R]], items: Iterable[_T]) -> list[_R]:
    """Await `work(item)` for each item, at most `_AT_ONCE` at a time, and return the results in order. Raise the first exception."""
    remaining, results = iter(items), list[_R]()
    while batch := list(islice(remaining, _AT_ONCE)):
        results += await asyncio.gather(*map(work, batch))
    return results
