"""Module lists, which tools query by name. Each large segment of the index has a list.

A list contains the keys below, sorted (`compcache.formats.sorted_keys`), so a query reads only the blocks with its answer. A merge of
segments merges their lists. A list is a derived file: if it is missing or damaged, it is recreated from the modules in its segment. A list
has the name of its segment, so it is never out of date. The file system shows which modules still exist.

A key is a letter, names in UTF-8 and mostly a module_id. The `base` of a name is its label, or the name itself if it has no label:

    a | check of a platform                         its fields, msgpack
    m | module_id                                   check of its platform, size of its file u64, the other fields of a `Row`, msgpack
    n | base 0 name 0 | module_id                   a function that a module realizes; 1 if only importers use it, else nothing
    t | last part of the base 0 base                if the base has several parts, with dots between them
    i | name 0 | module_id                          a function that a module imports
    p | base of the owner 0 | module_id             a module of parts
    g | base of the name of a group 0 | module_id   a module that is a group
    e | base of the name 0 | module_id, offset u32  an entry of data; the value is the entry in packs, else nothing: the row has it
    r | module_id | module_id, offset u32           an entry of data that requires the first module; the value is that of `e`
"""

from __future__ import annotations

from itertools import chain, islice
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache import files as file_ops
from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.directory.places import INDEX, MODULE_LISTS, PARTS
from compcache.errors import FormatError
from compcache.files import SHORTAGES
from compcache.formats.entry import is_pack
from compcache.formats.group import GROUP
from compcache.formats.manifest import LINK_ONLY
from compcache.formats.sorted_keys import SortedKeys, encode_keys, merge_keys
from compcache.formats.table import all_entries
from compcache.identity import label_of
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish import module_rows
from compcache.publish.atomic_file import publish
from compcache.publish.open_segments import open_segments
from compcache.publish.scratch import Scratch
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from compcache.formats.index import Segment
    from compcache.formats.sorted_keys import Item
    from compcache.publish.module_rows import Platform, Row, RowEntry

    #: Called from time to time with (modules read, modules to read).
    Progress = Callable[[int, int], object]
    #: Returns the bytes that a module takes on disk, or -1 if its file does not exist.
    SizeOf = Callable[[bytes], int]

__all__ = [
    "IMPORTS", "REALIZES", "ListCounts", "ModuleLists", "SortedItems", "base_of", "last_part_of", "merge_list", "relation_key",
    "remove_lists_of", "stray_lists", "write_empty_list", "write_list",
]  # fmt: skip

_COUNTS = Struct("<5Q")
_SIZE = Struct("<Q")
_OFFSET_SIZE = 4
#: Sorts after all keys.
_END = b"\xff"
#: Sorts after every end of a key.
_AFTER_ALL = _END * (DIGEST_SIZE + _OFFSET_SIZE + 1)
#: Merges make no list for a segment with no more modules than this, because additions would wait for it. The first query makes the list.
_FEW = 512
#: A segment with no more modules than this has no list: reading their files takes some milliseconds.
_FEWEST = 32
#: For this many names all keys are read: finding one takes as long as reading some dozens.
_MANY_NAMES = 1 << 10
#: The number of rows that are decoded at a time.
_ROWS_PER_BATCH = 1 << 10
#: The number of keys that are sorted at a time; the other keys wait in a file.
_RUN = 1 << 17
#: The relation of a module to a function, in keys of `relation_key`. Modules that realize a function sort before its importers.
REALIZES, IMPORTS = b"d", b"i"


class ListCounts(NamedTuple):
    """The numbers of modules, packs, realizations and distinct names in a list, and the size of all its modules in bytes."""

    modules: int = 0
    packs: int = 0
    realizations: int = 0
    names: int = 0
    size: int = 0


def base_of(name: str) -> str:
    """Return the common part of the names of a function's variants: the label of a content name, or the plain name."""
    return (label_of(name) if "-" in name else None) or name


def last_part_of(base: str) -> str:
    """Return the part of a base after the last dot that is not in argument types: ``f(a.T)`` for ``m.f(a.T)``."""
    return base[base.partition("(")[0].rfind(".") + 1 :]


