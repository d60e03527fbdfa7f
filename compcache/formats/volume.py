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

# Hits read volumes. So modules for damage, removals and other users are imported late, and not `__future__` (see `compcache.hit`).
import os
from stat import S_ISREG
from struct import Struct

from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from compcache.errors import FormatError
    from compcache.formats.table import Table

    #: Offset, length of the stream, size of the module file, size of its signatures, modification time.
    Member = tuple[int, int, int, int, float]

__all__ = ["LARGEST", "MAGIC", "MEMBER", "NAME_SIZE", "TAIL", "Volume", "encode_removed", "reraise_interrupt"]

MAGIC = b"CCVOLUM1"
CHECK_SIZE, DIGEST_SIZE = 8, 16  # as `compcache.digest` has them
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # as `compcache.files` has them
NAME_SIZE = 12
TAIL = Struct(f"<QIIQ{CHECK_SIZE}s")
MEMBER = Struct(f"<{DIGEST_SIZE}sQIIId")
#: The size limit in bytes of a module file in a volume, and of its signatures.
LARGEST = 1 << 20
_FIELDS = Struct("<QIIId")
_GONE = DIGEST_SIZE + CHECK_SIZE
_LARGEST_DICTIONARY, _MOST_REPLACED, _LARGEST_LIST = 1 << 15, 1 << 16, 1 << 26
_RAW = -15


def encode_removed(module_id: bytes) -> bytes:
    """Encode a removed module as a row of a volume's list."""
    return module_id + _checksum(module_id)


def reraise_interrupt(error: BaseException) -> None:
    """Raise an interrupt, as `compcache.interrupts.reraise_interrupt` does. That file is imported when an error occurs."""
    from compcache import interrupts

    interrupts.reraise_interrupt(error)


def _checksum(data: bytes) -> bytes:
    """Return the checksum of data in a volume, `CHECK_SIZE` bytes."""
    checksum: bytes = runtime.digest(data, CHECK_SIZE)
    return checksum


