"""The module rows: the data that tools need of all modules, in one file.

Look-ups never read it. It is derived: a row repeats a module's own records, and because module_ids are digests of
content a row is never out of date. Additions leave their rows in their process's statistics file; rows that are in
neither are read from the modules, once.

The file is ``"CCLISTS4" | check | msgpack [platforms, rows]``; a row is ``[module_id, number of
its platform, seconds, names, offsets, imports, signatures, entries, part_of]``. Platforms are separate because the list of a CPU's
features is longer than the rest of a row.
"""

from __future__ import annotations

from array import array
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.errors import FormatError, MissingPackageError
from compcache.files import reraise_interrupt
from compcache.formats.entry import ENTRY, PART_OF, decode_entry, index_name, is_pack
from compcache.formats.linked import KIND as LINKED_CLOSURE
from compcache.formats.linked import marked
from compcache.formats.makers import MAKERS, decode_makers, makers_of
from compcache.formats.manifest import FUNCTION, LINKED, MODULE, NEEDS, decode_function
from compcache.formats.manifest_writer import iterate_frames
from compcache.formats.records import decode_module
from compcache.publish.atomic_file import publish
from compcache.publish.quarantine import is_shortage
from compcache.store import MODULE_ROWS
from compcache.usage.module_reader import ModuleSections

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "listing what is in a cache") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from compcache.formats.built_module import BuiltModule
    from compcache.formats.entry import EntryRecord
    from compcache.formats.makers import Maker
    from compcache.formats.records import ModuleRecord
    from compcache.store import Store
    from compcache.usage.module_files import Progress

    RowEntry = tuple[str, str, int, tuple[bytes, ...], int, int, bool]

__all__ = ["Platform", "Row", "decode_rows", "encode_rows", "load_rows", "make_row", "read_row", "row_of_built"]

_MAGIC = b"CCLISTS4"
_MAX_FILE = 1 << 31
_PLATFORM_FIELDS = 2  # of a platform's item in a statistics file; a row's has those of `Row`
_MAX_SECONDS = 1e9
_KEY_AT, _KEY_SIZE = 9, 16  # the position of the key in a module record


class Platform(NamedTuple):
    """The platform that a module's code is for, the LLVM that compiled it, and the text of its record of makers."""

    image_kind: str
    triple: str
    cpu: str
    features: str
    llvm_version: str
    abi: int
    makers: str

    def made_by(self) -> tuple[Maker, ...]:
        """All makers of the module."""
        return makers_of(self.image_kind, self.llvm_version, self.makers)


