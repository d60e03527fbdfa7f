"""The index: finds the modules that realize a function, and the files that were verified, without listing modules.

The index is a set of immutable segment files in a directory, named ``<level>-<digest>`` and a suffix. An addition publishes a
segment of level 0, or of a higher level if it is large. More than eight segments of a level are merged with those of lower levels,
and of the next levels. Each level has eight times the size of the level below. So a cache of any size has few segments, and an
addition causes `8 * levels / 2` rewrites of its entries, amortized.

A segment (little-endian) is ``"CCINDEX3" | size of the function table u64 | size of the requirements u64 | greatest number
of an addition u64 | function table | module table | requirements``. Both tables have the format `compcache.formats.table`.
A function entry is the key of the name, a module_id, the offset of the function's record, the first four bytes of the digest of
the function's requirement, the number of the addition, and a digest of the function's content or zeros. A module entry is a
`ModuleEntry`: the stamp of the verified file, and sizes for readers. The requirements are a check, and texts preceded by their
numbers and lengths (`compcache.formats.host.requirement`). They let a host choose among realizations without reading modules.

The index is derived, and readers check it. An entry without a module file is ignored, and so is a stamp that does not match the file. A
damaged segment is not used, and is rebuilt from the manifests. So additions and merges need no lock. Merges take a lock only to save work.

In every version of the format, the digest in a segment's name is the digest of its content. So a segment that cannot be decoded
is either damaged, or, if the digest matches, was written by another version of this package. Such a segment is neither used nor
changed. Files with other names do not belong to the index.

Limitations: removed modules stay in the segments until the next merge or prune. The index compares the 128-bit keys of names;
the reader of the record compares the whole names.
"""

from __future__ import annotations

import stat as stat_module
from _struct import Struct  # avoids importing the file `struct`, which re-exports it

from compcache import files as file_ops
from compcache.digest import DIGEST_SIZE, digest
from compcache.errors import FormatError, StorageError, UnknownVersionError
from compcache.formats.host import NATIVE, UNUSABLE, target_id
from compcache.formats.manifest import LINKED
from compcache.interrupts import reraise_interrupt
from compcache.native import runtime
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.formats.host import Processor
    from compcache.formats.table import Table

    #: The number of the addition, the rank on this host, module_id, offset of the record, digest of the content or zeros.
    Numbered = tuple[int, int, bytes, int, bytes]
    #: image, records, target_id, flags, functions, key, mac of a `ModuleEntry`.
    Trusted = tuple[int, int, bytes, int, int, bytes, bytes]

__all__ = ["Index", "ModuleEntry", "Segment", "Stamp", "requirement_number", "sort_by_preference"]

MAGIC = b"CCINDEX3"
HEADER = Struct("<8sQQQ")
FUNCTION = Struct("<16s16sI4sQ8s")
CONTENT_SIZE = 8
MODULE = Struct("<16sQQqqQQ8sII16s16s")
_STAMP = Struct("<QQqq")
STAMP_SIZE = _STAMP.size
ROW = Struct("<4sI")
NUMBER_SIZE = 4
_READ_WHOLE = 1 << 16
NAME_SIZE = 12  # bytes of the digest in a segment's name


class Stamp(Record):
    """The stamp of a file, which identifies its unchanged state: inode, size, modification time and change time in nanoseconds."""

    __slots__ = ("inode", "size", "mtime", "ctime")
    inode: int
    size: int
    mtime: int
    ctime: int

    @staticmethod
    def of(status: os.stat_result) -> Stamp:
        """Create the stamp of a file from its `stat` result."""
        return Stamp(*_stamp(status))

    @staticmethod
    def packed(status: os.stat_result) -> bytes:
        """Create the encoded stamp of a file from its `stat` result."""
        return _STAMP.pack(*_stamp(status))


