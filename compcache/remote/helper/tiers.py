"""A chain of stores. The nearest store is asked first. Objects that a farther store returns are copied into nearer stores.

A `Tier` is one store with its requests, breaker, outbox, uploads, leases and notes of uses. A `Chain` asks the tiers in turn; one
store is a chain of one. The next tier is asked if a tier lacks a function, fails, is not asked after failures, or is silent for
longer than usual. A function that a farther tier returned goes into the outbox of each nearer tier that the client may write to. From
there it is uploaded like any other, with its signatures.

A function is missing if every store lacks it, and unavailable if a store does not answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from compcache.remote.answer import FOUND, MISSING, SKIPPED, STORE_ERROR, STORE_HIT, STORE_MISS, UNAVAILABLE, HelperAnswer
from compcache.remote.card import encode_cards
from compcache.remote.helper.leases import Leases
from compcache.remote.helper.packs import LARGEST_PACK
from compcache.remote.helper.reads import LOOKUP_SECONDS, Reads, describe_error, is_intact
from compcache.remote.helper.requests import Requests, loop_time
from compcache.remote.helper.uploads import CONCURRENT, Uploads
from compcache.remote.helper.uses import Uses
from compcache.remote.outbox import Upload
from compcache.remote.shelves import card_key, module_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

    from compcache.remote.breaker import Breaker
    from compcache.remote.card import Card
    from compcache.remote.helper.backends import Backend
    from compcache.remote.helper.packs import Packs
    from compcache.remote.helper.reads import Room, StoreAnswer
    from compcache.remote.outbox import Outbox

__all__ = ["Chain", "LookupResult", "Tier"]

_PACK_SECONDS = 10.0
#: For how many seconds a card is not copied again into the same nearer store, and how many copies are remembered.
_COPIED_SECONDS, _MOST_COPIED = 60.0, 1 << 12


class Tier:
    """One store that a helper process serves.

    Args:
        backend: the client of the store.
        breaker: the breaker of the store, which other helpers may share.
        outbox: the outbox of the store, which other helpers may share.
        directory: the directory for notes of uses.
        packs: remember the functions that are uploaded.
    """

    def __init__(self, backend: Backend, breaker: Breaker, outbox: Outbox, directory: str, packs: Packs) -> None:
        self.requests = Requests(backend, CONCURRENT)  # for uploads and operators; look-ups have a queue of their own
        self.reads = Reads(backend, breaker)
        self.breaker = breaker
        self.outbox = outbox
        self.leases = Leases(self.requests, lambda: bool(outbox.names()))
        self.uploads = Uploads(self.reads, self.requests, outbox, packs, self.leases)
        self.uses = Uses(self.requests, directory)

    def check_service(self) -> bool:
        """Return whether look-ups may ask the store. If the store's pause is over, start a probe in the background."""
        if self.breaker.is_half_open():
            self.reads.probe()
        return self.breaker.allows_lookups()

    async def put_pack(self, key: str, data: bytes) -> None:
        """Store a pack in the place of an earlier one."""
        await self.requests.replace(key, data)
        self.reads.forget_miss(key)

    def silence(self) -> float:
        """Return after how many seconds without an answer the next store gets the request too."""
        return self.reads.requests.silence()


class LookupResult(NamedTuple):
    """The result of a look-up: the answer for the client and, if a module was found, its card and shelf."""

    answer: HelperAnswer
    card: Card | None = None
    shelf: str = ""


def _found_result(answer: StoreAnswer, card: Card, position: int, by_store: str) -> LookupResult:
    """Return the result of a look-up for the module of the store at `position`, with the intact imported modules in its card."""
    imports = tuple([(item.name, item.module, item.signatures) for item in card.imports if is_intact(item, item.module)])
    return LookupResult(HelperAnswer(FOUND, answer.module, card.signatures, imports, position, by_store=by_store), card, answer.shelf)


