"""Look-ups in one store, the state of its breaker, and probes of a store that has failed."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from compcache.errors import FormatError
from compcache.formats.footer import intact_footer
from compcache.remote.answer import FOUND, MISSING, SKIPPED, TIMED_OUT, UNAVAILABLE
from compcache.remote.breaker import PROBE_SECONDS
from compcache.remote.card import MAX_CARDS, decode_cards
from compcache.remote.helper.backends import TooLargeError
from compcache.remote.helper.requests import Requests, loop_time, run_until_done
from compcache.remote.shelves import LAYOUT, card_key, module_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from compcache.remote.breaker import Breaker
    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend

_V = TypeVar("_V")

__all__ = ["LARGEST_MODULE", "LOOKUP_SECONDS", "PATIENCE", "Reads", "Room", "StoreAnswer", "describe_error", "is_intact"]

#: The time limit in seconds of a try that requests cards or a small module.
LOOKUP_SECONDS = 1.0
#: For how many seconds the requests of a look-up are repeated if its caller waits as long as necessary.
PATIENCE = 3.0
_SECONDS_PER_BYTE = 1.0 / (1 << 20)
_PROBE_PAUSE = 0.2  # seconds between probes of a doubtful store
#: Anything larger is not a module, whatever its card says; it is not read.
LARGEST_MODULE = 1 << 29
#: For how many seconds urgent look-ups believe that an object is missing, and how many missing objects are remembered.
_MISSED_SECONDS, _MOST_MISSED = 20.0, 1 << 16
#: How many damaged modules of the store are remembered.
_MOST_DAMAGED = 1 << 12
#: User and password of a URL. They are removed from messages, which are logged and shown to others.
_PASSWORD = re.compile(r"//[^\s\"]*@")
#: The query of a URL, which may contain access tokens or signatures.
_QUERY = re.compile(r"(\w://[^\s?\"]*)\?[^\s\")]*")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\W*(\w+)")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')


class _SkippedError(Exception):
    """Raised if the store gets no requests for a while, after repeated failures."""


class Room:
    """The space for modules in the answer to one question. The size that a card states is reserved before the module is read.

    Args:
        tell: called before a module is fetched, with the seconds that compiling it took.
    """

    def __init__(self, tell: Callable[[float], None] = lambda _: None) -> None:
        self._remaining = LARGEST_MODULE
        self._tell = tell

    def reserve(self, card: Card) -> bool:
        """Reserve space for the module of this card, and return whether there was enough space.

        Before a module that must be fetched, tell the client how long compiling it took.
        """
        if card.size > self._remaining:
            return False
        self._remaining -= card.size
        if not card.module:
            self._tell(card.seconds)
        return True


class StoreAnswer(NamedTuple):
    """The answer of one store about a function.

    Attributes:
        outcome: `FOUND`, `MISSING` or `UNAVAILABLE`.
        problem: the reason why the store is unavailable, or "".
        module: the bytes of the module that was found.
        card: the card of the module that was found, or None.
        shelf: the shelf of the card, or "".
    """

    outcome: str
    problem: str = ""
    module: bytes = b""
    card: Card | None = None
    shelf: str = ""


class Reads:
    """Reads from one store, and records the store's health.

    Attributes:
        requests: the requests of look-ups.
        breaker: the breaker of the store.
        counts: the numbers that `compcache remote status` prints.
        error: the last error in words, or "".
    """

    def __init__(self, backend: Backend, breaker: Breaker) -> None:
        self.requests = Requests(backend)
        self.breaker = breaker
        self.counts: dict[str, float] = {}
        self.error = ""
        self._backend = backend
        self._unanswered = f"{LAYOUT}/f/probe", PROBE_SECONDS  # the key that a probe requests, and its time limit
        self._probing: asyncio.Task[None] | None = None
        self._asking: dict[str, asyncio.Future[bytes | None]] = {}  # the requests that are running, by key
        self._missed: OrderedDict[str, float] = OrderedDict()  # by key: the time of the miss
        self._stored_count = 0  # the number of objects stored so far
        self._damaged: OrderedDict[str, None] = OrderedDict()  # the keys of damaged modules

    async def find(
        self, name: str, platform_part: str, shelves: list[str], room: Room | None = None, *, seconds: float = LOOKUP_SECONDS,
        patience: float = 0.0, fresh: bool = True,
    ) -> StoreAnswer:  # fmt: skip
        """Look up a function, and return the answer of the store. Errors of the store's client give the answer `UNAVAILABLE`.

        Args:
            name: the function.
            platform_part: the part of keys for the client's platform (`platform_part_of`).
            shelves: the shelves that the client can use, the best first.
            room: the space for the module, or None if the space is unlimited.
            seconds: the time limit of each try of a request, in seconds.
            patience: the time limit of all tries of a request together, if it is longer.
            fresh: request objects again that were missing lately.
        """
        error: Exception | None = None
        try:
            cards = await self.cards(name, platform_part, shelves, seconds, patience, fresh=fresh)
        except Exception as failure:  # noqa: BLE001 - whatever the client raises
            return StoreAnswer(UNAVAILABLE, describe_error(failure))
        for shelf, card in cards.items():
            try:
                module = await self.fetch_module(card, room, patience)
            except Exception as failure:  # noqa: BLE001 - whatever the client raises
                error = failure
                continue
            if module is not None:
                return StoreAnswer(FOUND, "", module, card, shelf)
        return StoreAnswer(MISSING) if error is None else StoreAnswer(UNAVAILABLE, describe_error(error))

    async def has(self, name: str, platform_part: str, shelves: list[str]) -> bool | None:
        """Return whether a function has a card on one of the shelves, or None if the store does not answer."""
        try:
            return bool(await self.cards(name, platform_part, shelves, LOOKUP_SECONDS, PATIENCE))
        except Exception:  # noqa: BLE001 - whatever the client raises
            return None

    async def cards(
        self, name: str, platform_part: str, shelves: list[str], seconds: float = LOOKUP_SECONDS, patience: float = 0.0, *,
        fresh: bool = True,
    ) -> dict[str, Card]:  # fmt: skip
        """Return the cards of a function by shelf, in the order of `shelves`. See `find` for the arguments.

        Concurrent callers share one request, with the first caller's limits. If the cards are damaged, or one is another function's, all
        are ignored, and counted as rejected.

        Raises:
            Exception: an error of the store's client. It is unknown whether there are cards.
        """
        key = card_key(platform_part, name)
        if not fresh and self.avoid_request(key):
            return {}
        asking = self._asking.get(key)
        if asking is None:
            asking = run_until_done(self._asking, key, self._request_cards(key, seconds, patience))
        data = await asyncio.shield(asking)
        try:
            cards_by_shelf = decode_cards(data) if data is not None else {}
        except FormatError:
            cards_by_shelf = None
        if cards_by_shelf is None or any(card.name != name for card in cards_by_shelf.values()):
            self.count("rejected")
            return {}
        return {shelf: cards_by_shelf[shelf] for shelf in shelves if shelf in cards_by_shelf}

    async def _request_cards(self, key: str, seconds: float, patience: float) -> bytes | None:
        """Return the encoded cards at a key, or None if the store has none. The breaker counts this as one look-up.

        See `get` for `seconds` and `patience`, and for the exceptions.
        """
        try:
            data = await self.get(key, MAX_CARDS, seconds, patience)
        except Exception as error:
            self._note_failure(key, PROBE_SECONDS, error)
            raise
        self.breaker.record_success()
        return data

    async def fetch_module(self, card: Card, room: Room | None = None, patience: float = 0.0) -> bytes | None:
        """Fetch the module that a card names. Return its bytes, or None if the module is missing or damaged.

        Raises:
            TooLargeError: the answer has no space for the module.
            Exception: an error of the store's client. It is unknown whether the module exists.
        """
        try:
            if room is not None and not room.reserve(card):
                raise TooLargeError("the answer has no space for another module: request fewer functions at a time")
            module = card.module or await self._fetch_object(card, patience)
            if module is None:
                self.count("cards_without_module")
                return None
            _require_module(card, module)
        except FormatError:
            self.count("rejected")
            if not card.module:
                _remember_value(self._damaged, module_key(card.module_id), None, _MOST_DAMAGED)
            return None
        return module

    def forget_damaged(self, key: str) -> bool:
        """Return whether the module at this key is known to be damaged, and forget it. One upload may then replace the module."""
        was_damaged = key in self._damaged
        self._damaged.pop(key, None)
        return was_damaged

    async def _fetch_object(self, card: Card, patience: float) -> bytes | None:
        """Return the module of a card that does not contain it, or None if the store lacks the module. See `get` for `patience`.

        Raises:
            FormatError: the card states an impossible size.
            Exception: an error of the store's client.
        """
        if card.size > LARGEST_MODULE:
            raise FormatError(f"the card of {card.name!r} states a module size of {card.size} bytes, more than {LARGEST_MODULE}")
        key, seconds = module_key(card.module_id), LOOKUP_SECONDS + card.size * _SECONDS_PER_BYTE
        try:
            return await self.get(key, card.size, seconds, patience)
        except Exception as error:
            self._note_failure(key, seconds, error)
            raise

    async def get(self, key: str, max_size: int, seconds: float = LOOKUP_SECONDS, patience: float = 0.0) -> bytes | None:
        """Return an object, or None if it is missing or has more than `max_size` bytes. Remember a missing object.

        `seconds` is the time limit of each try, and `patience` is the time limit of all tries together, if it is longer. Errors of the
        store's client are raised, and `_SkippedError` if the store gets no requests now.
        """
        limit, stored_count = max(seconds, patience), self._stored_count
        data = await self._count_request(self.requests.get(key, max_size, seconds=seconds, patience=limit, require=self._require_service))
        if data is None and stored_count == self._stored_count:  # otherwise the object may have been stored meanwhile
            _remember_value(self._missed, key, loop_time(), _MOST_MISSED)
        elif data is not None:
            self._missed.pop(key, None)
        return data

    def avoid_request(self, key: str) -> bool:
        """Count an avoided request if an object was missing at this key recently. Return whether the request is avoided."""
        is_known = loop_time() - self._missed.get(key, float("-inf")) < _MISSED_SECONDS
        self.count("remembered_misses", is_known)
        return is_known

    def forget_miss(self, key: str) -> None:
        """Forget that an object was missing at this key. Call this when an object is stored there."""
        self._stored_count += 1
        self._missed.pop(key, None)

    async def _count_request(self, request: Awaitable[bytes | None]) -> bytes | None:
        """Await a request, and return its result. Count the request and the transferred bytes.

        An object that is too large is counted as rejected, and the result is None. Other errors are raised,
        and recorded except for `_SkippedError`.
        """
        try:
            data = await request
        except TooLargeError:
            self.count("rejected")
            return None
        except _SkippedError:
            raise
        except Exception as error:
            self.note_error(error)
            raise
        self.count("requests")
        self.count("fetched_size", len(data or b""))
        return data

    def _require_service(self) -> None:
        """Raise `_SkippedError` if the store accepts no requests now."""
        if not self.breaker.allows_lookups():  # the breaker may have changed while the look-up waited for its turn
            raise _SkippedError(SKIPPED)

    def _note_failure(self, key: str, allowed: float, error: BaseException) -> None:
        """Record that all tries of a request failed, unless it was skipped. The store becomes doubtful, and is probed in the background.

        The probe requests `key`, and may take the seconds `allowed`.
        """
        if isinstance(error, _SkippedError):
            return
        self.breaker.record_failure(is_doubtful=True)
        if self.breaker.is_doubtful():
            self._unanswered = key, allowed
            self.probe()

    def probe(self) -> asyncio.Task[None]:
        """Return the probe that is running, or start one."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe_until_known())
        return self._probing

    async def _probe_until_known(self) -> None:
        """Probe the store until it answers, or until the failures open the breaker."""
        while True:
            key, seconds = self._unanswered
            try:
                await asyncio.wait_for(self._backend.get(key, LARGEST_MODULE), seconds)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                self.note_error(error)
                self.breaker.record_failure(is_probe=True)
            else:
                self.breaker.record_success()
                return
            if not self.breaker.is_doubtful():
                return
            await asyncio.sleep(_PROBE_PAUSE)

    def note_error(self, error: Exception) -> None:
        """Record an error for the status of the store."""
        self.count("errors")
        self.error = describe_error(error)

    def count(self, counter: str, amount: float = 1) -> None:
        """Add an amount to a counter of the store's status."""
        self.counts[counter] = self.counts.get(counter, 0) + amount