def _encode_name(name: str) -> bytes:
    """Return a name as bytes of a key."""
    return name.encode("utf-8", "surrogatepass")


def _items_of(row: Row, size: int) -> Iterator[Item]:
    """Yield the keys of a module, with their values, in the format that the top of this file describes. `size` is its size in bytes."""
    key, platform = row.module_id, module_rows.encode_platform(row.platform)
    digest = check(platform)
    yield b"a" + digest, platform
    stored = row._replace(entries=()) if row.is_pack else row
    yield b"m" + key, digest + _SIZE.pack(size) + module_rows.encode_fields(stored)
    for name, signature in zip(row.names, row.signatures, strict=True):
        base = base_of(name)
        yield b"n%b\0%b\0%b" % (_encode_name(base), _encode_name(name), key), b"\1" if signature.startswith(LINK_ONLY) else b""
        last_part = last_part_of(base)
        if last_part != base:
            yield b"t%b\0%b" % (_encode_name(last_part), _encode_name(base)), b""
    for name in row.imports:
        yield b"i%b\0%b" % (_encode_name(name), key), b""
    if row.part_of:
        yield b"p%b\0%b" % (_encode_name(base_of(row.part_of)), key), b""
    for entry in row.entries:
        kind, name, offset, requires, *_ = entry
        base_name = _encode_name(base_of(name))
        location = key + offset.to_bytes(_OFFSET_SIZE, "little")
        value = module_rows.encode_row_entry(entry) if row.is_pack else b""  # entries of other modules are in their rows
        if kind == GROUP:
            yield b"g%b\0%b" % (base_name, key), b""
        yield b"e%b\0%b" % (base_name, location), value
        for required in requires:
            yield b"r" + required + location, value


def relation_key(name: str, relation: bytes, module: bytes) -> bytes:
    """Return a key that sorts the relations of modules to functions by name: ``name 0 relation module``."""
    return b"%b\0%b%b" % (_encode_name(name), relation, module)


