"""Queues, limits and repeats the requests of a store. This is the only place that does so.

A try that fails temporarily, as the store's client tells, is repeated after a pause. The pause doubles, has a random part, and is at
least as long as the store demands. If a reading try is silent for longer than usual, a copy of it is started; the first answer
counts. Time in the queue does not count against a try.

Repetitions have a budget: each answer adds a part of a try, and a large object costs more than a small one. So a store that fails for
all hosts gets hardly more requests than a healthy one.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import Any, TypeVar

    from compcache.remote.helper.backends import Backend
    from compcache.remote.maintenance import RemoteObject

    _T = TypeVar("_T")

__all__ = ["Requests", "loop_time", "run_until_done"]

#: The default time limit of one try in seconds, the addition for each stored byte, and the limit of all tries and pauses of a request.
_SECONDS, _SECONDS_PER_BYTE, _PATIENCE = 60.0, 1.0 / (1 << 20), 3.0
#: The first pause and the longest one, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
#: A try gets a copy after this many times the usual latency without an answer, but not earlier than the shortest silence in seconds; the
#: third value applies while the latency is unknown. Each further copy waits twice as long.
_SHORTEST_SILENCE, _SILENCE, _UNKNOWN_SILENCE = 0.1, 3.0, 0.25
_COPIES = 4
#: The largest budget in tries, the part of a try that an answer adds, and the number of bytes that cost as much as a try.
_CREDIT, _EARNED, _COSTLY = 64.0, 0.2, 8 << 20
#: Objects with fewer bytes than this count for the latency, others for the rate.
_SMALL = 1 << 16
#: The factor by which the estimated distance of a store grows with each slower answer.
_RISE = 1.05
#: The number of small requests before the distance is estimated.
_FIRST = 8


class Requests:
    """Sends the requests of one store. It is a `Backend` itself.

    Args:
        backend: the client of the store.
        concurrent: the maximum number of requests that run at a time.

    Attributes:
        latency: a moving average of the seconds that a small request takes.
        distance: the least seconds of recent small requests, which a busy host does not raise, or 0.0 before there were `_FIRST` of them.
        rate: a moving average of the seconds per byte that large requests take.
        repeated: the number of tries and copies other than first tries.
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
    def is_atomic(self) -> bool:
        """See `Backend.is_atomic`."""
        return self._backend.is_atomic

    async def get(
        self, key: str, max_size: int, _: Callable[[], None] | None = None, *, seconds: float = _SECONDS, patience: float = _PATIENCE,
        require: Callable[[], None] = lambda: None,
    ) -> bytes | None:  # fmt: skip
        """See `Backend.get`, whose `on_response` is not supported. Each try has a time limit of `seconds`.

        `require` is called before each try, and its exceptions are raised.
        """

        async def try_once(on_response: Callable[[], None]) -> bytes | None:
            """Send the request once, and return the object or None. Update the estimates if the store answers."""
            require()
            started = loop_time()
            data = await self._backend.get(key, max_size, on_response)
            self._update_latency(loop_time() - started, len(data or b""))
            return data

        return await self._send(try_once, seconds, patience, size=max_size, copies=_COPIES)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Backend.create`, and `_send` for the exceptions. The result is also False if an unanswered try has stored the object."""
        return await self._send(lambda _: self._backend.create(key, data), *_upload_limits(data), size=len(data))

    async def exchange(self, key: str, data: bytes, expected: bytes) -> bool:
        """See `Backend.exchange`, and `_send` for the exceptions. The result is also False if an unanswered try has stored the object."""
        return await self._send(lambda _: self._backend.exchange(key, data, expected), *_upload_limits(data), size=len(data))

    async def replace(self, key: str, data: bytes) -> None:
        """See `Backend.replace`, and `_send` for the exceptions."""
        await self._send(lambda _: self._backend.replace(key, data), *_upload_limits(data), size=len(data))

    async def stat(self, key: str) -> RemoteObject | None:
        """See `Backend.stat`, and `_send` for the exceptions."""
        return await self._send(lambda _: self._backend.stat(key))

    async def delete(self, key: str) -> None:
        """See `Backend.delete`. The request is not repeated: a repetition could remove an object that was stored since."""
        await self._backend.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[RemoteObject]:
        """See `Backend.list`. The request is not repeated. Objects whose names begin with a dot are temporary files, and are left out."""
        async for item in self._backend.list(prefix):
            if not item.key.rpartition("/")[2].startswith("."):
                yield item

    def retry_delay(self, error: Exception) -> float | None:
        """See `Backend.retry_delay`."""
        return self._backend.retry_delay(error)

    async def _send(
        self, request: Callable[[Callable[[], None]], Awaitable[_T]], seconds: float = _SECONDS, patience: float = _PATIENCE, *,
        size: int = 0, copies: int = 1,
    ) -> _T:  # fmt: skip
        """Send a request and return its answer. Repeat it after temporary errors, for `patience` seconds at most.

        Args:
            request: sends one try. It calls its argument when the response begins.
            seconds: the time limit of one try.
            patience: the time limit of all tries and pauses together.
            size: the size of the answer in bytes, if it is known. The budget allows fewer repetitions of large requests.
            copies: how many copies of a slow try may run at once.

        Raises:
            TimeoutError: a try had no answer in time.
            Exception: an error of the store's client that is not temporary, or that remained after all repetitions.
        """
        pause, spent = _FIRST_PAUSE, 0.0
        while True:
            async with self._slots:
                began = loop_time()
                try:
                    answer = await self._send_copies(request, seconds, size, copies)
                except Exception as error:
                    after = None if isinstance(error, TimeoutError) else self._backend.retry_delay(error)
                    delay = max(pause * random.uniform(0.5, 1.5), after or 0.0)  # noqa: S311 - hosts must not repeat in step
                    spent += loop_time() - began + delay
                    if after is None or spent > patience or not self._spend_on_repeat(size):
                        raise
                else:
                    self._credit = min(_CREDIT, self._credit + _EARNED)
                    return answer
            await asyncio.sleep(delay)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _send_copies(self, request: Callable[[Callable[[], None]], Awaitable[_T]], seconds: float, size: int, copies: int) -> _T:
        """Make one try, with up to `copies` concurrent requests, and return the first answer.

        Raise `TimeoutError` if there was no answer within `seconds`, or the error of the store's client.
        """
        on_response = asyncio.Event()
        copy = partial(request, on_response.set)
        running = {asyncio.ensure_future(copy())}
        silence = self.silence()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    finished, running = await asyncio.wait(running, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
                    winner = min(finished, key=lambda task: task.exception() is not None, default=None)
                    if winner is not None and (not running or winner.exception() is None):
                        return winner.result()
                    if winner is None and not on_response.is_set() and len(running) < copies and self._spend_on_repeat(size):
                        running.add(asyncio.ensure_future(copy()))
                    silence *= 2
        finally:
            for task in running:
                task.cancel()

    def silence(self) -> float:
        """Return after how many seconds without an answer a try is repeated in parallel, and the next store gets the request too."""
        return max(_SHORTEST_SILENCE, _SILENCE * self.latency) if self.latency else _UNKNOWN_SILENCE

    def _spend_on_repeat(self, size: int) -> bool:
        """Take the cost of a repeated try for an object of this size from the credit. Return False if the credit is too small.

        The repeated tries are counted in `repeated`.
        """
        cost = 1.0 + size / _COSTLY
        is_affordable = cost <= self._credit
        if is_affordable:
            self._credit -= cost
            self.repeated += 1
        return is_affordable

    def _update_latency(self, seconds: float, size: int) -> None:
        """Update `latency` and `distance`, or for a large object `rate`, with a request that took `seconds` for `size` bytes."""
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


def _upload_limits(data: bytes) -> tuple[float, float]:
    """Return the time limit of a try that stores this object, and the limit of all tries together, in seconds."""
    seconds = _SECONDS_PER_BYTE * len(data)
    return _SECONDS + seconds, _PATIENCE + seconds


def run_until_done(tasks: dict[str, asyncio.Future[_T]], key: str, work: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
    """Run a coroutine as a task that `tasks` contains until it has ended. An exception that nobody awaits is not logged."""

    def end(task: asyncio.Future[_T]) -> None:
        """Remove the task, and retrieve its exception: asyncio logs exceptions that nobody has retrieved."""
        del tasks[key]
        if not task.cancelled():
            task.exception()

    task = tasks[key] = asyncio.ensure_future(work)
    task.add_done_callback(end)
    return task


def loop_time() -> float:
    """Return the monotonic time of the event loop, in seconds."""
    return asyncio.get_running_loop().time()
