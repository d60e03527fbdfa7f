"""The codec for volumes: immutable files with many small module files, which are stored unchanged and compressed separately.

Layout (little-endian), version 1::

    magic "CCVOLUM1" | members | dictionary | digests (12 bytes each) in the names of volumes that this volume replaces | table | tail

A member is a raw deflate stream (RFC 1951) that uses the dictionary. It contains a module file, followed by its signatures, if any. The
table (`compcache.formats.table`) has for each module_id: offset u64, length of the stream u32, sizes of the module file and of its
signatures u32, modification time of the file f64. The tail (32 bytes) is the offset of the dictionary u64, its size and the number of
digests u32, the offset of the table u64, and a check (8) of these 24 bytes, the dictionary and the digests. Volumes have distinct names.

Beside a volume is a list of its removed modules: a module_id and its check (8) for each, appended in one write. The list is created before
the volume, so that it contains modules that are removed while the volume is written. A volume that lists its own name among the replaced
volumes is not used without its list. Other volumes, which version 1.0 wrote, may lack the list if no module was removed.

A volume that another volume replaces is ignored, so a single rename replaces several volumes.
"""

from __future__ import annotations

from functools import partial
from stat import S_ISREG
from typing import TYPE_CHECKING

from compcache import files as file_ops
from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.errors import FormatError
from compcache.interrupts import reraise_interrupt
from compcache.native import runtime

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from compcache.formats.table import Table

__all__ = ["MAGIC", "NAME_SIZE", "Volume", "encode_removed"]

MAGIC = b"CCVOLUM1"
NAME_SIZE = 12
_GONE = DIGEST_SIZE + CHECK_SIZE
_LARGEST_LIST = 1 << 26


def encode_removed(module_id: bytes) -> bytes:
    """Encode a removed module as a row of a volume's list."""
    return module_id + check(module_id)


