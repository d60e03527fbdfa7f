"""Notes of the functions that hosts have used, for `compcache remote gc --unused-for`.

Layout of a note: a magic, the first 8 bytes of the key of each function that one host has received, and a check over all that. Notes
are at ``ccr3/u/<random name>``; the store's clock gives their time. A host writes at most one note a day. Until then, names wait in a
file ``used`` beside the helper's socket; its modification time is the time of the last note.

Limitations: a reader that may not write leaves no notes. A function that came with an importing function does not count as used.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from compcache.digest import check, name_key
from compcache.errors import FormatError
from compcache.remote.card import checked_content
from compcache.remote.shelves import LAYOUT

if TYPE_CHECKING:
    from compcache.remote.helper.requests import Requests

__all__ = ["USES", "Uses", "decode_uses", "shortened_key"]

USES = f"{LAYOUT}/u/"
_MAGIC = b"CCUSES1\0"
_SIZE = 8  # bytes of a shortened key
_MOST = 1 << 17  # functions that one note can name
_DAY = 86400.0


class Uses:
    """The functions that one host has received from one store.

    Args:
        requests: the requests of the store.
        directory: the directory of the file for waiting names.
    """

    def __init__(self, requests: Requests, directory: str) -> None:
        self._requests = requests
        self._path = os.path.join(directory, "used")
        self._names: set[bytes] = set()

    def note(self, name: str) -> None:
        """Record that a function was used. Functions beyond `_MOST` are ignored."""
        if len(self._names) < _MOST:
            self._names.add(name_key(name)[:_SIZE])

    async def store_note(self) -> None:
        """Store a note of the recorded names and of those in the file, if the last note is at least a day old.

        The file is then emptied. Otherwise save all names in the file. Do nothing if no name was recorded.

        Raises:
            OSError: the file cannot be written.
            Exception: an error of the store's client.
        """
        if not self._names:
            return
        waiting, stored = self._load_names()
        self._names |= waiting
        is_due = not 0 <= time.time() - stored < _DAY
        if is_due:
            await self._requests.replace(USES + os.urandom(12).hex(), encode_uses(self._names))
            self._names.clear()
        self._save_names(None if is_due else (stored, stored))

    def _save_names(self, times: tuple[float, float] | None) -> None:
        """Write the names to the file. `times` are its access and modification times; None means the current time.

        Raise `OSError` if the file cannot be written.
        """
        with open(f"{self._path}.new", "wb") as file:
            file.write(b"".join(sorted(self._names)))
        os.utime(f"{self._path}.new", times)
        os.replace(f"{self._path}.new", self._path)

    def _load_names(self) -> tuple[set[bytes], float]:
        """Return the names in the file, and the time of the last note. Without a readable file, return an empty set and minus infinity."""
        with suppress(OSError), open(self._path, "rb") as file:
            data = file.read(_MOST * _SIZE)
            return {data[start : start + _SIZE] for start in range(0, len(data) - _SIZE + 1, _SIZE)}, os.fstat(file.fileno()).st_mtime
        return set(), float("-inf")


def encode_uses(names: set[bytes]) -> bytes:
    """Encode shortened keys as a note."""
    data = _MAGIC + b"".join(sorted(names))
    return data + check(data)


def decode_uses(data: bytes) -> set[bytes]:
    """Decode a note, and return its shortened keys. The result is empty if the note is damaged."""
    try:
        keys = checked_content(data, _MAGIC, "the note")
    except FormatError:
        return set()
    return {keys[start : start + _SIZE] for start in range(0, len(keys), _SIZE)}


def shortened_key(key: str) -> bytes:
    """Return the shortened key of a function, from the key of its card or pack; b"" for a key without a digest."""
    try:
        return bytes.fromhex(key.rpartition("/")[2])[:_SIZE]
    except ValueError:
        return b""
