"""Rows: summaries of modules, so that tools need not read module files. Module lists contain them (`publish.module_lists`).

A row repeats data from a module's records. It is never out of date, because module_ids are digests of content. Its platform is stored
separately, because the list of a CPU's features is longer than the rest of a row.
"""

from __future__ import annotations

from array import array
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.digest import DIGEST_SIZE
from compcache.errors import FormatError
from compcache.files import SHORTAGES
from compcache.formats.entry import ENTRY, PART_OF, decode_entry, index_name, is_pack
from compcache.formats.linked import KIND as LINKED_CLOSURE
from compcache.formats.linked import mark_linked
from compcache.formats.makers import MAKERS, decode_makers, makers_of
from compcache.formats.manifest import FUNCTION, MODULE, NEEDS, decode_function
from compcache.formats.manifest_writer import iterate_frames
from compcache.formats.records import decode_module
from compcache.interrupts import as_format_error, reraise_interrupt, suppress
from compcache.messagepack import pack, unpack
from compcache.publish.module_reader import ModuleSections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from compcache.formats.entry import EntryRecord
    from compcache.formats.makers import Maker
    from compcache.store import Store

    RowEntry = tuple[str, str, int, tuple[bytes, ...], int, int, bool]

__all__ = [
    "KEY_AT", "KEY_LENGTH", "Platform", "Row", "decode_platform", "decode_row_entry", "decode_rows",
    "encode_fields", "encode_platform", "encode_row_entry",
    "make_row", "read_row", "read_row_and_size", "row_of_frames", "seconds_in",
]  # fmt: skip

_MALFORMED = "a row of a list of modules is malformed"
_MAX_SECONDS = 1e9
KEY_AT, KEY_LENGTH = 9, 16  # the position of the key in a module record


class Platform(NamedTuple):
    """The platform of a module's code, the LLVM version that compiled it, and the content of its makers record."""

    image_kind: str
    triple: str
    cpu: str
    features: str
    llvm_version: str
    abi: int
    makers: str

    @property
    def is_pack(self) -> bool:
        """Whether the platform belongs to a pack, which contains only entries of data."""
        return is_pack(self.image_kind)

    def made_by(self) -> tuple[Maker, ...]:
        """Return the makers that contributed to the module's code."""
        return makers_of(self.image_kind, self.llvm_version, self.makers)


