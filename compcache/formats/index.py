"""The index: finds the modules that realize a function, and the files that were verified, without listing modules.

It is a set of immutable segment files in one directory, named ``<level>-<digest>`` and a suffix. An addition publishes a
segment of level 0; when more than eight of them have come together they are merged with the next levels, each
level holding eight times as many modules as the one below. So a cache of any size has a handful of segments,
and an addition costs amortized `8 * levels / 2` rewrites of its own entries.

A segment (little-endian) is ``"CCINDEX3" | size of the function table u64 | size of the requirements u64 | greatest number
of an addition u64 | function table | module table | requirements``; both tables are of `compcache.formats.table`.
A function entry is the key of the name, a module_id, the offset of the
function's record, the first four bytes of the digest of what the function requires of a host, the number of the addition, and
a digest of the function's content or zeros. Segments of version 2 have neither of the last two, nor the greatest number: additions that
they name have the number 0. A module entry is
`ModuleEntry`: the stamp under which the file was verified, and the sizes that a reader needs. The requirements are a check,
and texts behind their numbers and lengths (`compcache.formats.host.requirement`): a host chooses among realizations without reading
modules.

The index is derived and never believed further than it can be checked: an entry whose module file is gone is
no entry, a stamp that does not match the file is ignored, a damaged segment is set aside and rebuilt from the
manifests. So additions and merges need no lock; merges take one only to save work.

The digest in a segment's name is that of its content, in every version of the format. So a segment that does not
decode is told from a damaged one: where its name is right, another version of this package has written it, and it is
neither used nor touched. Files with other names are not the index's at all.

Limitations: what was removed from disk stays in the segments until the next merge or prune; names are compared
by their 128-bit key here, and in full by the reader of the record.
"""

from __future__ import annotations

import stat as stat_module
from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache import files as file_ops
from compcache.digest import DIGEST_SIZE, digest
from compcache.errors import FormatError, UnknownVersionError
from compcache.files import reraise_interrupt
from compcache.formats.host import NATIVE, UNUSABLE, target_id
from compcache.native import runtime
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.formats.host import Processor
    from compcache.formats.table import Table

    #: The number of the addition, how well it fits, module_id, offset of the record, digest of the content or zeros.
    Numbered = tuple[int, int, bytes, int, bytes]
    #: image, records, target_id, flags, functions, key, mac of a `ModuleEntry`.
    Trusted = tuple[int, int, bytes, int, int, bytes, bytes]

__all__ = ["Index", "ModuleEntry", "Segment", "Stamp", "entry_for", "in_order", "requirement_number"]

MAGIC = b"CCINDEX3"
HEADER = Struct("<8sQQQ")
FUNCTION = Struct("<16s16sI4sQ8s")
CONTENT_SIZE = 8
MODULE = Struct("<16s4QQQ8sII16s16s")
_STAMP = Struct("<4Q")
STAMP_SIZE = _STAMP.size
ROW = Struct("<4sI")
NUMBER_SIZE = 4
_READ_WHOLE = 1 << 16
NAME_SIZE = 12  # bytes of the digest in a segment's name


class Stamp(Record):
    """The identity of an unchanged file: inode, size, modification time and change time in nanoseconds."""

    __slots__ = ("inode", "size", "mtime", "ctime")
    inode: int
    size: int
    mtime: int
    ctime: int

    @staticmethod
    def of(status: os.stat_result) -> Stamp:
        """Return the stamp of a file from its `stat` result."""
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @staticmethod
    def packed(status: os.stat_result) -> bytes:
        """Return its form in an entry."""
        return _STAMP.pack(*_stamp(status))


