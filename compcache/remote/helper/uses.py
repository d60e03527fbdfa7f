"""Notes of when functions of a store were last used, for `compcache remote gc --unused-for`.

A note: magic, the first 8 bytes of the key of each function that one host has received, and a check over all that. Notes are at
``ccr3/u/<random name>``; the store's clock gives their time. A host writes one note a day at most. Until then, names wait in a file
``used`` beside the helper's socket; its modification time is that of the last note.

Limitations: a reader that may not write leaves no notes. A function that came with an importing function does not count as used.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from compcache.digest import CHECK_SIZE, check, name_key
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from compcache.remote.helper.requests import Requests

__all__ = ["USES", "Uses", "decode_uses", "use_of"]

USES = f"{LAYOUT}/u/"
_MAGIC = b"CCUSES1\0"
_SIZE = 8
_MOST = 1 << 17
_DAY = 86400.0


class Uses:
    """What one host has received from one store.

    Args:
        requests: the requests of the store.
        directory: the directory of the helper's socket.
    """

    def __init__(self, requests: Requests, directory: str) -> None:
        self._requests = requests
        self._path = os.path.join(directory, "used")
        self._names: set[bytes] = set()

    def note(self, name: str) -> None:
        """Record that a function was used."""
        if len(self._names) < _MOST:
            self._names.add(name_key(name)[:_SIZE])

    async def leave(self) -> None:
        """Store a note if the last one is a day old; otherwise the names wait.

        Raises:
            OSError: the file cannot be written.
            Exception: an error of the store's client.
        """
        if not self._names:
            return
        waiting, stored = self._waiting()
        self._names |= waiting
        is_due = not 0 <= time.time() - stored < _DAY
        if is_due:
            await self._requests.replace(USES + os.urandom(12).hex(), encode_uses(self._names))
            self._names.clear()
        self._keep(None if is_due else (stored, stored))

    def _keep(self, times: tuple[float, float] | None) -> None:
        with open(f"{self._path}.new", "wb") as file:
            file.write(b"".join(sorted(self._names)))
        os.utime(f"{self._path}.new", times)
        os.replace(f"{self._path}.new", self._path)

    def _waiting(self) -> tuple[set[bytes], float]:
        with suppress(OSError), open(self._path, "rb") as file:
            data = file.read(_MOST * _SIZE)
            return {data[at : at + _SIZE] for at in range(0, len(data) - _SIZE + 1, _SIZE)}, os.fstat(file.fileno()).st_mtime
        return set(), float("-inf")


def encode_uses(names: set[bytes]) -> bytes:
    """Encode a note."""
    data = _MAGIC + b"".join(sorted(names))
    return data + check(data)


def decode_uses(data: bytes) -> set[bytes]:
    """Decode the names in a note; none if it is damaged."""
    if data[: len(_MAGIC)] != _MAGIC or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        return set()
    names = data[len(_MAGIC) : -CHECK_SIZE]
    return {names[at : at + _SIZE] for at in range(0, len(names), _SIZE)}


def use_of(key: str) -> bytes:
    """Return the name that notes use for the function whose card or pack is at a key."""
    try:
        return bytes.fromhex(key.rpartition("/")[2])[:_SIZE]
    except ValueError:
        return b""
