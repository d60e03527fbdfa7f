"""Uploads that wait on disk: a file for each module, oldest first; what does not fit into the limit is dropped, oldest first.

The process that compiled writes a file and goes on; the helper uploads it, now or when it runs the next time.
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

#: The bytes that wait at most.
LIMIT = 256 << 20
_SETTLED = 3600.0  # seconds in which any file is written
_MAGIC = b"CCUPLD3\0"
#: Names the version of the format: what waits for a helper of another version is left to it, or dropped in its turn.
_ENDING = ".upload3"
_STORED = "-stored"


class Upload(NamedTuple):
    """A module with its cards: the module's key and bytes (empty where the cards hold it), the cards by key.

    `seconds` is what compiling it took; `always` uploads it even where that saves less than fetching it costs;
    `replaces` puts the cards in place of those that are there, which the uploading process has rejected.
    """

    key: str
    module: bytes
    cards: list[tuple[str, bytes]]
    seconds: float
    always: bool
    replaces: bool = False


class Outbox:
    """The waiting uploads in one directory, which several processes fill and one empties."""

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        self._directory = directory
        self._limit = limit

    def put(self, upload: Upload) -> int:
        """Add an upload; return how many older ones were dropped for it.

        Raises:
            OSError: it could not be written.
        """
        data = _MAGIC + msgpack.packb(list(upload), unicode_errors="surrogatepass")
        data += check(data)
        dropped = self._make_room(len(data))
        name = f"{time.time_ns():020d}-{unique_name()}{_ENDING}"
        publish(LateFiles(), self._directory, os.path.join(self._directory, name), [data], sync=False)
        return dropped

    def names(self) -> list[str]:
        """The waiting uploads, the oldest first."""
        return [name for name in self._files() if name.endswith(_ENDING)]

    def stored(self) -> list[str]:
        """What was uploaded and is kept until it is known to be there, the oldest first."""
        return [name for name in self._files() if name.endswith(_ENDING + _STORED)]

    def keep(self, name: str) -> str:
        """An upload was stored: keep it aside; its name from now on."""
        with suppress(OSError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, name + _STORED))
        return name + _STORED

    def put_back(self, name: str) -> None:
        """What was kept is not in the store: it waits again."""
        with suppress(OSError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, name.removesuffix(_STORED)))

    def _files(self) -> list[str]:
        """Those of other versions as well."""
        try:
            return sorted(name for name in os.listdir(self._directory) if ".upload" in name)
        except OSError as error:
            reraise_interrupt(error)
            return []

    def read(self, name: str) -> Upload:
        """An upload.

        Raises:
            OSError: it is gone, or cannot be read.
            FormatError: it is damaged.
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
            raise FormatError("a field of the upload is of another type")
        if not isinstance(upload.seconds, float) or not isinstance(upload.always, bool):
            raise FormatError("a field of the upload is of another type")
        return upload

    def remove(self, name: str) -> None:
        """Forget an upload."""
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, name))

    def size(self) -> int:
        """The bytes that wait or are kept."""
        total = 0
        for name in self._files():
            with suppress(OSError):
                total += os.stat(os.path.join(self._directory, name)).st_size
        return total

    def sweep(self) -> None:
        """Remove what processes that were killed have left half-written."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if ".upload" not in name and time.time() - os.stat(path).st_mtime > _SETTLED:
                    os.unlink(path)

    def _make_room(self, size: int) -> int:
        """Drop what is in the way, what is in the store already first; return how many uploads that were."""
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