class ModuleEntry(Record):
    """The index entry of a module file that was verified while it had `stamp`.

    `image` and `records` are the sizes of these sections; `target_id` digests what the code requires of a
    host; `flags` says how the image is loaded; `functions` is their number, for tools; the image's module table must repeat `key`; `mac`
    signs the entry if the cache has a key.
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
        """Return the entry as bytes, its key first."""
        s = self.stamp
        return MODULE.pack(
            self.module_id, s.inode, s.size, s.mtime, s.ctime, self.image, self.records, self.target_id,
            self.flags, self.functions, self.key, self.mac,
        )  # fmt: skip

    @staticmethod
    def decode(data: bytes) -> ModuleEntry:
        """Return the entry in bytes from `encode`."""
        stamp, fields = runtime.module_entry(data[DIGEST_SIZE:])
        return ModuleEntry(data[:DIGEST_SIZE], Stamp(*stamp), *fields)


def entry_for(data: bytes, module_id: bytes, status: os.stat_result) -> list[Trusted]:
    """Return the result of `Index.verified` for one encoded entry; an empty list if the entry belongs to another module or another state of
    the file.
    """
    stamp, fields = runtime.module_entry(data[DIGEST_SIZE:])
    return [fields] if data.startswith(module_id) and stamp == _stamp(status) else []


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def in_order(found: list[Numbered], is_near: Callable[[bytes], bool] | None) -> list[tuple[bytes, int]]:
    """Return the (module_id, record offset) of realizations: the latest addition first; within an addition, the one that fits this host
    best.

    Realizations with the content of the first one are equivalent: those in near modules come first, then those that fit best.
    """
    found.sort(reverse=True)
    content = found[0][4] if len(found) > 1 else b""
    if any(content):
        found.sort(key=lambda row: (0, is_near is None or not is_near(row[2]), -row[1]) if row[4] == content else (1,))
    return [row[2:4] for row in found]


def requirement_number(text: str) -> bytes:
    """Return the four bytes that stand for a requirement in function entries."""
    return target_id(text)[:NUMBER_SIZE]


class Segment:
    """One segment file, opened on first use. Small ones are read whole, larger ones piece by piece."""

    __slots__ = ("_directory", "_files", "_owners", "_read_rows", "_tables", "_texts", "greatest", "listed", "name", "owner")

    def __init__(self, index: Index, name: str) -> None:
        self._files = index.files
        self._directory = index.directory
        self._owners = index.owners
        self._tables: tuple[Table, Table] | None = None
        self._read_rows: Callable[[], bytes] = bytes
        self._texts: dict[bytes, str] | None = None
        self.greatest = 0  # the number of an addition that it names; known when it is open
        self.listed: object = None  # its list, where tools made one in memory (`compcache.publish.module_lists`)
        self.name = name
        self.owner = -1  # the user whose file it is; known when it is open

    @property
    def functions(self) -> Table:
        """The function entries."""
        return (self._tables or self._open())[0]

    @property
    def modules(self) -> Table:
        """The module entries."""
        return (self._tables or self._open())[1]

    @property
    def requirements(self) -> dict[bytes, str]:
        """The host requirements of functions, by the number in their entries.

        Raises:
            FormatError: the requirements are damaged.
        """
        if self._texts is None:
            if self._tables is None:
                self._open()
            self._texts = runtime.requirements(self._read_rows())
        return self._texts

    @property
    def level(self) -> int:
        """The level in the segment's name."""
        return _level_of(self.name)

    def _open(self) -> tuple[Table, Table]:
        """Open the file. If several threads do so, each has its own descriptor until one of these is kept.

        Raises:
            FileNotFoundError: it was merged into another one.
            FormatError: it is damaged.
        """
        opened, size = self._open_file()
        files, read_at = self._files, file_ops.read_at
        source: Any = read_at(files, opened.number, 0, size) if size <= _READ_WHOLE else None
        if source is None:

            def source(offset: int, count: int) -> bytes:
                return read_at(files, opened.number, offset, count)

        functions, modules, rows, rows_size, self.greatest = runtime.open_segment(source, size, self.name)
        self._read_rows = lambda: source[rows : rows + rows_size] if isinstance(source, bytes) else source(rows, rows_size)
        self._tables = functions, modules
        return self._tables

    def whole(self) -> tuple[Table, Table]:
        """Return all function and module entries in memory, for many look-ups. Raises the errors of opening."""
        opened, size = self._open_file()
        functions, modules, *_ = runtime.open_segment(file_ops.read_at(self._files, opened.number, 0, size), size, self.name)
        return functions, modules

    def _open_file(self) -> tuple[file_ops.Opened, int]:
        """Return the open file and its size."""
        try:
            opened = self._files.open_owned(f"{self._directory}/{self.name}", file_ops.READ_FLAGS)
        except OSError as error:
            reraise_interrupt(error)
            import errno

            if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
                raise FormatError(f"{self.name} is not a regular file") from error
            raise
        status = self._files.fstat(opened.number)
        if not stat_module.S_ISREG(status.st_mode):
            raise FormatError(f"{self.name} is not a regular file")
        self.owner = file_ops.writer(status)
        if self._owners is not None and self.owner not in self._owners:
            raise FormatError(f"users other than you can write to {self.name}")
        return opened, status.st_size

    def close(self) -> None:
        """Close the file."""
        self._tables = self._texts = None


