"""Look-ups in one store: with time limits, a breaker for all processes of the host, and probes of a store that has failed."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from compcache.errors import FormatError
from compcache.formats.footer import intact_footer
from compcache.remote.answer import FOUND, MISSING, UNAVAILABLE
from compcache.remote.breaker import PROBE_SECONDS
from compcache.remote.card import decode_card
from compcache.remote.helper.backends import TooLargeError
from compcache.remote.shelves import LAYOUT, card_key, module_key

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import TypeVar

    from compcache.remote.breaker import Breaker
    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend

    _T = TypeVar("_T")

__all__ = ["LARGEST_MODULE", "LOOKUP_SECONDS", "Reads", "Room", "is_intact", "words"]

LOOKUP_SECONDS = 1.0
_CONCURRENT = 32
_SECONDS_PER_BYTE = 1.0 / (1 << 20)
_PROBE_PAUSE = 0.2  # between probes of a store that is in doubt
#: What is larger is not a card, or not a module, whatever it says: nothing of it is read.
_LARGEST_CARD, LARGEST_MODULE = 1 << 20, 1 << 29
#: What stands before the host in a URL: messages are logged, and shown to others.
_PASSWORD = re.compile(r"//[^\s\"]*@")
#: What stands behind a question mark: tokens of shared access, signatures.
_QUERY = re.compile(r"(\w://[^\s?\"]*)\?[^\s\")]*")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\W*(\w+)")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')


class _LeftAloneError(Exception):
    """The store is left alone after failures."""


class Room:
    """How many bytes of modules the answer to one question may have: what a store says of sizes is reserved before it is read."""

    def __init__(self) -> None:
        self._left = LARGEST_MODULE

    def reserve(self, size: int) -> bool:
        """Whether there is room for so many more."""
        has_room = size <= self._left
        self._left -= size if has_room else 0
        return has_room


class Reads:
    """What is read from a store, and what that says about it.

    `latency` is a moving average of the seconds of a small request, `rate` of the seconds per byte of large ones; `counts` and `error`
    are for `compcache remote status`.
    """

    def __init__(self, backend: Backend, breaker: Breaker) -> None:
        self.backend = backend
        self.breaker = breaker
        self.latency = 0.0
        self.rate = 0.0
        self.counts: dict[str, float] = {}
        self.error = ""
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._unanswered = f"{LAYOUT}/f/probe", PROBE_SECONDS  # what a probe asks for, and its time
        self._probing: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- look-ups

    async def find(self, name: str, platform: str, shelves: list[str], seconds: float, room: Room | None = None) -> list[Any]:
        """FOUND, the module, its card and its shelf; MISSING; or UNAVAILABLE and why, also where there is no `room` for the module."""
        if not self.breaker.allows():
            return [UNAVAILABLE, "it is left alone after failures"]
        found = await self._cards(name, platform, shelves, seconds)
        if all(isinstance(answer, Exception) for answer in found):
            return [UNAVAILABLE, self.error]
        for shelf, data in zip(shelves, found, strict=True):
            try:
                held = await self.held(data, name, room) if isinstance(data, bytes) else None
            except TooLargeError as error:
                return [UNAVAILABLE, str(error)]
            if held is not None:
                card, module = held
                return [FOUND, module, card, shelf]
        return [MISSING, ""]

    async def has(self, name: str, platform: str, shelves: list[str]) -> bool:
        """Whether there is a card of a function on one of the shelves."""
        if not self.breaker.allows():
            return False
        return any(isinstance(data, bytes) for data in await self._cards(name, platform, shelves, LOOKUP_SECONDS))

    async def _cards(self, name: str, platform: str, shelves: list[str], seconds: float) -> list[bytes | Exception | None]:
        """What is on each shelf; the breaker counts the look-up once, however many shelves do not answer."""
        keys = [card_key(platform, shelf, name) for shelf in shelves]
        started = time.monotonic()
        found = await asyncio.gather(*[self.get(key, seconds, _LARGEST_CARD) for key in keys])
        failed = [key for key, answer in zip(keys, found, strict=True) if isinstance(answer, Exception)]
        if failed:
            self._failed(failed[0], PROBE_SECONDS, time.monotonic() - started)
        else:
            self.breaker.succeeded()
        return found

    async def held(self, data: bytes, name: str, room: Room | None = None) -> tuple[Card, bytes] | None:
        """The card, and the intact module that it leads to; None where it leads nowhere.

        Raises:
            TooLargeError: there is no room for the module.
        """
        try:
            card = decode_card(data)
            if card.name != name:
                raise FormatError("the card is that of another function")
            if room is not None and not room.reserve(card.size):
                raise TooLargeError("the answer has no room for one more module of that size: ask for fewer functions at a time")
            module = card.module or await self._module(card)
            if not isinstance(module, bytes):
                self.count("cards_without_module")
                return None
            _require_module(card, module)
        except FormatError:
            self.count("rejected")
            return None
        return card, module

    async def _module(self, card: Card) -> bytes | Exception | None:
        """The module of a card that does not hold it."""
        if card.size > LARGEST_MODULE:
            raise FormatError("the card names a module of a size that no module has")
        key, seconds = module_key(card.module_id), LOOKUP_SECONDS + card.size * _SECONDS_PER_BYTE
        started = time.monotonic()
        found = await self.get(key, seconds, card.size)
        if isinstance(found, Exception):
            self._failed(key, seconds, time.monotonic() - started)
        return found

    async def get(self, key: str, seconds: float, largest: int) -> bytes | Exception | None:
        """An object, None where there is none (or one that is too large), or what went wrong."""
        try:
            async with self._slots:
                if not self.breaker.allows():  # since this look-up began to wait for its turn
                    return _LeftAloneError()
                started = time.monotonic()
                data = await asyncio.wait_for(self.backend.get(key, largest), seconds)
        except TooLargeError:
            self.count("rejected")
            return None
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            self.note_error(error)
            return error
        self._learn(time.monotonic() - started, len(data or b""))
        self.count("requests")
        self.count("fetched_size", len(data or b""))
        return data

    async def within(self, seconds: float, request: Awaitable[_T]) -> _T:
        """The result of a request, which takes its turn among all others. Raises what the client raises, and `TimeoutError`."""
        async with self._slots:
            return await asyncio.wait_for(request, seconds)

    # ------------------------------------------------------------------ health

    def _failed(self, key: str, allowed: float, seconds: float) -> None:
        """A look-up of this key failed after so many seconds; one that took long is tried again where nobody waits for it."""
        self.breaker.failed(seconds)
        if self.breaker.is_doubtful():
            self._unanswered = key, allowed
            self.probe()

    def probe(self) -> asyncio.Task[None]:
        """The probe that is under way, or a new one."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe_until_known())
        return self._probing

    async def _probe_until_known(self) -> None:
        """Ask until the store answers, or is out of doubt because it has failed as often as opens the breaker."""
        while True:
            key, seconds = self._unanswered
            try:
                await asyncio.wait_for(self.backend.get(key, LARGEST_MODULE), seconds)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self.note_error(error)
                self.breaker.failed(probe=True)
            else:
                self.breaker.succeeded()
                return
            if not self.breaker.is_doubtful():
                return
            await asyncio.sleep(_PROBE_PAUSE)

    def note_error(self, error: Exception) -> None:
        """Remember what went wrong, for who asks."""
        self.count("errors")
        self.error = words(error)

    def count(self, counter: str, amount: float = 1) -> None:
        """Count something that happened."""
        self.counts[counter] = self.counts.get(counter, 0) + amount

    def _learn(self, seconds: float, size: int) -> None:
        if size < 1 << 16:
            self.latency = seconds if not self.latency else 0.9 * self.latency + 0.1 * seconds
        else:
            rate = max(0.0, seconds - self.latency) / size
            self.rate = rate if not self.rate else 0.9 * self.rate + 0.1 * rate


def is_intact(card: Card, module: bytes) -> bool:
    """Whether the module is the one that its card names."""
    try:
        _require_module(card, module)
    except FormatError:
        return False
    return True


def _require_module(card: Card, data: bytes) -> None:
    if len(data) != card.size:
        raise FormatError("the module has another size than its card says")
    intact_footer(data, card.module_id)


def words(error: Exception) -> str:
    """What went wrong, without passwords, in one line."""
    if isinstance(error, asyncio.TimeoutError):
        return "it did not answer in time"
    text = " ".join((str(error) or type(error).__name__).split())
    text, _, causes = text.partition(" Debug source: ")  # of obstore, the outermost first
    certificate = _CERTIFICATE.search(causes)
    innermost = _CAUSE.findall(causes)[-1:]
    if certificate is not None:
        text += f": the certificate is refused ({certificate[1]})"
    elif innermost:
        text += f": {innermost[0]}"
    return _QUERY.sub(r"\1", _PASSWORD.sub("//", text))[:500]