class Chain:
    """The stores in the order in which they are asked."""

    def __init__(self) -> None:
        self.tiers: list[Tier] = []
        self.seconds: list[float] = []  # the total time that the look-ups of each store took
        self._copied: OrderedDict[tuple[int, str, str, bytes], float] = OrderedDict()
        self._copying: set[asyncio.Future[Any]] = set()

    def add(self, tier: Tier) -> None:
        """Add a store at the end of the chain."""
        self.tiers.append(tier)
        self.seconds.append(0.0)

    async def find(
        self, name: str, platform_part: str, shelves: list[str], room: Room | None = None, *, seconds: float = LOOKUP_SECONDS,
        patience: float = 0.0, fresh: bool = True, first: int = 0, writes: Sequence[int] = (),
    ) -> LookupResult:  # fmt: skip
        """Look up a function in the stores, starting at the position `first`. See `Reads.find` for the other arguments.

        The client has rejected the answers of the stores before `first`. A module that is found is copied into the nearer stores of
        `writes`.
        """
        key, results = card_key(platform_part, name), ["-"] * len(self.tiers)
        problems: list[str] = []
        waiting = list(range(first, len(self.tiers)))
        running: dict[asyncio.Task[StoreAnswer], int] = {}
        try:
            while waiting or running:
                if waiting:
                    position = waiting.pop(0)
                    tier = self.tiers[position]
                    if not tier.check_service():
                        problems.append(SKIPPED)
                        results[position] = STORE_ERROR
                        continue
                    look_up = tier.reads.find(name, platform_part, shelves, room, seconds=seconds, patience=patience, fresh=fresh)
                    running[asyncio.ensure_future(self._measure_answer(position, look_up))] = position
                silence = max([self.tiers[position].silence() for position in running.values()], default=0.0) if waiting else None
                finished, _ = await asyncio.wait(running, timeout=silence, return_when=asyncio.FIRST_COMPLETED) if running else ((), ())
                for task in finished:
                    position = running.pop(task)
                    answer = task.result()
                    if answer.card is not None:
                        results[position] = STORE_HIT
                        for target in writes:
                            if target < first or (target < position and results[target] == STORE_MISS):
                                self._copy_to_nearer(target, key, answer.shelf, answer.card, answer.module, replaces=target < first)
                        return _found_result(answer, answer.card, position, "".join(results))
                    results[position] = STORE_MISS if answer.outcome == MISSING else STORE_ERROR
                    problems += [answer.problem] if answer.outcome == UNAVAILABLE else []
        finally:
            for task in running:
                task.cancel()
        outcome, problem = (UNAVAILABLE, problems[0]) if problems else (MISSING, "")
        return LookupResult(HelperAnswer(outcome, problem, by_store="".join(results)))

    async def _measure_answer(self, position: int, look_up: Awaitable[StoreAnswer]) -> StoreAnswer:
        """Await and return a store's answer. Add the time that it takes to the store's total."""
        started = loop_time()
        try:
            return await look_up
        finally:
            self.seconds[position] += loop_time() - started

    def note_use(self, name: str) -> None:
        """Record, for every store, that the function was used."""
        for tier in self.tiers:
            tier.uses.note(name)

    async def has(self, name: str, platform_part: str, shelves: list[str]) -> bool | None:
        """Return whether a store has a card of a function on one of the shelves, or None if that is unknown because a store fails."""
        answer: bool | None = False
        for tier in self.tiers:
            has_card = await tier.reads.has(name, platform_part, shelves)
            if has_card:
                return True
            if has_card is None:
                answer = None
        return answer

    async def cards(
        self, name: str, platform_part: str, shelves: list[str], writes: Sequence[int] = (), *, fresh: bool = True
    ) -> dict[str, Card]:
        """Return the cards of a function by shelf, from the nearest store that has any. Nearer stores of `writes` get cards with modules.

        See `Reads.find` for `fresh`.

        Raises:
            Exception: no store has cards, and the client of at least one store failed. It is unknown whether that store has cards.
        """
        error: Exception | None = None
        tiers_without: list[int] = []
        for position, tier in enumerate(self.tiers):
            try:
                cards = await tier.reads.cards(name, platform_part, shelves, fresh=fresh)
            except Exception as failure:  # noqa: BLE001 - whatever the client raises
                error = failure
                continue
            for shelf, card in cards.items():
                for target in tiers_without:
                    if card.module:
                        self._copy_to_nearer(target, card_key(platform_part, name), shelf, card, card.module)
            if cards:
                return cards
            if position in writes:
                tiers_without.append(position)
        if error is not None:
            raise error
        return {}

    async def pack(self, key: str, writes: Sequence[int]) -> tuple[bytes, int] | None:
        """Return a pack and the position of the nearest store that has it, or None. The nearer stores of `writes` receive a copy."""
        tiers_without: list[int] = []
        for position, tier in enumerate(self.tiers):
            if tier.reads.avoid_request(key):
                continue
            with suppress(Exception):  # the status of the store has recorded the error
                data = await tier.reads.get(key, LARGEST_PACK, _PACK_SECONDS)
                if data is not None:
                    for target in tiers_without:
                        self._run_in_background(self.tiers[target].put_pack(key, data))
                    return data, position
                if position in writes:
                    tiers_without.append(position)
        return None

    def _copy_to_nearer(self, position: int, key: str, shelf: str, card: Card, module: bytes, *, replaces: bool = False) -> None:
        """Put a card from a farther store, with its module, into the outbox of the nearer store at `position`.

        A card that was copied less than `_COPIED_SECONDS` ago is ignored. With `replaces`, the card
        replaces the store's own card.
        """
        now = loop_time()
        identity = position, key, shelf, card.module_id
        if now - self._copied.get(identity, float("-inf")) < _COPIED_SECONDS:
            return
        self._copied[identity] = now
        self._copied.move_to_end(identity)
        if len(self._copied) > _MOST_COPIED:
            self._copied.popitem(last=False)
        tier = self.tiers[position]
        content = b"" if card.module else module

        def put() -> None:
            """Put the upload into the outbox."""
            cards = [(key, encode_cards({shelf: card}))]
            tier.outbox.put(Upload(module_key(card.module_id), content, cards, card.seconds, always=True, replaces=replaces))

        async def copy() -> None:
            """Queue the upload without blocking the helper, and count it."""
            await asyncio.to_thread(put)
            tier.reads.count("read_through")
            tier.uploads.news.set()

        self._run_in_background(copy())

    def _run_in_background(self, work: Any) -> None:
        """Run a coroutine in the background. Its errors are ignored."""

        async def run() -> None:
            with suppress(Exception):  # the store or the disk fails or is full: a later look-up tries the copy again
                await work

        task = asyncio.ensure_future(run())
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)

    async def wait_for_copies(self) -> None:
        """Wait until all copies for nearer stores are in their outboxes."""
        if self._copying:
            await asyncio.wait(set(self._copying))

    async def store_in_each(self, writes: Sequence[int], store: Callable[[Tier], Any]) -> bool:
        """Call `store` for each of these stores whose uploads are not paused. Return whether all of them have the object then.

        Raises:
            Exception: the first error, if no store has the object.
        """
        errors, count = [], 0
        for position in writes:
            tier = self.tiers[position]
            if tier.uploads.is_paused():
                continue
            try:
                await store(tier)
                count += 1
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                tier.reads.note_error(error)
                errors.append(error)
        if errors and not count:
            raise errors[0]
        return count == len(writes)

    def lease_store(self, writes: Sequence[int]) -> Tier | None:
        """Return the store whose leases decide which host compiles, or None if no writable store that accepts requests has leases.

        It is the farthest such store, because most hosts share it.
        """
        tiers = [self.tiers[position] for position in writes]
        candidates = [tier for tier in tiers if tier.requests.is_atomic and tier.breaker.allows_lookups()]
        return candidates[-1] if candidates else None

    async def collect_errors(self, key: str) -> list[str]:
        """Request an object from each store. Return a description of each store's error, or "" for a store that answered."""

        async def ask(tier: Tier) -> str:
            """Return the error of a request to a store, or "" if the store answers."""
            try:
                await tier.requests.stat(key)
            except Exception as error:  # noqa: BLE001 - whatever the client raises
                return describe_error(error)
            return ""

        return list(await asyncio.gather(*map(ask, self.tiers)))

    async def probe(self) -> bool:
        """Probe the stores that get no requests after failures. Return whether a store accepts requests now."""
        probes = [tier.reads.probe() for tier in self.tiers if tier.breaker.is_half_open() or tier.breaker.is_doubtful()]
        await asyncio.gather(*map(asyncio.shield, probes))
        return self.is_in_service()

    def is_in_service(self) -> bool:
        """Return whether one of the stores accepts requests."""
        return any(tier.breaker.allows_lookups() for tier in self.tiers)