def _damaged_error(reason: str) -> "FormatError":
    """Return a `FormatError`. It is imported when a volume is damaged, because hits import this file."""
    from compcache.errors import FormatError

    return FormatError(reason)


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
        "_dictionary", "_directory", "_files", "_gone", "_gone_state", "_opened", "_owners", "_suffixes", "name", "needs_list", "replaced",
        "share", "status", "table",
    )  # fmt: skip

    def __init__(self, files: "Any", directory: str, name: str, suffixes: tuple[str, str], owners: frozenset[int] | None = None) -> None:
        self._files, self._directory, self.name, self._suffixes, self._owners = files, directory, name, suffixes, owners
        self._opened: Any = files.open_owned(f"{directory}/{name}", _READ_FLAGS)
        self.status: os.stat_result = files.fstat(self._opened.number)
        self._require_trusted_file()
        dictionary_offset, table_offset = self._read_tail()
        self.table: Table = runtime.Table(lambda offset, count: self._read(table_offset + offset, count))
        if self.table.width != MEMBER.size:
            raise _damaged_error(f"the rows in the table of the volume have {self.table.width} bytes, not {MEMBER.size}")
        #: The bytes of the volume outside of streams, divided by the number of its modules.
        self.share = (self.status.st_size - dictionary_offset + len(MAGIC)) // max(self.table.count, 1)
        self._gone: frozenset[bytes] = frozenset()
        self._gone_state = 0, 0

    def _require_trusted_file(self) -> None:
        """Raise `FormatError` if other users can write to the file, or it is not a regular file."""
        if self._owners is not None:
            from compcache.files import writer

            if writer(self.status) not in self._owners:
                raise _damaged_error("other users can write to the volume")
        if not S_ISREG(self.status.st_mode):
            raise _damaged_error("the volume is not a regular file")

    def _read_tail(self) -> tuple[int, int]:
        """Read the tail, the dictionary and the names of replaced volumes. Return the offsets of the dictionary and of the table.

        Raise `FormatError` if the file is not a volume, or is damaged.
        """
        size = self.status.st_size
        if size < len(MAGIC) + TAIL.size or self._read(0, len(MAGIC)) != MAGIC:
            raise _damaged_error("the file is not a volume of modules")
        tail = self._read(size - TAIL.size, TAIL.size)
        dictionary_offset, length, replaced, table_offset, expected = TAIL.unpack(tail)
        dictionary_size = length + NAME_SIZE * replaced
        if (
            length > _LARGEST_DICTIONARY
            or replaced > _MOST_REPLACED
            or dictionary_offset + dictionary_size != table_offset
            or table_offset > size - TAIL.size
        ):
            raise _damaged_error("the tail of the volume is damaged: it describes impossible sizes")
        data = self._read(dictionary_offset, dictionary_size)
        if _checksum(tail[:-CHECK_SIZE] + data) != expected:
            raise _damaged_error("the tail of the volume is damaged: its checksum does not match")
        self._dictionary = data[:length]
        names = {data[start : start + NAME_SIZE].hex() + self._suffixes[0] for start in range(length, dictionary_size, NAME_SIZE)}
        self.replaced = names - {self.name}
        self.needs_list = self.name in names
        return dictionary_offset, table_offset

    def _read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file. Raise the errors of `compcache.files.read_at`."""
        try:
            data: bytes = self._files.pread(self._opened.number, size, offset)
        except OSError as error:
            reraise_interrupt(error)
            data = b""
        if len(data) < size:
            from compcache.files import read_at

            data = read_at(self._files, self._opened, offset, size)
        return data

    @property
    def gone_name(self) -> str:
        """The name of the list of removed modules."""
        return self.name.removesuffix(self._suffixes[0]) + self._suffixes[1]

    def removed_ids(self) -> frozenset[bytes]:
        """Return the module_ids of removed modules. The list is read again if it has changed.

        An unreadable list, or a list of a user whose files are not used, is treated as empty.

        Raise `FileNotFoundError` if the list is missing, and the volume is not used without it.
        """
        path = f"{self._directory}/{self.gone_name}"
        try:
            status = self._files.stat(path)
            if (status.st_ino, status.st_size) != self._gone_state:
                self._gone = self._read_removed(path) if status.st_size or not S_ISREG(status.st_mode) else frozenset()
                self._gone_state = status.st_ino, status.st_size
        except OSError as error:
            reraise_interrupt(error)
            if self.needs_list and isinstance(error, FileNotFoundError):
                raise
            return frozenset()  # no user whose files are used has removed a module
        return self._gone

    def _read_removed(self, path: str) -> frozenset[bytes]:
        """Return the IDs of modules that were removed from this volume, from the file at `path`."""
        from compcache.files import read_file

        return frozenset(_decode_removed(read_file(self._files, path, _LARGEST_LIST, owners=self._owners)))

    def find(self, module_id: bytes) -> "Member | None":
        """Return the place of a module in this volume, or None if the volume does not contain the module or it was removed.

        Raise `OSError` if the volume or its list cannot be read, or `FormatError` if the volume's table is damaged.
        """
        rows = self.table.find(module_id)
        if not rows or module_id in self.removed_ids():
            return None
        member: Member = _FIELDS.unpack(rows[0])
        return member

    def members(self, first_byte: int | None = None) -> "Iterator[tuple[bytes, Member]]":
        """Yield (module_id, place) of the modules that were not removed, in order. See `find` for the exceptions.

        `first_byte` limits the result to module_ids that begin with this byte.
        """
        removed = self.removed_ids()
        for number in range(256) if first_byte is None else (first_byte,):
            for row in self.table.entries_of_range(number, 8):
                if row[:DIGEST_SIZE] not in removed:
                    yield row[:DIGEST_SIZE], _FIELDS.unpack(row[DIGEST_SIZE:])

    def content(self, member: "Member") -> tuple[bytes, bytes]:
        """Return the bytes of a module file and of its signatures. The digest of the module file is not verified.

        Raise `FormatError` if the member is damaged, or `OSError` if the volume cannot be read.
        """
        import zlib

        offset, length, size, signatures, _ = member
        if max(length, size, signatures) > LARGEST:
            raise _damaged_error(f"the table of the volume describes a module of more than {LARGEST} bytes")
        total = size + signatures
        try:
            data = zlib.decompressobj(_RAW, self._dictionary).decompress(self._read(offset, length), total + 1)
        except zlib.error as error:
            raise _damaged_error(f"a module in the volume cannot be decompressed: {error}") from error
        if len(data) != total:
            raise _damaged_error(f"a module in the volume does not have the {total} bytes that the table of the volume states")
        return data[:size], data[size:]


def _decode_removed(data: bytes) -> "Iterator[bytes]":
    """Yield the module IDs in a list of removed modules. Damaged and incomplete rows are skipped."""
    offset = 0
    while offset + _GONE <= len(data):
        module_id = data[offset : offset + DIGEST_SIZE]
        if _checksum(module_id) == data[offset + DIGEST_SIZE : offset + _GONE]:
            yield module_id
            offset += _GONE
        else:  # a crash has left an incomplete row
            offset += 1
