"""The only place where the requests of a store queue, time out, and are repeated.

A try that fails temporarily (the store's client tells) is repeated after a pause. The pause doubles, has a random part, and is at least as
long as the store demands. A reading try that is silent for longer than usual gets a copy beside it; the first answer counts. Time in the
queue does not count against a try.

Repetitions have a budget: each answer adds a part of a try, and a large object costs more than a small one. So a store that fails for all
hosts gets hardly more requests than a healthy one.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from compcache.remote.helper.backends import TooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeVar

    from compcache.remote.helper.backends import Backend, Listed

    _T = TypeVar("_T")

__all__ = ["Requests"]

#: The default time of one try in seconds, more for each byte that is stored; and the time of all tries and pauses of a request together.
_SECONDS, _SECONDS_PER_BYTE, _PATIENCE = 60.0, 1.0 / (1 << 20), 3.0
#: The first pause in seconds, and the limit of doubling.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
#: A try gets a copy when it has been silent for at least this long, and for so many times the usual latency; the third value applies while
#: the latency is unknown. Each further copy waits twice as long.
_SHORTEST_SILENCE, _SILENCE, _UNKNOWN_SILENCE = 0.1, 3.0, 0.25
_COPIES = 4
#: The largest budget in tries, what an answer adds to it, and how many bytes cost as much as a try.
_CREDIT, _EARNED, _COSTLY = 64.0, 0.2, 8 << 20
_SMALL = 1 << 16
#: The factor by which the estimated distance of a store grows with each slower answer.
_RISE = 1.05
_FIRST = 8


class Requests:
    """Sends the requests of one store; also a `Backend` itself.

    `latency` is a moving average of the seconds that a small request takes, and `rate` of the seconds per byte of large ones. `distance` is
    the minimum over recent small requests, which a busy host does not raise (0.0 until there were some). `repeated` counts all tries and
    copies but the first ones.

    Args:
        backend: the client of the store.
        concurrent: how many requests may be under way at a time.
    """

    def __init__(self, backend: Backend, concurrent: int = 32) -> None:
        self._backend = backend
        self._slots = asyncio.Semaphore(concurrent)
        self._credit = _CREDIT
        self.latency = 0.0
        self.distance = 0.0
        self._first: list[float] = []  # latencies of the first small requests, in seconds
        self.rate = 0.0
        self.repeated = 0

    @property
    def compares(self) -> bool:
        """See `Backend.compares`."""
        return self._backend.compares

    # ---------------------------------------------------------------- requests

    async def get(
        self, key: str, largest: int, _: Callable[[], None] | None = None, *, seconds: float = _SECONDS, patience: float = _PATIENCE,
        require: Callable[[], None] = lambda: None,
    ) -> bytes | None:  # fmt: skip
        """See `Backend.get`; `begun` is not called. Each try has `seconds`, and is made unless `require` raises an error."""

        async def get(begun: Callable[[], None]) -> bytes | None:
            require()
            started = _now()
            data = await self._backend.get(key, largest, begun)
            self._learn(_now() - started, len(data or b""))
            return data

        return await self._send(get, seconds, patience, size=largest, copies=_COPIES)

    def parts(self, key: str, largest: int) -> AsyncIterator[bytes]:
        """See `Backend.parts`. Not repeated."""
        return self._backend.parts(key, largest)

    async def save(self, key: str, largest: int, path: str, *, seconds: float, patience: float, require: Callable[[], None]) -> int | None:
        """Write an object into a new file, part by part; return its size, or None if there is no object."""

        async def save(_: Callable[[], None]) -> int | None:
            require()
            size = 0
            with suppress(FileNotFoundError), _written(path) as file:
                async for part in self._backend.parts(key, largest):
                    size += file.write(part)
                    if size > largest:
                        raise TooLargeError(key)
            return size or None

        return await self._send(save, seconds, patience, size=largest)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Backend.create`. Also False if an unanswered try has stored the object."""
        return await self._send(lambda _: self._backend.create(key, data), *_limits(data), size=len(data))

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        """See `Backend.exchange`. Also False if an unanswered try has stored the object."""
        return await self._send(lambda _: self._backend.exchange(key, data, expected), *_limits(data), size=len(data))

    async def replace(self, key: str, data: bytes) -> None:
        """See `Backend.replace`."""
        await self._send(lambda _: self._backend.replace(key, data), *_limits(data), size=len(data))

    async def look(self, key: str) -> Listed | None:
        """See `Backend.look`."""
        return await self._send(lambda _: self._backend.look(key))

    async def delete(self, key: str) -> None:
        """See `Backend.delete`. Not repeated: a repetition could remove what was stored since."""
        await self._backend.delete(key)

    def list(self, prefix: str) -> AsyncIterator[Listed]:
        """See `Backend.list`. Not repeated."""
        return self._backend.list(prefix)

    def pause_after(self, error: Exception) -> float | None:
        """See `Backend.pause_after`."""
        return self._backend.pause_after(error)

    # ------------------------------------------------------------------- tries

    async def _send(
        self, request: Callable[[Callable[[], None]], Awaitable[_T]], seconds: float = _SECONDS, patience: float = _PATIENCE, *,
        size: int = 0, copies: int = 1,
    ) -> _T:  # fmt: skip
        """Send a request and return its answer. Raises the errors of the client, and `TimeoutError`."""
        pause, spent = _FIRST_PAUSE, 0.0
        while True:
            async with self._slots:
                began = _now()
                try:
                    answer = await self._try(request, seconds, size, copies)
                except Exception as error:
                    after = None if isinstance(error, TimeoutError) else self._backend.pause_after(error)
                    rest = max(pause * random.uniform(0.5, 1.5), after or 0.0)  # noqa: S311 - it is not to be the same as that of others
                    spent += _now() - began + rest
                    if after is None or spent > patience or not self._pays(size):
                        raise
                else:
                    self._credit = min(_CREDIT, self._credit + _EARNED)
                    return answer
            await asyncio.sleep(rest)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(self, request: Callable[[Callable[[], None]], Awaitable[_T]], seconds: float, size: int, copies: int) -> _T:
        """Make one try, with copies."""
        begun = asyncio.Event()
        copy = partial(request, begun.set)
        running = {asyncio.ensure_future(copy())}
        silence = max(_SHORTEST_SILENCE, _SILENCE * self.latency) if self.latency else _UNKNOWN_SILENCE
        try:
            async with asyncio.timeout(seconds):
                while True:
                    done, running = await asyncio.wait(running, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
                    first = min(done, key=lambda task: task.exception() is not None, default=None)
                    if first is not None and (not running or first.exception() is None):
                        return first.result()
                    if first is None and not begun.is_set() and len(running) < copies and self._pays(size):
                        running.add(asyncio.ensure_future(copy()))
                    silence *= 2
        finally:
            for task in running:
                task.cancel()

    def _pays(self, size: int) -> bool:
        """Take one try for an object of this size from the budget; return whether there was enough."""
        price = 1.0 + size / _COSTLY
        is_paid = price <= self._credit
        if is_paid:
            self._credit -= price
            self.repeated += 1
        return is_paid

    def _learn(self, seconds: float, size: int) -> None:
        if size < _SMALL:
            self.latency = seconds if not self.latency else 0.9 * self.latency + 0.1 * seconds
            if len(self._first) < _FIRST:
                self._first.append(seconds)
                self.distance = min(self._first) if len(self._first) == _FIRST else 0.0
            else:
                self.distance = min(seconds, _RISE * self.distance)
        else:
            rate = max(0.0, seconds - self.latency) / size
            self.rate = rate if not self.rate else 0.9 * self.rate + 0.1 * rate


def _limits(data: bytes) -> tuple[float, float]:
    """Return the time limit of a try that stores this object, and of all tries."""
    seconds = _SECONDS_PER_BYTE * len(data)
    return _SECONDS + seconds, _PATIENCE + seconds


def _written(path: str) -> BinaryIO:
    """Open a file of this user for writing, replacing what an earlier try has left."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def _now() -> float:
    """Return the time of the event loop, which changes of the system clock do not affect."""
    return asyncio.get_running_loop().time()
