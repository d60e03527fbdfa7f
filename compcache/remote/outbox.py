"""Uploads that wait on disk: one file per module, oldest first. When they exceed the limit, the oldest are dropped.

The process that compiled writes a file and continues; the helper uploads it, now or when it runs the next time.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import msgpack

from compcache.digest import CHECK_SIZE, check
from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.interrupts import suppress
from compcache.processes.detached import LateFiles
from compcache.publish.atomic_file import publish, unique_name

__all__ = ["LIMIT", "Outbox", "Upload"]

#: How many bytes may wait.
LIMIT = 256 << 20
_SETTLED = 3600.0  # the longest time that writing a file can take
_MAGIC = b"CCUPLD3\0"
#: Includes the version of the format. Files of another version are left to its helper, or dropped when they are the oldest.
_ENDING = ".upload3"
_STORED = "-stored"


class Upload(NamedTuple):
    """A module with its cards: the key and bytes of the module (no bytes if the cards contain it), and the cards by key.

    `seconds` is the time that compiling took. `always` uploads the module even if that saves less than fetching it costs. `replaces`
    replaces cards of the same shelf, which the uploading process has rejected.
    """

    key: str
    module: bytes
    cards: list[tuple[str, bytes]]
    seconds: float
    always: bool
    replaces: bool = False


class Outbox:
    """The waiting uploads in one directory. Several processes add to it; one removes from it."""

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        self._directory = directory
        self._limit = limit

    def put(self, upload: Upload) -> int:
        """Add an upload; return how many older ones were dropped to make room.

        Raises:
            OSError: the file could not be written.
        """
        data = _MAGIC + msgpack.packb(list(upload), unicode_errors="surrogatepass")
        data += check(data)
        dropped = self._make_room(len(data))
        name = f"{time.time_ns():020d}-{unique_name()}{_ENDING}"
        publish(LateFiles(), self._directory, os.path.join(self._directory, name), [data], sync=False)
        return dropped

    def names(self) -> list[str]:
        """Return the waiting uploads, the oldest first."""
        return [name for name in self._files() if name.endswith(_ENDING)]

    def stored(self) -> list[str]:
        """Return finished uploads that are kept until the store is known to have them, the oldest first."""
        return [name for name in self._files() if name.endswith(_ENDING + _STORED)]

    def keep(self, name: str) -> str:
        """Mark an upload as finished but keep it; return its new name."""
        with suppress(OSError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, name + _STORED))
        return name + _STORED

    def put_back(self, name: str) -> None:
        """Queue a finished upload again, because the store does not have it."""
        with suppress(OSError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, name.removesuffix(_STORED)))

    def _files(self) -> list[str]:
        """Return the files of all versions."""
        try:
            return sorted(name for name in os.listdir(self._directory) if ".upload" in name)
        except OSError as error:
            reraise_interrupt(error)
            return []

    def read(self, name: str) -> Upload:
        """Read an upload.

        Raises:
            OSError: the file is gone, or cannot be read.
            FormatError: the file is damaged.
        """
        with open(os.path.join(self._directory, name), "rb") as file:
            data = file.read()
        if data[: len(_MAGIC)] != _MAGIC or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
            raise FormatError("the upload is damaged or of another version")
        try:
            fields = msgpack.unpackb(data[len(_MAGIC) : -CHECK_SIZE], unicode_errors="surrogatepass")
            key, module, cards, seconds, always, replaces = fields
            upload = Upload(key, module, [(card_key, card) for card_key, card in cards], seconds, always, replaces)
        except (ValueError, TypeError) as error:
            reraise_interrupt(error)
            raise FormatError(f"the upload does not decode: {error}") from error
        texts = [upload.key, *[card_key for card_key, _ in upload.cards]]
        contents = [upload.module, *[card for _, card in upload.cards]]
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(content, bytes) for content in contents):
            raise FormatError("a field of the upload has the wrong type")
        if not isinstance(upload.seconds, float) or not isinstance(upload.always, bool):
            raise FormatError("a field of the upload has the wrong type")
        return upload

    def remove(self, name: str) -> None:
        """Remove an upload."""
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, name))

    def size(self, *, waiting: bool = False) -> int:
        """Return the bytes that wait or are kept, or those that are `waiting` alone."""
        total = 0
        for name in self.names() if waiting else self._files():
            with suppress(OSError):
                total += os.stat(os.path.join(self._directory, name)).st_size
        return total

    def sweep(self) -> None:
        """Remove partial files of processes that were killed."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if ".upload" not in name and time.time() - os.stat(path).st_mtime > _SETTLED:
                    os.unlink(path)

    def _make_room(self, size: int) -> int:
        """Drop uploads until this size fits, finished ones first; return how many unfinished ones were dropped."""
        excess = self.size() + size - self._limit
        dropped = 0
        for name in sorted(self._files(), key=lambda name: not name.endswith(_STORED)) if excess > 0 else ():
            if excess <= 0:
                break
            with suppress(OSError):
                excess -= os.stat(os.path.join(self._directory, name)).st_size
            self.remove(name)
            dropped += not name.endswith(_STORED)
        return dropped
