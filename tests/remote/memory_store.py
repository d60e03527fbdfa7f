"""A store in memory that behaves as badly as stores do, in virtual time: for tests of what must hold whatever happens."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING

from compcache.remote.helper.backends import TooLargeError
from compcache.remote.maintenance import RemoteObject

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

__all__ = ["MemoryStore", "StoreError", "VirtualLoop"]

#: How late a request that was given up, or its duplicate, is carried out at most.
LATEST = 50.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes at once when there is nothing to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self._loop.now += timeout
            timeout = 0.0
        return super().select(timeout)


class StoreError(Exception):
    """The store does not answer, as clients say it."""


class MemoryStore:
    """Objects by key, each with its time by the store's clock.

    `faults` is the share of requests that go wrong: refused, carried out without an answer, late, or twice. Listings miss objects, show
    some twice, or are of an hour ago. One that is `slow` answers after up to 5 s, and removes after more.
    `watch` is called after each change.
    """

    is_atomic = True  # of its protocol

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.faults = 0.0
        self.lies = 0.0
        self.slow = False
        self.clock = 1_700_000_000.0  # at the time 0 of the loop
        self.watch: Callable[[], None] = lambda: None
        self._snapshots: list[dict[str, tuple[bytes, float]]] = []
        self._late: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        """The store's time."""
        return self.clock + asyncio.get_running_loop().time()

    async def _request(self, change: Callable[[], None] | None = None) -> None:
        """A request, which changes something or not."""
        await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.1, 1.0, 5.0)) if self.slow else 0.0)
        change = change or (lambda: None)
        way = self._chance.random() / self.faults if self.faults else 1.0
        if way < 0.25:
            raise StoreError("503")
        if way < 0.5:
            self._apply(change)
            raise StoreError("the connection was reset")
        if way < 0.75:
            self._later(change)
            await asyncio.sleep(self._chance.uniform(1.0, 100.0))
            raise StoreError("it did not answer in time")
        self._apply(change)
        if way < 1.0:
            self._later(change)

    def _apply(self, change: Callable[[], None]) -> None:
        before = len(self.objects)
        change()
        if len(self.objects) != before:
            self.watch()

    def _later(self, change: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(self._chance.uniform(0.0, LATEST))
            self._apply(change)

        task = asyncio.ensure_future(wait())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def retry_delay(self, error: Exception) -> float | None:
        return 0.0 if isinstance(error, StoreError) else None

    def _put(self, key: str, data: bytes) -> None:
        self.objects[key] = data, self.now()

    async def get(self, key: str, largest: int, _: object = None) -> bytes | None:
        await self._request()
        data, _ = self.objects.get(key, (None, 0.0))
        if data is not None and len(data) > largest:
            raise TooLargeError(key)
        return data

    async def create(self, key: str, data: bytes) -> bool:
        created = []

        def change() -> None:
            if key not in self.objects:
                self._put(key, data)
                created.append(key)

        await self._request(change)
        return bool(created)

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        exchanged = []

        def change() -> None:
            if self.objects.get(key, (None,))[0] == expected:
                self._put(key, data)
                exchanged.append(key)

        await self._request(change)
        return bool(exchanged)

    async def replace(self, key: str, data: bytes) -> None:
        await self._request(lambda: self._put(key, data))

    async def stat(self, key: str) -> RemoteObject | None:
        await self._request()
        found = self.objects.get(key)
        return None if found is None else RemoteObject(key, len(found[0]), found[1])

    async def delete(self, key: str) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 1.0, 12.0)) if self.slow else 0.0)
        await self._request(lambda: self.objects.pop(key, None) and None)

    async def list(self, prefix: str) -> AsyncIterator[RemoteObject]:
        await self._request()
        chance = self._chance
        self._snapshots.append(dict(self.objects))
        shown = chance.choice(self._snapshots[-20:]) if chance.random() < self.lies else self.objects
        for key, (data, when) in list(shown.items()):
            if key.startswith(prefix) and chance.random() >= self.lies:
                for _ in range(2 if chance.random() < self.lies else 1):
                    yield RemoteObject(key, len(data), when)
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.01, 1.0)) if self.slow else 0.0)
