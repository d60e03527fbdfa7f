"""The outbox: uploads that wait on disk, one file per module. If they exceed the size limit, the oldest files are dropped.

The process that compiled a module writes a file and continues. The helper uploads the file, now or in its next run.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from compcache.digest import check
from compcache.errors import FormatError
from compcache.interrupts import as_format_error, suppress
from compcache.messagepack import pack, unpack
from compcache.processes.detached import LateFiles
from compcache.publish.atomic_file import publish, unique_name
from compcache.remote.card import checked_content

__all__ = ["LIMIT", "Outbox", "Upload"]

#: The largest total size of the files, in bytes.
LIMIT = 256 << 20
_SETTLED = 3600.0  # the longest time that writing a file can take, in seconds
_MAGIC = b"CCUPLD3\0"
#: Includes the version of the format. A file of another version waits for a helper of that version, or is dropped as the oldest.
_ENDING = ".upload3"
_STORED = "-stored"
_TYPES = {"key": str, "module": bytes, "seconds": float, "always": bool, "replaces": bool}


class Upload(NamedTuple):
    """A module with its cards.

    Attributes:
        key: the key of the module.
        module: the bytes of the module, or nothing if the cards contain it.
        cards: the keys and bytes of the cards.
        seconds: the time that compiling took.
        always: upload the module even if that saves less time than fetching it costs.
        replaces: replace the cards of the same shelf: the uploading process has rejected their module, it has the newest code of a plain
            name, or the module is a pack of data.
    """

    key: str
    module: bytes
    cards: list[tuple[str, bytes]]
    seconds: float
    always: bool
    replaces: bool = False


class Outbox:
    """The waiting uploads in one directory. Several processes add uploads. One process, the helper, removes them.

    Args:
        directory: the path of the directory.
        limit: the largest total size of the files, in bytes.
    """

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        self._directory = directory
        self._limit = limit

    def put(self, upload: Upload) -> int:
        """Add an upload. Return the number of older uploads dropped to free space. Raise `OSError` if the file could not be written."""
        data = _MAGIC + pack(list(upload))
        data += check(data)
        dropped = self._make_room(len(data))
        name = f"{time.time_ns():020d}-{unique_name()}{_ENDING}"
        publish(LateFiles(), self._directory, os.path.join(self._directory, name), [data], sync=False)
        return dropped

    def names(self) -> list[str]:
        """Return the file names of the waiting uploads, the oldest first."""
        return [name for name in self._upload_files() if name.endswith(_ENDING)]

    def finished(self) -> list[str]:
        """Return the file names of the finished uploads that must still be checked, the oldest first."""
        return [name for name in self._upload_files() if name.endswith(_ENDING + _STORED)]

    def mark_finished(self, name: str) -> str:
        """Mark an upload as finished without removing it. Return its new file name. A failure to rename the file is ignored."""
        with suppress(OSError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, name + _STORED))
        return name + _STORED

    def requeue(self, name: str) -> None:
        """Queue a finished upload again, because the store does not have it. A failure to rename the file is ignored."""
        with suppress(OSError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, name.removesuffix(_STORED)))

    def _upload_files(self) -> list[str]:
        """Return the file names of uploads in all versions of the format, the oldest first."""
        return sorted(name for name in self._listed_names() if ".upload" in name)

    def _listed_names(self) -> list[str]:
        """Return the names of all files in the directory. The list is empty if the directory cannot be read."""
        with suppress(OSError):
            return os.listdir(self._directory)
        return []

    def read(self, name: str) -> Upload:
        """Read an upload.

        Raises:
            OSError: the file does not exist, or cannot be read.
            FormatError: the file is damaged, or has another version of the format.
        """
        with open(os.path.join(self._directory, name), "rb") as file:
            data = file.read()
        content = checked_content(data, _MAGIC, f"the upload {name}")
        with as_format_error(f"the upload {name} is malformed"):
            key, module, cards, seconds, always, replaces = unpack(content)
            upload = Upload(key, module, [(card_key, card) for card_key, card in cards], seconds, always, replaces)
        fields = [(name, getattr(upload, name), expected) for name, expected in _TYPES.items()]
        fields += [row for card_key, card in upload.cards for row in (("a card's key", card_key, str), ("a card", card, bytes))]
        for field, value, expected in fields:
            if not isinstance(value, expected):
                raise FormatError(f"the upload {name} is malformed: {field} is of type {type(value).__name__}, not {expected.__name__}")
        return upload

    def remove(self, name: str) -> None:
        """Remove an upload. A failure is ignored."""
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, name))

    def size(self, *, waiting: bool = False) -> int:
        """Return the total size of the files in bytes. With `waiting`, only the files in `names` count."""
        total = 0
        for name in self.names() if waiting else self._upload_files():
            with suppress(OSError):
                total += os.stat(os.path.join(self._directory, name)).st_size
        return total

    def sweep(self) -> None:
        """Remove the partially written files of killed processes an hour after the last write. Files that cannot be removed stay."""
        for name in [name for name in self._listed_names() if ".upload" not in name]:
            path = os.path.join(self._directory, name)
            with suppress(OSError):  # another helper has removed the file
                if time.time() - os.stat(path).st_mtime > _SETTLED:
                    os.unlink(path)

    def _make_room(self, size: int) -> int:
        """Drop uploads until a file of `size` bytes fits, finished uploads first. It may not fit even without other uploads.

        Return the number of waiting uploads that were dropped.
        """
        excess_size = self.size() + size - self._limit
        if excess_size <= 0:
            return 0
        dropped = 0
        for name in sorted(self._upload_files(), key=lambda name: not name.endswith(_STORED)):
            if excess_size <= 0:
                break
            with suppress(OSError):
                excess_size -= os.stat(os.path.join(self._directory, name)).st_size
            self.remove(name)
            dropped += not name.endswith(_STORED)
        return dropped
