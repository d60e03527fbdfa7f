"""Look-ups of several functions for one client: in the pack of its start-up, then in the stores; and the lease of the first function."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.remote.answer import FOUND, MISSING, STORE_ERROR, STORE_HIT, TIMED_OUT, UNAVAILABLE, HelperAnswer
from compcache.remote.helper.leases import LONGEST_WAIT
from compcache.remote.helper.reads import LOOKUP_SECONDS, PATIENCE, Room, is_intact
from compcache.remote.shelves import card_key, lease_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from compcache.remote.helper.packs import Packs
    from compcache.remote.helper.tiers import Chain, Tier

__all__ = ["FindQuestion", "LookUp"]

#: The least time in seconds for a look-up that has already waited for this process to start.
_SHORTEST_SECONDS = 0.5
#: A question with this many names has many.
_MANY = 4
#: For how many seconds a question with many names, and one with few, waits for the pack of its start-up. It must notice a silent store.
_WAIT_OF_MANY, _WAIT_OF_FEW = 2.0, 0.05
#: If compiling a function takes less time than this number of requests, each host that lacks the function compiles it. Callers that will
#: compile wait for the time of these requests, or for the least number of seconds, to learn whether another host compiles.
_LEASE_REQUESTS, _LEASE_SECONDS = 6, 0.5


class FindQuestion(NamedTuple):
    """A client's question for functions.

    Attributes:
        names: the functions.
        platform_part: the part of keys for the client's platform (`platform_part_of`).
        shelves: the shelves that the client can use, the best first.
        token: identifies the process whose questions form a start-up.
        writes: the positions of the stores that the process may write to.
        asked: the monotonic time since which the client waits.
        patience: a time limit in seconds. Functions that have not arrived by then are unavailable. 0 for a client that can compile: then
            each request has one try. Otherwise requests are repeated, doubtful stores are probed first, and objects that were missing
            lately are requested again.
        compile_seconds: the estimated time of compiling in seconds, 0.0 if it is unknown, or None if the client does not compile. A client
            that compiles keeps its connection open until it has done so. Leases then select one of several hosts (`leases.py`).
        first: the position of the first store to ask. The client has rejected the answers of the stores before it.
        tell: called before a module is fetched, with the seconds that compiling it took.
        is_client_gone: returns whether the client has closed its connection.
    """

    names: list[str]
    platform_part: str
    shelves: list[str]
    token: bytes
    writes: list[int]
    asked: float
    patience: float
    compile_seconds: float | None
    first: int
    tell: Callable[[float], None]
    is_client_gone: Callable[[], bool]


class LookUp:
    """Answers one question for functions. A store must be in service.

    Args:
        chain: the stores.
        packs: the packs of start-ups. The question joins the start-up of its process.
        question: the question.
    """

    def __init__(self, chain: Chain, packs: Packs, question: FindQuestion) -> None:
        self._chain = chain
        self._packs = packs
        self._question = question
        self._waited = max(0.0, time.monotonic() - question.asked)
        self._room = Room(question.tell)
        self._pack_seconds = self._pack_wait()
        names, platform_part, shelves, token, writes, *_ = question
        self._start_up = packs.join_start_up(token, names, platform_part, shelves, writes) if not question.first else None

    async def answers(self) -> list[HelperAnswer]:
        """Return the answer for each function."""
        question = self._question
        lease_store = self._choose_lease_store() if not question.patience else None
        time_limit = question.patience - self._waited if question.patience else None
        finds = [self._find_function(name, lease_store) for name in question.names]
        return await _gather_answers(finds, time_limit, len(self._chain.tiers))

    async def _find_function(self, name: str, lease_store: Tier | None) -> HelperAnswer:
        """Return the answer for one function: from the start-up pack or the stores. Acquire the lease of a missing first function."""
        answer = await self._find_in_pack(name)
        if answer is not None:
            return answer
        question, start_up = self._question, self._start_up
        seconds = LOOKUP_SECONDS if question.patience else max(_SHORTEST_SECONDS, LOOKUP_SECONDS - self._waited)
        ask_stores = partial(
            self._chain.find, name, question.platform_part, question.shelves, self._room, seconds=seconds, first=question.first,
            writes=question.writes,
        )  # fmt: skip
        result = await ask_stores(patience=min(question.patience, PATIENCE), fresh=question.patience > 0)
        # One lease is enough, because a client compiles all its missing functions from one source.
        if result.answer.outcome == MISSING and name == question.names[0] and lease_store is not None:
            await self._acquire_lease(lease_store, name)
            result = await ask_stores()
        if result.card is not None:
            self._chain.note_use(name)
            if start_up is not None and start_up.writes and isinstance(result.answer.data, bytes):
                self._packs.remember_module(question.platform_part, result.shelf, result.card, result.answer.data)
        return result.answer

    def _pack_wait(self) -> float:
        """Return for how many seconds this look-up waits for the pack of its start-up."""
        if len(self._question.names) >= _MANY:
            return _WAIT_OF_MANY
        # The first function of a process must not wait for the complete pack.
        return _WAIT_OF_FEW if self._packs.knows_process(self._question.token) else 0.0

    async def _find_in_pack(self, name: str) -> HelperAnswer | None:
        """Return the answer from the pack of the start-up, or None if the pack lacks the function or does not arrive in time."""
        start_up = self._start_up
        packed = await start_up.find(name, self._pack_seconds) if start_up is not None else None
        if start_up is not None and packed is not None and is_intact(packed.card, packed.module):
            self._chain.tiers[start_up.store].reads.count("found_in_packs")
            self._chain.note_use(name)
            by_store = "-" * start_up.store + STORE_HIT
            return HelperAnswer(FOUND, packed.module, packed.card.signatures, store=start_up.store, packed=True, by_store=by_store)
        return None

    def _choose_lease_store(self) -> Tier | None:
        """Return the store whose lease decides which host compiles, and ask the client to wait for that decision.

        The result is None if the client does not compile, no store has leases, or the decision takes longer than compiling.
        """
        seconds = self._question.compile_seconds
        tier = self._chain.lease_store(self._question.writes) if seconds is not None else None
        if tier is None:
            return None
        least_seconds = _LEASE_REQUESTS * tier.reads.requests.distance
        if 0 < (seconds or 0.0) < least_seconds:
            return None
        self._question.tell(min(LOOKUP_SECONDS, max(_LEASE_SECONDS, least_seconds)))
        return tier

    async def _acquire_lease(self, tier: Tier, name: str) -> None:
        """Acquire the lease of a function, so that the client compiles it, or wait for another host that is compiling it.

        When the wait begins, the client is told its maximum length. Errors of the store are ignored, and the client then compiles.
        """
        question = self._question
        seconds = 2 * question.compile_seconds + 1.0 if question.compile_seconds else LONGEST_WAIT
        lease = lease_of(card_key(question.platform_part, name))

        async def is_stored() -> bool:
            return bool(await tier.reads.cards(name, question.platform_part, question.shelves))

        with suppress(Exception):  # without a lease the client compiles
            await tier.leases.acquire_or_wait(lease, seconds, is_stored, question.is_client_gone, lambda: question.tell(seconds))


async def _gather_answers(finds: list[Coroutine[Any, Any, HelperAnswer]], seconds: float | None, stores: int) -> list[HelperAnswer]:
    """Await answers for at most `seconds`, and return them in order. Replace late answers by `UNAVAILABLE`. None: no limit.

    `stores` is the number of stores.
    """
    tasks = [asyncio.ensure_future(find) for find in finds]
    await asyncio.wait(tasks, timeout=seconds)
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    unavailable = HelperAnswer(UNAVAILABLE, TIMED_OUT, by_store=STORE_ERROR * stores)
    return [unavailable if task in unfinished else task.result() for task in tasks]