class SortedItems:
    """Collects items, and yields them once in the order of their keys, without duplicate keys.

    Many items are sorted in parts, which wait in temporary files. Raises `OSError` if a temporary file cannot be written or read.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._run: list[Item] = []
        self._runs: list[Iterator[Item]] = []
        for key, value in items:
            self.add(key, value)

    def add(self, key: bytes, value: bytes = b"") -> None:
        """Add an item."""
        self._run.append((key, value))
        if len(self._run) >= _RUN:
            self._runs.append(_write_run(self._run))
            self._run = []

    def __iter__(self) -> Iterator[Item]:
        self._run.sort(key=itemgetter(0))
        return merge_keys([self._run, *self._runs])


def _write_run(run: list[Item]) -> Iterator[Item]:
    """Sort items, write them to a temporary file, and return an iterator that reads them. See `SortedItems` for the exception."""
    run.sort(key=itemgetter(0))
    scratch = Scratch(encode_keys(merge_keys([run]), bytes))
    return SortedKeys(scratch.read, scratch.size).between(b"", _END)


#: The positions of the counts in `ListCounts`.
_MODULES, _PACKS, _REALIZATIONS, _NAMES, _TOTAL_SIZE = range(5)


class _Counter:
    """Iterates over items, skips those of modules in `gone`, and counts the others for the summary of a list."""

    def __init__(self, items: Iterable[Item], gone: Container[bytes]) -> None:
        self._items = items
        self._gone = gone
        self._counts = [0] * len(ListCounts._fields)

    def __iter__(self) -> Iterator[Item]:
        """Yield the items of modules that are not in `gone`, and count them. See `decode_platform` for the exception."""
        counts, gone, name, packs = self._counts, self._gone, b"", set()
        for key, value in self._items:
            letter = key[:1]
            if gone and letter not in b"at" and _module_of(key) in gone:
                continue
            if letter == b"a" and is_pack(module_rows.decode_platform(value).image_kind):
                packs.add(key[1:])
            elif letter == b"m":
                counts[_PACKS if value[:CHECK_SIZE] in packs else _MODULES] += 1
                counts[_TOTAL_SIZE] += _SIZE.unpack_from(value, CHECK_SIZE)[0]
            elif letter == b"n":
                counts[_REALIZATIONS] += 1
                counts[_NAMES] += key[:-DIGEST_SIZE] != name
                name = key[:-DIGEST_SIZE]
            yield key, value

    def summary(self) -> bytes:
        """Return the encoded counts of the items yielded so far."""
        return _COUNTS.pack(*self._counts)


def _module_of(key: bytes) -> bytes:
    """Return the module_id of the module that a key belongs to."""
    return key[-DIGEST_SIZE:] if key[:1] not in b"er" else key[-DIGEST_SIZE - _OFFSET_SIZE : -_OFFSET_SIZE]  # entries have an offset


class _List:
    """The list of one segment, read from its file or created. See `_create_keys` for the exception of the methods, except `open`."""

    def __init__(self, store: Store, segment: Segment, progress: Progress | None) -> None:
        self._store = store
        self.segment = segment
        self._progress = progress
        self._keys: SortedKeys | None = None

    def keys(self) -> SortedKeys:
        """Return the list's keys. The first call opens the file or creates the list."""
        if self._keys is None:
            self._keys = self.open() or self._create_keys()
        return self._keys

    def open(self) -> SortedKeys | None:
        """Return the list that the segment keeps, otherwise the list in its file; None if there is none.

        The segment keeps the list, because the index of its blocks takes long to read.
        """
        keys = self.segment.listed
        if not isinstance(keys, SortedKeys):
            self.segment.listed = keys = _open_list(self._store, self.segment.name)
        return keys

    def between(self, start: bytes, end: bytes) -> Iterator[Item]:
        """Yield the items with `start` <= key < `end`, in order. A damaged list is rebuilt."""
        try:
            for item in self.keys().between(start, end):
                yield item
                start = item[0] + b"\0"  # a rebuilt list continues after the last item
        except FormatError:
            yield from self.rebuild().between(start, end)

    def find(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the list does not contain the key. A damaged list is rebuilt."""
        try:
            return self.keys().find(key)
        except FormatError:
            return self.rebuild().find(key)

    def rebuild(self) -> SortedKeys:
        """Discard the list, create it from the modules, and return its keys."""
        remove_lists_of(self._store, [self.segment.name])
        self.segment.listed = None
        self._keys = self._create_keys()
        return self._keys

    def _create_keys(self) -> SortedKeys:
        """Create the list from the modules, and return its keys.

        The list of a small segment, and a list that cannot be stored, are kept in memory.

        Raise `StorageError` if a module cannot be read at the moment (`SHORTAGES`).
        """
        store, segment, count = self._store, self.segment, self._module_count()
        if count > min(_FEW, _FEWEST) and not store.readonly and not store.exposed:
            with suppress(OSError):
                _publish_list(store, segment.name, SortedItems(self._read_items()), ())
                stored_keys = self.open()
                if stored_keys is not None:
                    return stored_keys
        counter = _Counter(SortedItems(self._read_items()), ())
        data = b"".join(encode_keys(counter, counter.summary))
        keys = SortedKeys(lambda at, size: data[at : at + size], len(data))
        if count <= _FEW:
            segment.listed = keys
        return keys

    def _module_count(self) -> int:
        """Return the number of modules in the list's segment, or 0 if the segment cannot be read."""
        with suppress(FormatError, OSError):  # a look-up reports it
            return self.segment.modules.count
        return 0

    def _read_items(self) -> Iterator[Item]:
        """Yield the items of the list, read from the modules. If the segment is damaged or cannot be read, the iteration ends.

        Raise `StorageError` if a module cannot be read at the moment (`SHORTAGES`).
        """
        store = self._store
        try:
            total = self.segment.modules.count
            entries = all_entries(self.segment.modules) if total else iter(())
            for number, entry in enumerate(entries):
                row_and_size = module_rows.read_row_and_size(store, entry[:DIGEST_SIZE])
                if row_and_size is not None:
                    yield from _items_of(*row_and_size)
                if self._progress is not None and number % 256 == 0 and total > _FEW:
                    self._progress(number, total)
        except (FormatError, OSError) as error:  # a look-up reports damage
            reraise_interrupt(error)
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise store.unreadable_error(store.path(INDEX, self.segment.name), error) from error


def stray_lists(store: Store) -> set[str]:
    """Return the names of lists whose segments do not exist: a merge ended before it removed them, or their segments are being written."""
    lists = set(store.names(MODULE_LISTS))
    return lists.difference(map(_list_name, [*store.names(INDEX), *store.names(PARTS)]))


def _list_name(segment: str) -> str:
    """Return the name of the file with the list of a segment."""
    return MODULE_LISTS.file_name(segment.removesuffix(INDEX.suffix))


def _open_list(store: Store, segment: str) -> SortedKeys | None:
    """Return the list of a segment, or None if its file is missing, damaged or not trusted."""
    if store.exposed:
        return None
    with suppress(OSError, FormatError):
        opened = store.files.open_owned(store.path(MODULE_LISTS, _list_name(segment)), file_ops.READ_FLAGS)
        status = store.files.fstat(opened.number)
        if store.is_foreign(status):
            return None
        return SortedKeys(lambda at, size: _read_list(store, opened, at, size), status.st_size)
    return None


def _read_list(store: Store, opened: file_ops.Opened, offset: int, size: int) -> bytes:
    """Read bytes of a list's file. Raise `FormatError` if that fails, because the list can then be recreated."""
    try:
        return file_ops.read_at(store.files, opened, offset, size)
    except OSError as error:
        reraise_interrupt(error)
        raise FormatError(f"{size} bytes at {offset} of a list of modules cannot be read: {error.strerror or error}") from error


def _publish_list(store: Store, segment: str, items: Iterable[Item], gone: Container[bytes]) -> None:
    """Write the list of a segment, without the modules in `gone`.

    Raise `OSError` if the list cannot be written, or `FormatError` if an item is malformed.
    """
    counter = _Counter(items, gone)
    path = store.path(MODULE_LISTS, _list_name(segment))
    publish(store.files, store.temporary, path, encode_keys(counter, counter.summary), sync=False)


def merge_list(store: Store, segment: str, merged: Iterable[Segment], gone: Container[bytes] = (), size_of: SizeOf | None = None) -> None:
    """Merge the lists of segments into the list of the segment that will replace them. Storage and format errors are ignored.

    Modules in `gone` are left out. `size_of` returns the size of a module on disk in bytes. It is called in the order of module_ids.
    No list is written for few modules, or if the store is read-only or other users can write to it.
    """
    lists = [_List(store, merged_segment, None) for merged_segment in merged]
    if store.readonly or store.exposed or sum(module_list._module_count() for module_list in lists) <= _FEW:
        return
    with suppress(OSError, FormatError):
        items = merge_keys([module_list.between(b"", _END) for module_list in lists])
        _publish_list(store, segment, items if size_of is None else _with_new_sizes(items, size_of), gone)


def _with_new_sizes(items: Iterable[Item], size_of: SizeOf) -> Iterator[Item]:
    """Yield the items, with the sizes of modules replaced by the results of `size_of`."""
    for key, value in items:
        if key[:1] == b"m":
            yield key, value[:CHECK_SIZE] + _SIZE.pack(max(size_of(key[1:]), 0)) + value[CHECK_SIZE + _SIZE.size :]
        else:
            yield key, value


def write_list(store: Store, segment: str, rows: Iterable[tuple[Row, int]]) -> None:
    """Write the list of a segment that will be published. Ignore `OSError`.

    `rows` has the rows and the file sizes of the modules. No list is written in the cases of `merge_list`.
    """
    rows_and_sizes = list(rows)
    if len(rows_and_sizes) > _FEW and not store.readonly and not store.exposed:
        with suppress(OSError):
            _publish_list(store, segment, SortedItems(item for row, size in rows_and_sizes for item in _items_of(row, size)), ())


def write_empty_list(store: Store, segment: str) -> None:
    """Write an empty list for a segment that will be published, because other lists contain its modules. Ignore `OSError`."""
    with suppress(OSError):
        _publish_list(store, segment, (), ())


def remove_lists_of(store: Store, segments: Iterable[str]) -> None:
    """Remove the lists of segments. Most segments have no list. Ignore `OSError`."""
    for name in {*store.names(MODULE_LISTS)}.intersection(map(_list_name, segments)):
        with suppress(OSError):
            store.files.unlink(store.path(MODULE_LISTS, name))


class ModuleLists:
    """Queries the lists of all segments of a directory.

    Args:
        store: the directory, whose index is refreshed.
        progress: called from time to time with (modules read, modules to read) while a list is created.
        recover: whether to rebuild an index that is missing or damaged, as a look-up does.

    Raises:
        StorageError: the index cannot be read. Queries also raise it if a list must be created, and a module cannot be read at the moment.
    """

    def __init__(self, store: Store, progress: Progress | None = None, *, recover: bool = True) -> None:
        if recover:
            Store.renew_index(store)  # not the indexes of its layers
        else:
            store.index.refresh()
        unlisted = {""}
        while not unlisted.issubset([segment.name for segment in store.index.segments]):  # a merge has replaced a segment and its list
            self._lists = [_List(store, segment, progress) for segment in open_segments(store.index)]
            unlisted = {module_list.segment.name for module_list in self._lists if module_list.open() is None}
            store.index.refresh()
        if store.index.failure is not None:
            _, reason = store.index.failure
            store.report_unreadable(store.directory(INDEX), OSError(reason))
        self.store = store
        self._platforms: dict[bytes, Platform] = {}

    def counts(self) -> ListCounts:
        """Return the sums of all lists' counts. A module in two segments is counted twice, and removed modules are still counted."""
        counts = [_COUNTS.unpack(_encoded_counts(module_list)) for module_list in self._lists]
        return ListCounts(*map(sum, zip(*counts, strict=True))) if counts else ListCounts()

    def _items_between(self, start: bytes, end: bytes) -> Iterator[Item]:
        """Yield the items of all lists with `start` <= key < `end`, in order."""
        return merge_keys([module_list.between(start, end) for module_list in self._lists])

    def _starting_with(self, prefix: bytes) -> Iterator[Item]:
        """Yield the items of all lists whose keys begin with a prefix, in order."""
        return self._items_between(prefix, prefix + _AFTER_ALL)

    def bases(self, prefix: str = "") -> Iterator[str]:
        """Yield the bases of functions and groups that begin with a prefix, in UTF-8 order, without duplicates."""

        def bases_of(letter: bytes) -> Iterator[Item]:
            """Yield the bases in the keys with a letter, as items without values."""
            for key, _ in self._starting_with(letter + _encode_name(prefix)):
                yield key[1:].partition(b"\0")[0], b""

        return (_decode_name(base) for base, _ in merge_keys([bases_of(b"n"), bases_of(b"g")]))

    def group_bases(self) -> set[str]:
        """Return the bases of the names of all groups in the lists."""
        return {_decode_name(key[1:].partition(b"\0")[0]) for key, _ in self._starting_with(b"g")}

    def functions(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield (func_name, module_id) of realizations of callable functions whose base begins with a prefix, sorted by base and name."""
        for key, value in self._starting_with(b"n" + _encode_name(prefix)):
            if not value:
                yield _decode_name(key[:-DIGEST_SIZE].partition(b"\0")[2][:-1]), key[-DIGEST_SIZE:]

    def last_parts(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield (last part, base) for the bases whose last part begins with a prefix."""
        for key, _ in self._starting_with(b"t" + _encode_name(prefix)):
            part, _, base = key[1:].partition(b"\0")
            yield _decode_name(part), _decode_name(base)

    def holders(self, name: str) -> set[bytes]:
        """Return the module_ids of the modules that realize a function."""
        return self._module_ids_of(b"n%b\0%b\0" % (_encode_name(base_of(name)), _encode_name(name)))

    def importers(self, name: str) -> set[bytes]:
        """Return the module_ids of the modules that import a function."""
        return self._module_ids_of(b"i%b\0" % _encode_name(name))

    def _module_ids_of(self, prefix: bytes) -> set[bytes]:
        """Return the module_ids at the ends of the keys that begin with a prefix."""
        end = prefix + _AFTER_ALL
        return {key[-DIGEST_SIZE:] for module_list in self._lists for key, _ in module_list.between(prefix, end)}

    def holders_of(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (name, module_id) for each realization of these functions."""
        return self._modules_of(names, self.holders, b"n", b"o")

    def importers_of(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (name, module_id) for each module that imports one of these functions."""
        return self._modules_of(names, self.importers, b"i", b"j")

    def _modules_of(
        self, names: Collection[str], modules_of: Callable[[str], set[bytes]], start: bytes, end: bytes
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (name, module_id) for the keys from `start` to `end` with one of these names. `modules_of` searches for one name."""
        if len(names) < _MANY_NAMES:
            yield from [(name, module_id) for name in sorted(names) for module_id in modules_of(name)]
            return
        for module_list in self._lists:
            for key, _ in module_list.between(start, end):
                name = _decode_name(key[1 : -DIGEST_SIZE - 1].rpartition(b"\0")[2])
                if name in names:
                    yield name, key[-DIGEST_SIZE:]

    def module_ids_of_bases(self, first_base: str, last_base: str) -> set[bytes]:
        """Return the ids of the modules that have functions or groups with these bases, or parts of such functions.

        The bases are those from `first_base` to `last_base`.
        """
        module_ids = set()
        for letter in (b"n", b"p", b"g"):  # functions, owners of parts, groups
            start, end = letter + _encode_name(first_base) + b"\0", letter + _encode_name(last_base) + b"\1"
            for module_list in self._lists:
                module_ids.update([key[-DIGEST_SIZE:] for key, _ in module_list.between(start, end)])
        return module_ids

    def entries(self, first_base: str, last_base: str) -> Iterator[tuple[bytes, RowEntry | None]]:
        """Yield (module_id, entry) for the entries of data whose bases are from `first_base` to `last_base`.

        The entry is None if the row of the module contains it. See `_entries_between` for the exception.
        """
        return self._entries_between(b"e" + _encode_name(first_base) + b"\0", b"e" + _encode_name(last_base) + b"\1")

    def entries_requiring(self, module_id: bytes) -> Iterator[tuple[bytes, RowEntry | None]]:
        """Yield the entries of data that require a module. See `entries` for their form, and `_entries_between` for the exception."""
        return self._entries_between(b"r" + module_id, b"r" + module_id + _AFTER_ALL)

    def has_members(self) -> bool:
        """Return whether a function is part of another function or of a group."""
        return any(next(self._starting_with(letter), None) is not None for letter in (b"p", b"g"))

    def has_requirements(self) -> bool:
        """Return whether an entry of data requires a module."""
        return next(self._starting_with(b"r"), None) is not None

    def all_entries(self) -> Iterator[tuple[bytes, RowEntry | None]]:
        """Yield all entries of data. See `entries` for their form, and `_entries_between` for the exception."""
        return self._entries_between(b"e", b"f")

    def _entries_between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, RowEntry | None]]:
        """Yield the entries of data with keys from `start` to `end`, as (module_id, entry). The entry is None outside packs.

        Raise `FormatError` if the list is damaged.
        """
        for key, value in self._items_between(start, end):
            yield _module_of(key), module_rows.decode_row_entry(value) if value else None

    def module_ids(self, prefix: bytes = b"") -> Iterator[bytes]:
        """Yield the module_ids of listed modules that begin with a prefix, sorted."""
        return (key[1:] for key, _ in self._starting_with(b"m" + prefix))

    def rows(self, module_ids: Iterable[bytes]) -> dict[bytes, Row]:
        """Return the rows of listed modules, without the entries of packs. Modules that are not listed are left out."""
        missing = sorted(module_ids)
        rows: dict[bytes, Row] = {}
        for module_list in self._lists:
            if not missing:
                break
            values = [(module_id, value) for module_id in missing if (value := module_list.find(b"m" + module_id)) is not None]
            if values:
                rows.update(self._decode_rows(module_list, values))
                missing = [module_id for module_id in missing if module_id not in rows]
        return rows

    def seconds_of(self, module_ids: Sequence[bytes]) -> dict[bytes, float]:
        """Return the compile times of modules in seconds, from the lists, or else from the modules. Unreadable modules are left out.

        Raise `StorageError` if a module cannot be read at the moment (`SHORTAGES`).
        """
        rows: dict[bytes, Row | None] = dict(self.rows(module_ids))
        rows.update({module_id: module_rows.read_row(self.store, module_id) for module_id in module_ids if module_id not in rows})
        return {module_id: row.seconds for module_id, row in rows.items() if row is not None}

    def rows_of_directory(self, first_byte: int) -> dict[bytes, Row]:
        """Return the rows of the modules whose ids begin with this byte, without the entries of packs."""
        prefix = b"m%c" % first_byte
        rows: dict[bytes, Row] = {}
        for module_list in self._lists:
            items = module_list.between(prefix, prefix + _AFTER_ALL)
            while batch := [(key[1:], value) for key, value in islice(items, _ROWS_PER_BATCH)]:
                rows.update(self._decode_rows(module_list, [(module_id, value) for module_id, value in batch if module_id not in rows]))
        return rows

    def requirements_of_directory(self, first_byte: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield (required module_id, module_id of the entry) for the entries of data that require a module in this directory."""
        for key, _ in self._starting_with(b"r%c" % first_byte):
            yield key[1 : DIGEST_SIZE + 1], _module_of(key)

    def has_imports(self) -> bool:
        """Return whether any module imports a function."""
        return next(self._starting_with(b"i"), None) is not None

    def several_holders(self) -> Iterator[list[bytes]]:
        """Yield, for each function with several realizations, the module_ids of their modules."""
        last_name, holders = b"", list[bytes]()
        for key, _ in chain(self._starting_with(b"n"), [(b"", b"")]):
            if key[:-DIGEST_SIZE] != last_name:
                if len(holders) > 1:
                    yield holders
                last_name, holders = key[:-DIGEST_SIZE], []
            holders.append(key[-DIGEST_SIZE:])

    def _decode_rows(self, module_list: _List, values: list[tuple[bytes, bytes]]) -> dict[bytes, Row]:
        """Decode the rows in values of a list. If one is malformed, recreate the list first. Exceptions: see `rebuild`."""
        try:
            return self._decode_values(values)
        except FormatError:
            keys = module_list.rebuild()
            new_values = [(module_id, keys.find(b"m" + module_id)) for module_id, _ in values]
            return self._decode_values([(module_id, value) for module_id, value in new_values if value is not None])

    def _decode_values(self, values: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Row]:
        """Decode the rows in these values of a list. Raise `FormatError` if a value is malformed."""
        start = CHECK_SIZE + _SIZE.size
        parts = ((module_id, self._platform_of_digest(value[:CHECK_SIZE]), memoryview(value)[start:]) for module_id, value in values)
        rows = module_rows.decode_rows(parts)
        return {row.module_id: row for row in rows}

    def _platform_of_digest(self, digest: bytes) -> Platform:
        """Return the platform with a digest, from the first list that has it. Raise `FormatError` if it is malformed or in no list."""
        platform = self._platforms.get(digest)
        if platform is None:
            stored = next(filter(None, (module_list.find(b"a" + digest) for module_list in self._lists)), b"")
            platform = self._platforms[digest] = module_rows.decode_platform(stored)
        return platform


def _decode_name(data: bytes) -> str:
    """Return a name from the bytes of a key."""
    return data.decode("utf-8", "surrogatepass")


def _encoded_counts(module_list: _List) -> bytes:
    """Return the encoded counts of a list, or zeros if another version of compcache wrote the list. A damaged list is rebuilt."""
    try:
        summary = module_list.keys().summary
    except FormatError:
        summary = module_list.rebuild().summary
    return summary if len(summary) == _COUNTS.size else bytes(_COUNTS.size)