def _remember_value(values: OrderedDict[str, _V], key: str, value: _V, most: int) -> None:
    """Remember a value. Beyond `most` values, the oldest is forgotten."""
    values[key] = value
    values.move_to_end(key)
    if len(values) > most:
        values.popitem(last=False)


def is_intact(card: Card, module: bytes) -> bool:
    """Return whether a module is undamaged and is the module that its card names."""
    try:
        _require_module(card, module)
    except FormatError:
        return False
    return True


def _require_module(card: Card, module: bytes) -> None:
    """Raise `FormatError` if a module is damaged, or is not the module that its card names."""
    if len(module) != card.size:
        raise FormatError(f"the module of the function {card.name!r} has {len(module)} bytes, but its card states {card.size}")
    intact_footer(memoryview(module), card.module_id)


def describe_error(error: BaseException) -> str:
    """Describe an error in one line of at most 500 characters, without passwords and the queries of URLs."""
    if isinstance(error, asyncio.TimeoutError):
        return TIMED_OUT
    text = " ".join((str(error) or type(error).__name__).split())
    text, _, debug_source = text.partition(" Debug source: ")
    certificate = _CERTIFICATE.search(debug_source)
    causes = _CAUSE.findall(debug_source)  # obstore lists the outermost cause first
    if certificate is not None:
        text += f": the certificate is not valid ({certificate[1]})"
    elif causes:
        text += f": {causes[-1]}"
    return _QUERY.sub(r"\1", _PASSWORD.sub("//", text))[:500]