class ModuleEntry(Record):
    """The index entry of a module file that was verified while it had `stamp`.

    `image` and `records` are the sizes of these sections. `target_id` is the digest of the code's requirement. `flags` says how the image
    is loaded. `functions` is the number of functions, for tools. `key` is also in the image's module table. `mac` signs the entry if the
    cache has a key.
    """

    __slots__ = ("module_id", "stamp", "image", "records", "target_id", "flags", "functions", "key", "mac")
    module_id: bytes
    stamp: Stamp
    image: int
    records: int
    target_id: bytes
    flags: int
    functions: int
    key: bytes
    mac: bytes

    def encode(self) -> bytes:
        """Return the encoded entry, which begins with the module_id."""
        stamp = self.stamp
        return MODULE.pack(
            self.module_id, stamp.inode, stamp.size, stamp.mtime, stamp.ctime, self.image, self.records, self.target_id,
            self.flags, self.functions, self.key, self.mac,
        )  # fmt: skip

    @staticmethod
    def decode(data: bytes) -> ModuleEntry:
        """Decode the result of `encode`."""
        stamp, fields = runtime.module_entry(data[DIGEST_SIZE:])
        return ModuleEntry(data[:DIGEST_SIZE], Stamp(*stamp), *fields)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return the fields of a file's stamp. Times after the year 2262 wrap around, as in the native runtime."""
    times = [(time + (1 << 63)) % (1 << 64) - (1 << 63) for time in (status.st_mtime_ns, status.st_ctime_ns)]
    return status.st_ino, status.st_size, times[0], times[1]


def sort_by_preference(rows: list[Numbered], is_near: Callable[[bytes], bool] | None) -> list[tuple[bytes, int]]:
    """Sort the realizations of a plain name in `rows` by preference, in place, and return their (module_id, record offset).

    The latest addition is first; within an addition, the realization that fits this host best. Realizations with the content of the first
    one are equivalent. Among them, realizations in near modules are first, then realizations that fit best. Linked closures do not count as
    additions, so that their numbers do not make their content the newest. If `is_near` is None, no module is near.
    """
    rows.sort(reverse=True)
    content = next((row[4] for row in rows if row[3] < LINKED), b"") if len(rows) > 1 else b""
    if any(content):
        rows.sort(key=lambda row: _preference(row, content, is_near))
    return [row[2:4] for row in rows]


def _preference(row: Numbered, newest_content: bytes, is_near: Callable[[bytes], bool] | None) -> tuple[int, ...]:
    """Return a sort key: the newest content first; of it, near modules (`is_near`; None: none is near), then the modules that fit best."""
    _, rank, module_id, _, content = row
    if content != newest_content:
        return (1,)
    return 0, is_near is None or not is_near(module_id), -rank


def requirement_number(text: str) -> bytes:
    """Return the four bytes that identify a requirement in function entries."""
    return target_id(text)[:NUMBER_SIZE]


class Segment:
    """A segment file, which is opened on first use. Small segments are read completely, larger segments in parts."""

    __slots__ = ("_directory", "_files", "_owners", "_read_texts", "_tables", "_texts", "greatest", "level", "listed", "name", "owner")

    def __init__(self, index: Index, name: str) -> None:
        self._files = index.files
        self._directory = index.directory
        self._owners = index.owners
        self._tables: tuple[Table, Table] | None = None
        self._read_texts: Callable[[], bytes] = bytes
        self._texts: dict[bytes, str] | None = None
        self.greatest = 0  # the greatest number of an addition in it; set when it is opened
        self.listed: object = None  # the list of its modules, if tools have read or made it (`compcache.publish.module_lists`)
        self.name = name
        self.level = int(name[:2]) if name[:2].isdigit() else 0  # tables in memory and segments of layers have no level
        self.owner = -1  # the user who owns the file; set when it is opened

    @property
    def functions(self) -> Table:
        """The function entries. See `_open` for the exceptions."""
        return (self._tables or self._open())[0]

    @property
    def modules(self) -> Table:
        """The module entries. See `_open` for the exceptions."""
        return (self._tables or self._open())[1]

    @property
    def requirements(self) -> dict[bytes, str]:
        """The host requirements of functions, by the number in their entries. Raise `FormatError` if the requirements are damaged."""
        if self._texts is None:
            if self._tables is None:
                self._open()
            self._texts = runtime.requirements(self._read_texts())
        return self._texts

    def _open(self) -> tuple[Table, Table]:
        """Open the segment, and return its tables. Threads that open it at the same time have separate descriptors.

        Raises:
            FileNotFoundError: the segment was merged into another segment.
            FormatError: the segment is damaged, or other users can write to it.
            OSError: the segment cannot be read.
        """
        opened, size = self._open_file()
        files, read_at = self._files, file_ops.read_at
        source: Any = read_at(files, opened, 0, size) if size <= _READ_WHOLE else None
        if source is None:

            def source(offset: int, count: int) -> bytes:
                return read_at(files, opened, offset, count)

        return self.read(source, size)

    def read(self, source: Any, size: int) -> tuple[Table, Table]:
        """Read the tables from the content, or from a function that returns parts of it. Raise `FormatError` if they are damaged."""
        functions, modules, at, length, self.greatest = runtime.open_segment(source, size, self.name)
        self._read_texts = lambda: source[at : at + length] if isinstance(source, bytes) else source(at, length)
        self._tables = functions, modules
        return self._tables

    def _open_file(self) -> tuple[file_ops.Opened, int]:
        """Open the file, set `owner`, and return the file and its size. Raise `FormatError` if it is no regular file of a trusted user."""
        try:
            opened = self._files.open_owned(f"{self._directory}/{self.name}", file_ops.READ_FLAGS)
        except OSError as error:
            reraise_interrupt(error)
            import errno

            if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
                raise FormatError(f"the index segment {self.name} is not a regular file") from error
            raise
        status = self._files.fstat(opened.number)
        if not stat_module.S_ISREG(status.st_mode):
            raise FormatError(f"the index segment {self.name} is not a regular file")
        self.owner = file_ops.writer(status)
        if self._owners is not None and self.owner not in self._owners:
            raise FormatError(f"other users can write to the index segment {self.name}")
        return opened, status.st_size

    def close(self) -> None:
        """Release the file, which is closed when its last user releases it."""
        self._tables = self._texts = None