def _place_of(name: str) -> tuple[int, str]:
    """Return the sort key of a segment: the largest comes first."""
    return -_level_of(name), name


def _level_of(name: str) -> int:
    return int(name[:2])


def _is_segment_name(name: str, suffix: str) -> bool:
    level, dash, rest = name[:2], name[2:3], name[3:]
    return (
        rest.endswith(suffix)
        and dash == "-"
        and level.isdecimal()
        and level.isascii()
        and len(rest) == 2 * NAME_SIZE + len(suffix)
        and not rest[: 2 * NAME_SIZE].strip("0123456789abcdef")
    )


class Index:
    """The segments of one directory, as this process last saw them.

    A look-up that finds nothing looks at the directory again; one that finds something does not. Realizations are ranked for the
    `processor`, which is determined at the first ranking; without one, all fit.
    """

    __slots__ = (
        "_hint",
        "_processor",
        "_ranks",
        "gathered",
        "ignored",
        "_segments",
        "damaged",
        "vouching",
        "directory",
        "files",
        "owners",
        "problem",
        "suffix",
        "temporary",
        "unfinished",
    )

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
        #: Segments, and at most as many with the same content in which names are looked up.
        self.gathered: tuple[tuple[Segment, ...], list[Segment]] | None = None
        self.ignored: set[str] = set()
        self.damaged: dict[str, str] = {}
        self.owners: frozenset[int] | None = None  # the users whose files are used; None: of all
        self.vouching: frozenset[int] | None = None  # of these, those whose stamps are believed
        self.unfinished = False  # it is being rebuilt, and incomplete
        self.problem = ""  # why the last attempt to read the index, or a part of it, failed
        self._ranks: dict[bytes, int] = {}

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, the largest first."""
        if self._segments is None:
            self.refresh()
        assert self._segments is not None
        return self._segments

    def refresh(self) -> bool:
        """List the directory again; return whether it has changed."""
        before, self.problem = self.problem, ""
        names = self._names()
        old = {segment.name: segment for segment in self._segments or ()}
        if self._segments is not None and names == list(old):
            if names:
                self.problem = before  # that of a segment
            return False
        self._segments = tuple([old.get(name) or Segment(self, name) for name in names])
        return True

    def _names(self) -> list[str]:
        try:
            found = self.files.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return []
        except OSError as error:
            reraise_interrupt(error)
            self.problem = f"{self.directory} cannot be read: {error.strerror or error}"
            return []
        left_out = self.damaged.keys() | self.ignored
        self.unfinished = any(name.endswith(self.suffix + "-part") for name in found)
        names = [name for name in found if _is_segment_name(name, self.suffix) and name not in left_out]
        return sorted(names, key=_place_of)

    def add(self, name: str) -> None:
        """Add a segment that this process has written, without listing the directory."""
        if self._segments is not None and all(segment.name != name for segment in self._segments):
            self._segments = tuple(sorted([*self._segments, Segment(self, name)], key=lambda segment: _place_of(segment.name)))

    @property
    def is_listed(self) -> bool:
        """Whether the directory has been listed."""
        return self._segments is not None

    def state(self) -> bytes:
        """Return a value that changes with the index."""
        return digest([segment.name.encode() for segment in self.segments])

    def take(self, segment: Segment) -> None:
        """Use only this segment, and read no directory."""
        self._segments = (segment,)

    def share_ranks(self, other: Index) -> None:
        """Rank requirements as another index does, and share its knowledge of them."""
        self._processor, self._ranks = other._processor, other._ranks

    def find(self, key: bytes, rest: list[tuple[int, tuple[bytes, int]]] | None = None) -> Iterator[tuple[bytes, int]]:
        """Yield the (module_id, offset of the function's record) of every realization, without duplicates, the best first: for names of
        content.

        With `rest`, yield only realizations that nothing can surpass, and put the others there, behind their ranks.

        Segments are read lazily, the largest first: code for exactly this host cannot be surpassed, so a caller that takes it opens no
        further segments. `key` is that of the function's name (`compcache.digest.name_key`).
        """
        seen: set[tuple[bytes, int, bytes]] = set()
        ranks = self._ranks
        others: list[tuple[Segment, bytes, tuple[bytes, int]]] = []
        for segment, value in self._values(key):
            module_id, offset, number, _, _ = runtime.function_entry(value)
            if (module_id, offset, number) not in seen:
                seen.add((module_id, offset, number))
                if number not in ranks:
                    self._look_for_native(segment, number)
                if ranks.get(number, UNUSABLE) < NATIVE:
                    others.append((segment, number, (module_id, offset)))
                    continue
                self._hint = segment
                yield module_id, offset
        others.sort(key=lambda other: self._rank(other[0], other[1]), reverse=True)
        for segment, number, candidate in others:
            if rest is None:
                self._hint = segment
                yield candidate
            else:
                rest.append((ranks.get(number, 0), candidate))

    def find_numbered(self, key: bytes) -> list[Numbered]:
        """Return every realization from all segments, without duplicates, unordered: for plain names."""
        found: dict[tuple[bytes, int, bytes], tuple[int, Segment, bytes]] = {}
        for segment, value in self._values(key):
            module_id, offset, number, order, content = runtime.function_entry(value)
            known = found.get((module_id, offset, number))
            if known is None or known[0] < order:
                found[module_id, offset, number] = order, segment, content
                self._hint = segment
        rows = []
        for (module_id, offset, number), (order, segment, content) in found.items():
            if number not in self._ranks:
                self._look_for_native(segment, number)
            rows.append((order, self._rank(segment, number), module_id, offset, content))
        return rows

    def _values(self, key: bytes) -> Iterator[tuple[Segment, bytes]]:
        """Yield the values of the function entries with this key, each with its segment; lazily, the largest segment first."""
        gathered = self.gathered
        waiting = gathered[1].copy() if gathered is not None and gathered[0] is self._segments else list(self.segments)
        asked = set()
        while waiting:
            segment = waiting.pop(0)
            asked.add(segment.name)
            values = self.look_up(segment, key, modules=False)
            if values is None:  # merged into another segment meanwhile
                waiting = [other for other in self.segments if other.name not in asked]
                continue
            for value in values:
                yield segment, value

    def _look_for_native(self, segment: Segment, number: bytes) -> None:
        """Find out whether the requirement with this number belongs to code for exactly this host."""
        text = self._requirements(segment).get(number)
        if text is not None and (self._processor is None or self._processor().is_native(text)):
            self._ranks[number] = NATIVE

    def _rank(self, segment: Segment, number: bytes) -> int:
        """Return how well the requirement with this number fits this host; 0 if the segment does not contain it."""
        known = self._ranks.get(number)
        if known:
            return known
        text = self._requirements(segment).get(number)
        if text is None:
            return 0
        rank = self._ranks[number] = self._processor().rank(text) if self._processor is not None else NATIVE
        return rank

    def _requirements(self, segment: Segment) -> dict[bytes, str]:
        try:
            return segment.requirements
        except FormatError as error:
            self.set_aside(segment, error)
        except OSError as failure:  # merged into another segment meanwhile, or it cannot be read
            reraise_interrupt(failure)
        return {}

    def verified(self, module_id: bytes, status: os.stat_result) -> Iterator[Trusted]:
        """Yield the entries of a module that were written while its file had this status.

        Each is (image, records, target_id, flags, functions, key, mac); see `ModuleEntry`. The segment that answered last is read first,
        because a module's entries are published and merged together. Entries of users whose stamps are not trusted are left out.
        """
        stamp = _stamp(status)
        hint = self._hint
        order = self.segments if hint is None else (hint, *[other for other in self.segments if other is not hint])
        for segment in order:
            for value in self.look_up(segment, module_id, modules=True) or ():
                made, fields = runtime.module_entry(value)
                if made == stamp and (self.vouching is None or segment.owner in self.vouching):
                    yield fields

    def look_up(self, segment: Segment, key: bytes, *, modules: bool) -> list[bytes] | None:
        """Return the values of a segment under a key; None if the segment has been removed."""
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
            self.problem = f"{self.directory}/{segment.name} cannot be read: {error.strerror or error}"
            return []

    def set_aside(self, segment: Segment, error: FormatError) -> None:
        """Ignore a segment that does not decode, and remember the reason."""
        from compcache.formats.unread_segment import reason_against

        reason = reason_against(self.files, f"{self.directory}/{segment.name}", segment.name[3 : 3 + 2 * NAME_SIZE], error)
        if isinstance(reason, UnknownVersionError):
            self.ignored.add(segment.name)
        else:
            self.damaged[segment.name] = str(reason)
        segment.close()
        self._segments = tuple([other for other in self.segments if other is not segment])

    def close(self) -> None:
        """Close the segment files."""
        self._segments = None
        self._hint = self.gathered = None
