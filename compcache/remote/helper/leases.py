"""Leases: if many hosts lack a function, one of them compiles it, and the others wait for its upload.

A lease is an object: a magic, the name of its holder, and a count. The host that creates it holds it. The holder increases the count
every `_RENEWED` seconds, as long as the process that compiles keeps its connection. A host that finds a lease waits until the lease
is gone, and then finds the function. If the bytes of the lease do not change for `_EXPIRES` seconds by that host's own clock, the
host takes the lease over, by an exchange in which exactly one of several hosts succeeds.

A lease protects nothing. A host that does not want to wait any longer compiles. All stored objects are verified as always. A lost lease
costs one more compilation. The object is removed after the upload; an object that a host leaves behind is garbage a day later.

Limitations: stores that cannot compare (`Backend.is_atomic`) have no leases.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

from compcache.remote.helper.requests import loop_time, run_until_done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from compcache.remote.helper.requests import Requests

__all__ = ["LONGEST_WAIT", "Leases"]

_MAGIC = b"CCLEASE1"
_LARGEST = 64
_RENEWED, _EXPIRES = 1.0, 3.0
#: For how many seconds a host waits for another host's compilation of unknown duration.
LONGEST_WAIT = 5.0
_FIRST_LOOK, _LAST_LOOK = 0.05, 0.5
#: For how many seconds a lease is held for uploads that continue after the compilation.
_UPLOAD_SECONDS = 10.0


class Leases:
    """The leases that one helper process holds or waits for.

    Args:
        requests: the requests of the store.
        uploads: returns whether an upload waits or is running.
    """

    def __init__(self, requests: Requests, uploads: Callable[[], bool]) -> None:
        self._requests = requests
        self._uploads = uploads
        self._holder = os.urandom(12)
        self._count = 0
        self._held: dict[str, asyncio.Future[None]] = {}

    def holds(self, key: str) -> bool:
        """Return whether this process holds a lease."""
        return key in self._held

    async def acquire_or_wait(
        self, key: str, seconds: float, is_stored: Callable[[], Awaitable[bool]], is_client_gone: Callable[[], bool],
        on_wait: Callable[[], None],
    ) -> None:  # fmt: skip
        """Acquire the lease of a function, or wait until another host has stored the function.

        Do nothing if the store has no leases, or this process holds the lease. An acquired lease is held until the client has closed
        its connection and the uploads are done. Errors of the store are raised.

        Args:
            key: the key of the lease.
            seconds: the maximum wait in seconds.
            is_stored: returns whether the store has the function.
            is_client_gone: returns whether the client has closed its connection. This ends the wait.
            on_wait: called when it is known that another host holds the lease.
        """
        if not self._requests.is_atomic or key in self._held:
            return
        end, pause = loop_time() + seconds, _FIRST_LOOK
        other_content, unchanged_since = b"", loop_time()
        while loop_time() < end and not is_client_gone():
            own_content = self._next_content()
            is_acquired = not other_content and await self._requests.create(key, own_content)
            current_content = None if is_acquired else await self._requests.get(key, _LARGEST)
            if (
                other_content and current_content == other_content and loop_time() - unchanged_since >= _EXPIRES
            ):  # the holder of the lease no longer runs
                is_acquired = await self._requests.exchange(key, own_content, other_content)
                unchanged_since = loop_time()
            if is_acquired:
                run_until_done(self._held, key, self._renew_lease(key, own_content, is_client_gone))  # lost if it fails
            has_ended = is_acquired or (current_content is None and other_content)
            if has_ended and await is_stored():  # another host has stored the function, and then released the lease
                return
            if is_acquired:
                return
            if current_content is not None and not other_content:
                on_wait()
            if current_content != other_content:
                other_content, unchanged_since = current_content or b"", loop_time()
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), max(0.0, end - loop_time())))  # noqa: S311 - hosts must not ask in step
            pause = min(2 * pause, _LAST_LOOK)

    def _next_content(self) -> bytes:
        """Return the next bytes of a lease that this process holds."""
        self._count += 1
        return _MAGIC + self._holder + self._count.to_bytes(8, "little")

    async def _renew_lease(self, key: str, own_content: bytes, is_client_gone: Callable[[], bool]) -> None:
        """Renew a lease until the client has disconnected and the uploads are done, then remove it. Return early if the lease is lost."""
        renewed, end = loop_time(), float("inf")
        while not is_client_gone() or (self._uploads() and loop_time() < end):
            if is_client_gone() and end == float("inf"):
                end = loop_time() + _UPLOAD_SECONDS
            if loop_time() - renewed >= _RENEWED:
                following, renewed = self._next_content(), loop_time()
                if not await self._requests.exchange(key, following, own_content):
                    return  # another host has taken the lease over or removed it
                own_content = following
            await asyncio.sleep(_FIRST_LOOK)
        if await self._requests.get(key, _LARGEST) == own_content:
            await self._requests.delete(key)