class Volume:
    """An open volume.

    `replaced` has the names of the volumes that it replaces. A volume with `needs_list` is not used without its list.

    Args:
        files: the operations to use.
        directory: the path of its directory.
        name: the name of its file.
        suffixes: the suffixes of the names of volumes, and of their lists.
        owners: the users whose files are used, or None for all users.

    Raises:
        OSError: the file cannot be read.
        FormatError: the file is not a volume, is damaged, or other users can write to it.
    """

    __slots__ = (
        "_decoded", "_dictionary", "_directory", "_files", "_gone", "_gone_state", "_owners", "_read", "_suffixes", "name", "needs_list",
        "replaced", "share", "status", "table",
    )  # fmt: skip

    def __init__(
        self, files: file_ops.Files, directory: str, name: str, suffixes: tuple[str, str], owners: frozenset[int] | None = None
    ) -> None:
        self._files, self._directory, self.name, self._suffixes, self._owners = files, directory, name, suffixes, owners
        opened = files.open_owned(f"{directory}/{name}", file_ops.READ_FLAGS)
        self.status: os.stat_result = files.fstat(opened.number)
        if owners is not None and file_ops.writer(self.status) not in owners:
            raise FormatError("other users can write to the volume")
        if not S_ISREG(self.status.st_mode):
            raise FormatError("the volume is not a regular file")
        # The table is invisible to the garbage collector, so what it reads with must not refer to this object.
        self._read = partial(_read_part, files, opened, f"{directory}/{name}")
        self.table: Table
        self.table, dictionary_offset, self._dictionary, digests = runtime.open_volume(self._read, self.status.st_size)
        names = {digests[start : start + NAME_SIZE].hex() + suffixes[0] for start in range(0, len(digests), NAME_SIZE)}
        self.replaced = names - {name}
        self.needs_list = name in names
        #: The bytes of the volume outside of streams, divided by the number of its modules.
        self.share = (self.status.st_size - dictionary_offset + len(MAGIC)) // max(self.table.count, 1)
        self._gone = b""
        self._decoded: tuple[bytes, frozenset[bytes]] = b"", frozenset()
        self._gone_state = 0, 0

    @property
    def gone_name(self) -> str:
        """The name of the list of removed modules."""
        return self.name.removesuffix(self._suffixes[0]) + self._suffixes[1]

    def removed_ids(self) -> frozenset[bytes]:
        """Return the module_ids of removed modules. See `_read_removed` for the exception."""
        data = self._read_removed()
        if data is not self._decoded[0]:  # listings ask for each first byte of the module_ids
            self._decoded = data, frozenset(_decode_removed(data))
        return self._decoded[1]

    def _read_removed(self) -> bytes:
        """Return the content of the list of removed modules. It is read again if it has changed.

        A list of a user whose files are not used is treated as empty, and a missing list if the volume is used without it.

        Raise `OSError` if the list cannot be read, because a module that it contains must not come back.
        """
        path = f"{self._directory}/{self.gone_name}"
        try:
            status = self._files.stat(path)
            if self._owners is not None and file_ops.writer(status) not in self._owners:
                return b""
            if (status.st_ino, status.st_size) != self._gone_state:
                self._gone = file_ops.read_file(self._files, path, _LARGEST_LIST, owners=self._owners)
                self._gone_state = status.st_ino, status.st_size
        except FileNotFoundError as error:
            reraise_interrupt(error)
            if self.needs_list:
                raise
            return b""
        except OSError as error:
            reraise_interrupt(error)
            raise _named_error(error, path) from error
        return self._gone

    def find(self, module_id: bytes) -> bytes | None:
        """Return the entry of a module in the table, without its key, or None if the volume lacks the module or the module was removed.

        Raise `OSError` if the volume cannot be read or lacks the list that it needs, or `FormatError` if its table is damaged.
        """
        rows = self.table.find(module_id)
        return None if not rows or encode_removed(module_id) in self._read_removed() else rows[0]

    def members(self, first_byte: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (module_id, entry) of the modules that were not removed, in order. See `find` for the exceptions.

        `first_byte` limits the result to module_ids that begin with this byte.
        """
        removed = self.removed_ids()
        for number in range(256) if first_byte is None else (first_byte,):
            for row in self.table.entries_of_range(number, 8):
                if row[:DIGEST_SIZE] not in removed:
                    yield row[:DIGEST_SIZE], row[DIGEST_SIZE:]

    def status_of(self, member: bytes) -> tuple[int, float]:
        """Return a module's size in bytes and its modification time from its entry. Raise `FormatError` if the entry is damaged."""
        size, modified = runtime.member_status(member)
        return size + self.share, modified

    def content(self, member: bytes) -> tuple[bytes, bytes]:
        """Return the bytes of a module file and of its signatures. The digest of the module file is not verified.

        Raise `FormatError` if the member is damaged, or `OSError` if the volume cannot be read.
        """
        content: tuple[bytes, bytes] = runtime.unpack_member(self._read, self._dictionary, member)
        return content


def _read_part(files: file_ops.Files, opened: file_ops.Opened, path: str, offset: int, size: int) -> bytes:
    """Read bytes of a file like `read_at`. The text of an `OSError` names the file, because callers only know the module."""
    try:
        return file_ops.read_at(files, opened, offset, size)
    except OSError as error:
        reraise_interrupt(error)
        raise _named_error(error, path) from error


def _named_error(error: OSError, path: str) -> OSError:
    """Return an error whose text names the file that could not be read."""
    return OSError(error.errno, f"{error.strerror or error} in {path}")


def _decode_removed(data: bytes) -> Iterator[bytes]:
    """Yield the module IDs in a list of removed modules. Damaged and incomplete rows are skipped."""
    offset = 0
    while offset + _GONE <= len(data):
        module_id = data[offset : offset + DIGEST_SIZE]
        if check(module_id) == data[offset + DIGEST_SIZE : offset + _GONE]:
            yield module_id
            offset += _GONE
        else:  # a crash has left an incomplete row
            offset += 1