class Row(NamedTuple):
    """The summary of one module.

    Attributes:
        module_id: the digest of the module's content.
        platform: the platform of its code.
        seconds: its compile time.
        names: the names of its functions.
        offsets: the offsets of their records, in the order of `names`.
        imports: the names of the functions that it imports.
        signatures: the texts of the signatures, in the order of `names`.
        entries: its entries of data. Each is a kind, a name, the offset of the record, the module_ids that the entry requires, its
            sequence, the size of its data in bytes, and whether it marks a removed entry.
        part_of: the name or the label of the function that the module's functions belong to, or "".
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
        """Return the names of the row's functions and entries in the index, each with the offset of its record."""
        functions = mark_linked(zip(self.names, self.offsets, repeat("")), [kind for kind, *_ in self.entries])
        entries = [(index_name(kind, name), offset) for kind, name, offset, *_ in self.entries]
        return [*[(name, offset) for name, offset, _ in functions], *entries]

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The module_ids of the modules from which a linked closure is derived; () for other modules."""
        return next((requires for kind, _, _, requires, *_ in self.entries if kind == LINKED_CLOSURE), ())

    @property
    def is_pack(self) -> bool:
        """Whether the row describes a pack, which contains only entries of data."""
        return self.platform.is_pack


_NO_PLATFORM = Platform("", "", "", "", "", 0, "")
#: Creates a row from its fields without a constructor call in Python.
_new_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)


def make_row(module_id: bytes, records: bytes, notes: bytes) -> Row:
    """Create the row of a module from its encoded records and notes. If the notes are damaged, the compile time is 0.0.

    Raise `FormatError` if a record is damaged, or the module record is missing.
    """
    return row_of_frames(module_id, iterate_frames(records), _read_seconds(notes))[0]


def row_of_frames(module_id: bytes, frames: Iterable[tuple[int, bytes]], seconds: float) -> tuple[Row, list[bytes]]:
    """Create the row of a module, and return it with the target_ids of the module's functions, in the order of `Row.names`.

    `frames` has the module's records as (offset, payload), and `seconds` is the compile time.

    Raise `FormatError` if a record is damaged, or the module record is missing.
    """
    platform: Platform | None = None
    names, offsets, signatures, targets = [], [], [], []
    imports: dict[str, None] = {}
    entries = []
    makers = ""
    for offset, payload in frames:
        kind = payload[:1]
        if kind == FUNCTION:
            record = decode_function(payload)
            names.append(record.name)
            offsets.append(offset)
            signatures.append(record.signature)
            targets.append(record.target_id)
        elif kind == NEEDS:
            imports.update(dict.fromkeys(_imports_of(payload)))
        elif kind == ENTRY:
            entries.append((decode_entry(payload), offset))
        elif kind == MAKERS:
            makers = decode_makers(payload)
        elif kind == MODULE:
            platform = _platform_of(payload[:KEY_AT], payload[KEY_AT + KEY_LENGTH :])
    if platform is None:
        raise FormatError("the module has no module record")
    platform = _with_makers(platform, makers)
    own_names = set(names)
    imported = tuple([name for name in imports if name not in own_names])
    row = Row(module_id, platform, seconds, tuple(names), tuple(offsets), imported, tuple(signatures), *_entries_of(entries))
    return row, targets


@lru_cache(maxsize=256)
def _platform_of(head: bytes, rest: bytes) -> Platform:
    """Decode the platform in a module record, without its makers, which have a record of their own.

    The record is given without its key, because most records differ only in the key. Raise `FormatError` if the record is malformed.
    """
    header = decode_module(head + bytes(KEY_LENGTH) + rest)
    features = "\n".join(header.features)
    return Platform(header.image_kind, header.triple, header.cpu, features, header.llvm_version, header.abi, "")


@lru_cache(maxsize=256)
def _with_makers(platform: Platform, makers: str) -> Platform:
    """Return a platform with the content of a makers record. Modules with equal platforms share one object."""
    return platform._replace(makers=makers)


def _entries_of(records: Iterable[tuple[EntryRecord, int]]) -> tuple[tuple[RowEntry, ...], str]:
    """Return the fields `entries` and `part_of` of a row."""
    entries, part_of = [], ""
    for record, offset in records:
        entries.append((record.kind, record.name, offset, record.requires, record.sequence, len(record.data), record.gone))
        if record.kind == PART_OF:
            part_of = record.data.decode("utf-8", "replace")
    return tuple(entries), part_of


def _imports_of(needs: bytes) -> list[str]:
    """Return the func_names that a needs record imports. They are at the start of the record.

    Raise `FormatError` if the record is truncated, or a name is not UTF-8.
    """
    names = []
    position = 5  # after the kind of the record and the number of imports; each import begins with its slot and the length of its name
    for _ in range(int.from_bytes(needs[1:position], "little")):
        start = position + 8
        position = start + int.from_bytes(needs[position + 4 : start], "little")
        if position > len(needs):
            raise FormatError(f"a needs record of {len(needs)} bytes is truncated: an import should end at byte {position}")
        try:
            names.append(needs[start:position].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise FormatError("a needs record imports a name that is not UTF-8") from None
    return names


def _read_seconds(notes: bytes) -> float:
    """Return the compile time in encoded notes, in seconds, or 0.0 if the notes are damaged."""
    with suppress(ValueError, TypeError, AttributeError):
        return seconds_in(unpack(notes))
    return 0.0


def seconds_in(notes: Mapping[str, Any]) -> float:
    """Return the compile time in a module's notes, in seconds, or 0.0 if it is missing or implausible."""
    value = notes.get("seconds", 0.0)
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MAX_SECONDS else 0.0


def encode_platform(platform: Platform) -> bytes:
    """Encode a platform."""
    return pack(list(platform))


def decode_platform(data: bytes) -> Platform:
    """Decode a platform. Raise `FormatError` if the data is malformed."""
    with as_format_error(_MALFORMED):
        return _make_platform(unpack(data, use_list=False))