def _is_segment_name(name: str, suffix: str) -> bool:
    """Return whether a file name is a segment's: two digits for the level, a dash, a digest in hexadecimal, and the suffix."""
    level, dash, file_name = name[:2], name[2:3], name[3:]
    return (
        file_name.endswith(suffix)
        and dash == "-"
        and level.isdecimal()
        and level.isascii()
        and len(file_name) == 2 * NAME_SIZE + len(suffix)
        and not file_name[: 2 * NAME_SIZE].strip("0123456789abcdef")
    )


class Index:
    """The segments of a directory, as this process last listed them.

    `refresh` lists the directory again. Realizations are ranked for the `processor`, which is determined at the
    first ranking. Without a processor, all realizations fit.
    """

    __slots__ = (
        "_hint", "_processor", "_ranks", "ignored", "_segments", "checked", "damaged", "vouching", "directory", "files",
        "failure", "is_passing", "owners", "suffix", "temporary", "unfinished",
    )  # fmt: skip

    def __init__(
        self, files: file_ops.Files, directory: str, temporary: str, suffix: str, processor: Callable[[], Processor] | None = None
    ) -> None:
        self.files = files
        self._processor = processor
        self.directory = directory
        self.temporary = temporary
        self.suffix = suffix
        self._segments: tuple[Segment, ...] | None = None
        self._hint: Segment | None = None
        self.ignored: set[str] = set()
        self.damaged: dict[str, str] = {}
        self.owners: frozenset[int] | None = None  # the users whose files are used; None: all users
        self.vouching: frozenset[int] | None = None  # the users whose stamps are trusted; None: all users
        self.unfinished = False  # whether the index is being rebuilt, and therefore incomplete
        self.checked = False  # whether a look-up has checked if this missing or unfinished index must be rebuilt
        self.failure: tuple[str, str] | None = None  # the part of the index that could not be read in the last attempt, and the reason
        self.is_passing = False  # whether a part could not be read for another reason than its permissions
        self._ranks: dict[bytes, int] = {}

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, the largest first. The first access lists the directory."""
        if self._segments is None:
            self.refresh()
        assert self._segments is not None
        return self._segments

    @property
    def problem(self) -> str:
        """Why the last attempt to read the index, or a part of it, failed; "" if it did not fail."""
        return " cannot be read: ".join(self.failure or ())

    def refresh(self) -> bool:
        """List the directory again, and return whether its segments have changed. Damaged and ignored segments are left out.

        If the directory cannot be read, there are no segments, and `problem` says why.
        """
        former_failure, self.failure = self.failure, None
        if self._segments and not self.unfinished:
            self.checked = False  # the segments may have been removed
        names = self._list_names()
        former_segments = {segment.name: segment for segment in self._segments or ()}
        if self._segments is not None and names == list(former_segments):
            if names:
                self.failure = former_failure  # the segment is still unreadable
            return False
        self._segments = tuple([former_segments.get(name) or Segment(self, name) for name in names])
        return True

    def _list_names(self) -> list[str]:
        """List the directory, and return the names of its segments, the largest first, without damaged and ignored segments.

        The list is empty if the directory is missing or unreadable.

        Side effects: set `failure` if an existing directory cannot be read. Set `unfinished` if the directory was read.
        """
        try:
            present_names = self.files.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return []
        except OSError as error:
            reraise_interrupt(error)
            self.is_passing |= not isinstance(error, PermissionError)
            self.failure = self.directory, str(error.strerror or error)
            return []
        open_names = {segment.name for segment in self._segments or ()}
        names = {name for name in present_names if name in open_names or _is_segment_name(name, self.suffix)}
        self.unfinished = len(names) < len(present_names) and any(name.endswith(self.suffix + "-part") for name in present_names)
        # The highest level, which is the largest, is first.
        return sorted(names.difference(self.damaged, self.ignored), key=lambda name: (-int(name[:2]), name))

    def add(self, name: str, content: bytes, owner: int) -> None:
        """Add a segment that this process has written, without listing the directory or reading the file. `owner` owns the file.

        Do nothing if the directory was not listed yet.
        """
        if self._segments is not None and name not in [segment.name for segment in self._segments]:
            segment = Segment(self, name)
            if len(content) <= _READ_WHOLE:
                segment.owner = owner
                segment.read(content, len(content))
            self._segments = tuple(sorted([*self._segments, segment], key=lambda other: (-other.level, other.name)))

    @property
    def is_listed(self) -> bool:
        """Whether the directory has been listed."""
        return self._segments is not None

    def state(self) -> bytes:
        """Return a digest that changes with every change of the index."""
        return digest([segment.name.encode() for segment in self.segments])

    def share_ranks(self, other: Index) -> None:
        """Use the processor and the known ranks of another index."""
        self._processor, self._ranks = other._processor, other._ranks

    def find(
        self, key: bytes, fallbacks: list[tuple[int, tuple[bytes, int]]] | None = None, *, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the (module_id, record offset) of every realization of a content name, without duplicates, the best first.

        Segments are read lazily, the largest first. Code for exactly this host ranks highest: it is yielded before other segments are read.

        Args:
            key: the key of the function's name (`compcache.digest.name_key`).
            fallbacks: collects the other realizations as (rank, realization), which are then not yielded. None yields all.
            linked: whether realizations in linked closures precede other code for exactly this host.
        """
        visited: set[tuple[bytes, int, bytes]] = set()
        ranks = self._ranks
        lower_ranked: list[tuple[Segment, bytes, tuple[bytes, int]]] = []
        for segment, value in self._function_values(key):
            module_id, offset, number, _, _ = runtime.function_entry(value)
            if (module_id, offset, number) not in visited:
                visited.add((module_id, offset, number))
                if number not in ranks:
                    self._rank_if_native(segment, number)
                if ranks.get(number, UNUSABLE) < NATIVE or (linked and offset < LINKED):
                    lower_ranked.append((segment, number, (module_id, offset)))
                    continue
                self._hint = segment
                yield module_id, offset
        lower_ranked.sort(key=lambda candidate: self._rank_of_requirement(*candidate[:2]), reverse=True)
        for segment, number, candidate in lower_ranked:
            if fallbacks is None:
                self._hint = segment
                yield candidate
            else:
                fallbacks.append((ranks.get(number, 0), candidate))

    def find_numbered(self, key: bytes) -> list[Numbered]:
        """Return the realizations of a plain name from all segments, without duplicates, in any order.

        Raise `StorageError` if there are realizations and a part of the index cannot be read at the moment, because the newest addition may
        be there. What this user has no permission to read is left out.
        """
        failure, self.failure, self.is_passing = self.failure, None, False
        if failure is not None and not self._segments:  # the directory could not be listed
            self.refresh()
        newest: dict[tuple[bytes, int, bytes], tuple[int, Segment, bytes]] = {}
        for segment, value in self._function_values(key):
            module_id, offset, number, order, content = runtime.function_entry(value)
            newer = newest.get((module_id, offset, number))
            if newer is None or newer[0] < order:
                newest[module_id, offset, number] = order, segment, content
                self._hint = segment
        if newest and self.is_passing:
            raise StorageError(f"{self.problem}; make it readable", path=self.directory)
        rows = []
        for (module_id, offset, number), (order, segment, content) in newest.items():
            if number not in self._ranks:
                self._rank_if_native(segment, number)
            rows.append((order, self._rank_of_requirement(segment, number), module_id, offset, content))
        return rows

    def _function_values(self, key: bytes) -> Iterator[tuple[Segment, bytes]]:
        """Yield (segment, value) of the function entries with a key, lazily, the largest segment first.

        If segments are merged meanwhile, the same entry may be yielded again from the merged segment.
        """
        waiting = list(self.segments)
        searched = set()
        while waiting:
            segment = waiting.pop(0)
            searched.add(segment.name)
            values = self.look_up(segment, key, modules=False)
            if values is None:  # the segment was merged into another segment meanwhile
                waiting = [unread for unread in self.segments if unread.name not in searched]
                continue
            for value in values:
                yield segment, value

    def _rank_if_native(self, segment: Segment, number: bytes) -> None:
        """Set the rank of the requirement with a number if it belongs to code for exactly this host."""
        text = self._read_requirements(segment).get(number)
        if text is not None and (self._processor is None or self._processor().is_native(text)):
            self._ranks[number] = NATIVE

    def _rank_of_requirement(self, segment: Segment, number: bytes) -> int:
        """Return the rank on this host of the requirement with a number, or 0 if the segment does not contain the requirement."""
        known_rank = self._ranks.get(number)
        if known_rank:
            return known_rank
        text = self._read_requirements(segment).get(number)
        if text is None:
            return 0
        rank = self._ranks[number] = self._processor().rank(text) if self._processor is not None else NATIVE
        return rank

    def _read_requirements(self, segment: Segment) -> dict[bytes, str]:
        """Return the requirements in a segment by their numbers. The result is empty if the segment is unreadable, or is set aside."""
        try:
            return segment.requirements
        except FormatError as error:
            self.set_aside(segment, error)
        except OSError as failure:  # the segment was merged into another segment meanwhile, or cannot be read
            reraise_interrupt(failure)
        return {}

    def verified(self, module_id: bytes, status: os.stat_result) -> Iterator[Trusted]:
        """Yield the entries of a module for the current state of its file, as (image, records, target_id, flags, functions, key, mac).

        The segment of the last look-up is read first, because a module's entries are published and merged together. Entries of users whose
        stamps are not trusted are left out.
        """
        stamp = _stamp(status)
        hint = self._hint
        order = self.segments if hint is None else (hint, *[other for other in self.segments if other is not hint])
        for segment in order:
            for value in self.look_up(segment, module_id, modules=True) or ():
                verified_stamp, fields = runtime.module_entry(value)
                if verified_stamp == stamp and (self.vouching is None or segment.owner in self.vouching):
                    yield fields

    def look_up(self, segment: Segment, key: bytes, *, modules: bool) -> list[bytes] | None:
        """Return the values for a key in a segment, or None if the segment has been removed.

        The key is looked up in the table of modules if `modules` is true, otherwise in the table of functions.

        A damaged segment is set aside, and an unreadable segment sets `failure`. Both have no values.
        """
        try:
            return (segment.modules if modules else segment.functions).find(key)
        except FileNotFoundError as error:
            reraise_interrupt(error)
            self.refresh()
            return None
        except FormatError as error:
            self.set_aside(segment, error)
            return []
        except OSError as error:
            reraise_interrupt(error)
            self.is_passing |= not isinstance(error, PermissionError)
            self.failure = f"the index segment {self.directory}/{segment.name}", str(error.strerror or error)
            return []

    def set_aside(self, segment: Segment, error: FormatError) -> None:
        """Stop using a segment that cannot be decoded. Add it to `ignored` if another version wrote it, else to `damaged`."""
        from compcache.formats.unread_segment import segment_error

        reason = segment_error(self.files, f"{self.directory}/{segment.name}", segment.name[3 : 3 + 2 * NAME_SIZE], error)
        if isinstance(reason, UnknownVersionError):
            self.ignored.add(segment.name)
        else:
            self.damaged[segment.name] = str(reason)
        segment.close()
        self._segments = tuple([remaining for remaining in self.segments if remaining is not segment])

    def close(self) -> None:
        """Discard the segments, whose files are closed thereby."""
        self._segments = None
        self._hint = None