class Row(NamedTuple):
    """One module: its compile time in seconds, its functions with their record offsets and signatures, its imports, its entries of data.

    An entry is its kind, its name, the offset of its record, the module_ids of what it requires, its sequence, the size of its data, and
    whether it says that there is none. `part_of` is the function that these functions belong to, or its label.
    """

    module_id: bytes
    platform: Platform
    seconds: float
    names: tuple[str, ...]
    offsets: tuple[int, ...]
    imports: tuple[str, ...]
    signatures: tuple[str, ...]
    entries: tuple[RowEntry, ...] = ()
    part_of: str = ""

    def indexed(self) -> list[tuple[str, int]]:
        """The names under which the index has its functions and entries, with the offsets of their records."""
        functions = marked(zip(self.names, self.offsets, repeat("")), [kind for kind, *_ in self.entries])
        return [(name, offset) for name, offset, _ in functions] + [
            (index_name(kind, name), offset) for kind, name, offset, *_ in self.entries
        ]

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The modules that a linked closure is derived of; empty for others."""
        return next((requires for kind, _, _, requires, *_ in self.entries if kind == LINKED_CLOSURE), ())

    @property
    def is_pack(self) -> bool:
        """Whether it is no module but a file of entries of data."""
        return is_pack(self.platform.image_kind)


#: A row from its fields, without a constructor call in Python.
_new: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)


def make_row(module_id: bytes, records: bytes, notes: bytes) -> Row:
    """The row of a module from its sections.

    Raises:
        FormatError: a record is damaged.
    """
    platform: Platform | None = None
    functions = []
    imports: dict[str, None] = {}
    entries = []
    makers = ""
    for offset, payload in iterate_frames(records):
        kind = payload[:1]
        if kind == FUNCTION:
            record = decode_function(payload)
            functions.append((record.name, offset, record.signature))
        elif kind == NEEDS:
            imports.update(dict.fromkeys(_imports_of(payload)))
        elif kind == ENTRY:
            record_ = decode_entry(payload)
            entries.append((record_, offset))
        elif kind == MAKERS:
            makers = decode_makers(payload)
        elif kind == MODULE:
            platform = _platform_of(payload[:_KEY_AT], payload[_KEY_AT + _KEY_SIZE :])
    if platform is None:
        raise FormatError("the module has no module record")
    platform = _with_makers(platform, makers)
    names, offsets, signatures = zip(*functions, strict=True) if functions else ((), (), ())
    own = set(names)
    imported = tuple([name for name in imports if name not in own])
    return Row(module_id, platform, _seconds(notes), names, offsets, imported, signatures, *_entries_of(entries))


@lru_cache(maxsize=256)
def _platform_of(head: bytes, rest: bytes) -> Platform:
    """The platform in a module record without its key: most records differ in the key only."""
    return _platform(decode_module(head + bytes(_KEY_SIZE) + rest))


def _platform(header: ModuleRecord) -> Platform:
    h = header
    return Platform(h.image_kind, h.triple, h.cpu, "\n".join(h.features), h.llvm_version, h.abi, "")


@lru_cache(maxsize=256)
def _with_makers(platform: Platform, makers: str) -> Platform:
    return platform._replace(makers=makers)


def row_of_built(module_id: bytes, built: BuiltModule) -> Row:
    """The row of a module that was just built: equal to what `make_row` reads from its sections."""
    names = tuple([name for name, *_ in built.functions])
    offsets = tuple([offset & ~LINKED for _, offset, _ in built.functions])
    platform = _platform(built.header)._replace(makers=built.makers)
    places = [offset for _, offset, _ in built.indexed[len(names) :]]
    entries = _entries_of(zip(built.entries, places, strict=True))
    return Row(module_id, platform, built.seconds, names, offsets, built.imports, built.signatures, *entries)


def _entries_of(records: Iterable[tuple[EntryRecord, int]]) -> tuple[tuple[RowEntry, ...], str]:
    """The last two fields of a row."""
    found, part_of = [], ""
    for r, offset in records:
        found.append((r.kind, r.name, offset, r.requires, r.sequence, len(r.data), r.gone))
        if r.kind == PART_OF:
            part_of = r.data.decode("utf-8", "replace")
    return tuple(found), part_of


def _imports_of(needs: bytes) -> list[str]:
    """The func_names that a needs record imports, which come first in it."""
    names = []
    at = 5
    for _ in range(int.from_bytes(needs[1:at], "little")):
        start = at + 8
        at = start + int.from_bytes(needs[at + 4 : start], "little")
        if at > len(needs):
            raise FormatError("a needs record is truncated")
        names.append(needs[start:at].decode("utf-8", "surrogatepass"))
    return names


def _seconds(notes: bytes) -> float:
    try:
        value = msgpack.unpackb(notes, raw=False, strict_map_key=False).get("seconds", 0.0)
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        return 0.0
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MAX_SECONDS else 0.0


def encode_rows(rows: Iterable[Row]) -> list[bytes]:
    """Encode rows for a statistics file: items that can be joined with others in any order, without duplicates."""
    platforms: dict[Platform, tuple[bytes, bytes]] = {}
    items = []
    for row in rows:
        known = platforms.get(row.platform)
        if known is None:
            packed = _pack(list(row.platform))
            known = platforms[row.platform] = check(packed), packed
        items.append(_pack((row.module_id, known[0], *row[2:])))
    return [_pack((digest, packed)) for digest, packed in platforms.values()] + items


def _with_types(rows: list[Row]) -> list[Row]:
    """Check the types of all fields, a column at a time: there can be a hundred thousand rows. Returns the rows.

    Raises:
        ValueError, TypeError, OverflowError: a field has the wrong type. The file's checksum does not exclude that: it
            only shows that the file is as it was written.
    """
    if not rows:
        return rows
    module_ids, platforms, seconds, names, offsets, imports, signatures, entries, owners = zip(*rows, strict=True)
    columns = names, offsets, imports, signatures, entries
    times = array("d", seconds)
    if (
        {*map(type, module_ids)} != {bytes}
        or {*map(len, module_ids)} != {DIGEST_SIZE}
        or {*map(type, platforms)} != {Platform}
        or {kind for column in columns for kind in map(type, column)} != {tuple}
        or not (min(times) >= 0 and sum(times) < float("inf"))
        or not list(map(len, names)) == list(map(len, offsets)) == list(map(len, signatures))
    ):
        raise ValueError("a field of a row has the wrong type")
    array("I", chain.from_iterable(offsets))
    for texts in (names, imports, signatures):
        "".join(chain.from_iterable(texts))
    "".join(owners)
    for kind, name, offset, requires, sequence, size, gone in chain.from_iterable(entries):
        "".join(chain((kind, name)))
        b"".join(requires)
        array("I", (offset, size, gone))
        array("Q", (sequence,))
    return rows


def _checked_platform(fields: Iterable[object]) -> Platform:
    """A platform from its fields. Raises `ValueError` or `TypeError` if they are malformed."""
    found = Platform(*fields)  # type: ignore[arg-type] # checked next
    if list(map(type, found)) != [str] * 5 + [int, str]:
        raise ValueError("a field of a platform has the wrong type")
    return found


def decode_rows(data: bytes) -> list[Row]:
    """Decode rows from joined items of `encode_rows`; an empty list if they are malformed."""
    try:
        items = _items(data)
        platforms = {item[0]: _checked_platform(_unpack(item[1])) for item in items if len(item) == _PLATFORM_FIELDS}
        rows = [item for item in items if len(item) == len(Row._fields)]
        return _with_types([_new((row[0], platforms[row[1]], *row[2:])) for row in rows if row[1] in platforms])
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        return []


def _items(data: bytes) -> list[Any]:
    """A sequence of msgpack values; see `_unpack`."""
    try:
        return _stream(data, "strict")
    except UnicodeDecodeError:
        return _stream(data, "surrogatepass")


def _stream(data: bytes, unicode_errors: str) -> list[Any]:
    size = max(len(data), 1)
    unpacker = msgpack.Unpacker(raw=False, use_list=False, unicode_errors=unicode_errors, max_buffer_size=size)
    unpacker.feed(data)
    return list(unpacker)


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogatepass")
    return packed


def read_row(store: Store, module_id: bytes) -> Row | None:
    """Read the row of a module from its file; None if that is missing or damaged. Nothing is quarantined.

    Raises:
        StorageError: nothing can be read now, for lack of descriptors or memory.
    """
    try:
        with ModuleSections(store, module_id) as module:
            return make_row(module_id, module.records(), module.notes())
    except OSError as error:
        reraise_interrupt(error)
        if is_shortage(error):
            raise store.unreadable(store.module_path(module_id), error) from error
        return None
    except (FormatError, UnicodeDecodeError):
        return None


def load_rows(
    store: Store,
    present: Iterable[bytes],
    known: Callable[[], Mapping[bytes, Row]],
    progress: Progress | None = None,
    *,
    store_result: bool = True,
) -> dict[bytes, Row]:
    """The rows of the modules that are present; those that cannot be read are left out.

    Args:
        store: the cache directory.
        present: the modules.
        known: returns rows that are not stored yet; only called if a row is missing.
        progress: called with (modules read, modules to read) now and then while modules are read.
        store_result: store the rows for the next tool.
    """
    stored = _read_stored(store)
    present = dict.fromkeys(present)  # a set that keeps the order
    if present.keys() == stored.keys():
        return stored
    rows: dict[bytes, Row] = {}
    missing = []
    lately = known() if present.keys() - stored.keys() else {}
    for module_id in present:
        row = stored.get(module_id) or lately.get(module_id)
        if row is None:
            missing.append(module_id)
        else:
            rows[module_id] = row
    for number, module_id in enumerate(missing):
        row = read_row(store, module_id)
        if row is not None:
            rows[module_id] = row
        if progress is not None and number % 256 == 0:
            progress(number, len(missing))
    if store_result and rows.keys() != stored.keys():
        _write_stored(store, rows)
    return rows


def _read_stored(store: Store) -> dict[bytes, Row]:
    data = store.read_file(MODULE_ROWS, most=_MAX_FILE) or b""
    start = len(_MAGIC) + CHECK_SIZE
    if data[: len(_MAGIC)] != _MAGIC or check(data[start:]) != data[len(_MAGIC) : start]:
        return {}
    try:
        platforms, rows = _unpack(memoryview(data)[start:])
        known = [_checked_platform(platform) for platform in platforms]
        return {row.module_id: row for row in _with_types([_new((key, known[number], *rest)) for key, number, *rest in rows])}
    except (ValueError, TypeError, IndexError, OverflowError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        return {}


def _unpack(content: memoryview | bytes) -> Any:
    """Decode msgpack. Names that are not valid UTF-8 are rare, and decoding for them takes twice the time."""
    try:
        return msgpack.unpackb(content, raw=False, use_list=False)
    except UnicodeDecodeError:
        return msgpack.unpackb(content, raw=False, use_list=False, unicode_errors="surrogatepass")


def _write_stored(store: Store, rows: Mapping[bytes, Row]) -> None:
    """Publish the rows. If that fails, the next tool reads the modules again."""
    if store.readonly:
        return
    numbers: dict[Platform, int] = {}
    # In the order of other tables: entries that are used together are then close in memory.
    packed = [(module_id, numbers.setdefault(rows[module_id].platform, len(numbers)), *rows[module_id][2:]) for module_id in sorted(rows)]
    content = _pack([[list(platform) for platform in numbers], packed])
    try:
        publish(store.files, store.temporary, store.path(MODULE_ROWS), [_MAGIC, check(content), content], sync=False)
    except OSError as error:
        reraise_interrupt(error)
        return