def encode_fields(row: Row) -> bytes:
    """Encode the fields of a row other than its module_id and its platform."""
    return pack(row[2:])


def encode_row_entry(entry: RowEntry) -> bytes:
    """Encode one item of a row's `entries`."""
    return pack(entry)


def decode_row_entry(data: bytes) -> RowEntry:
    """Decode one item of a row's `entries`. Raise `FormatError` if the data is malformed."""
    with as_format_error(_MALFORMED):
        entry = unpack(data, use_list=False)
        row = _new_row((bytes(DIGEST_SIZE), _NO_PLATFORM, 0.0, (), (), (), (), (entry,), ""))  # because only rows can be checked
        return _check_rows([row])[0].entries[0]


def decode_rows(parts: Iterable[tuple[bytes, Platform, memoryview | bytes]]) -> list[Row]:
    """Decode rows from their module_ids, their platforms and the results of `encode_fields`. Raise `FormatError` if a row is malformed."""
    with as_format_error(_MALFORMED):
        return _check_rows([_new_row((module_id, platform, *unpack(data, use_list=False))) for module_id, platform, data in parts])


def _check_rows(rows: list[Row]) -> list[Row]:
    """Check the types, lengths and ranges of all fields, and return the rows.

    Columns are checked instead of rows, because there can be a hundred thousand rows. A file's checksum cannot replace this check, because
    it only shows that the file is unchanged.

    Raises:
        ValueError, TypeError, OverflowError: a field has the wrong type, length or range.
    """
    if not rows:
        return rows
    module_ids, platforms, seconds, names, offsets, imports, signatures, entries, owners = zip(*rows, strict=True)
    columns = {"names": names, "offsets": offsets, "imports": imports, "signatures": signatures, "entries": entries}
    times = array("d", seconds)
    if {*map(type, module_ids)} != {bytes} or {*map(len, module_ids)} != {DIGEST_SIZE}:
        raise ValueError(f"a module_id is not a digest of {DIGEST_SIZE} bytes")
    for type_ in {*map(type, platforms)} - {Platform}:
        raise ValueError(f"the platform of a module is of type {type_.__name__}, not Platform")
    for title, column in columns.items():
        for type_ in {*map(type, column)} - {tuple}:
            raise ValueError(f"the {title} of a module are of type {type_.__name__}, not tuple")
    if not (min(times) >= 0 and sum(times) < float("inf")):
        raise ValueError("the compile time of a module is negative or not finite")
    if not list(map(len, names)) == list(map(len, offsets)) == list(map(len, signatures)):
        raise ValueError("the numbers of names, offsets and signatures of a module differ")
    # Joining and packing raise an error unless all items have the right type.
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


def _make_platform(fields: Iterable[object]) -> Platform:
    """Create a platform from its decoded fields. Raise `ValueError` or `TypeError` if a type or the number of fields is wrong."""
    platform = Platform(*fields)  # type: ignore[arg-type] # checked next
    if list(map(type, platform)) != [str] * 5 + [int, str]:
        found = ", ".join([type(field).__name__ for field in platform])
        raise ValueError(f"the fields of the platform have the types {found}, not str five times, then int and str")
    return platform


def read_row(store: Store, module_id: bytes) -> Row | None:
    """Read a module's row from its file. See `read_row_and_size` for None and the exception."""
    row_and_size = read_row_and_size(store, module_id)
    return row_and_size[0] if row_and_size is not None else None


def read_row_and_size(store: Store, module_id: bytes) -> tuple[Row, int] | None:
    """Return a module's row, and the size of the module on disk in bytes. Nothing is quarantined.

    Return None if the module is missing, damaged, or unreadable. Raise `StorageError` if it is unreadable at the moment (`SHORTAGES`).
    """
    try:
        with ModuleSections(store, module_id) as module:
            return make_row(module_id, module.records(), module.notes()), module.stored
    except OSError as error:
        reraise_interrupt(error)
        if error.errno in SHORTAGES:
            raise store.unreadable_error(store.module_path(module_id), error) from error
        return None
    except FormatError:
        return None
