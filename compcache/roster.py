"""The roster: for every module what tools ask of all modules at once, in one file.

Look-ups never read it. It is derived: a row says what a module's own records say, and because module_ids are
digests of content a row is never out of date. Additions leave their rows in their process's statistics file;
what is in neither is read from the modules themselves, once.

``roster-v1/roster`` is ``"CCROSTR1" | check | msgpack [platforms, rows]``; a row is ``[module_id, number of
its platform, seconds, names, offsets, imports, signatures]``. Platforms are kept apart because the list of a CPU's
features is longer than all the rest.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from compcache import files as file_ops
from compcache.digest import CHECK_SIZE, check
from compcache.errors import FormatError
from compcache.manifest import decode_function, decode_module, iterate_frames
from compcache.sections import ModuleSections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from compcache.store import Store

    Progress = Callable[[int, int], object]

__all__ = [
    "Platform",
    "Row",
    "decode_rows",
    "encode_row",
    "load_rows",
    "make_row",
    "read_row",
]

_MAGIC = b"CCROSTR1"
_NAMES = ("roster-v1", "roster")
_MAX_ROSTER = 1 << 31
_KEY_AT, _KEY_SIZE = 9, 16  # where a module record holds its key


class Platform(NamedTuple):
    """What a module's code is for, and what made it."""

    image_kind: str
    triple: str
    cpu: str
    features: str
    llvm_version: str
    abi: int


class Row(NamedTuple):
    """One module: its compile time in seconds, its functions with their record offsets and signatures, its imports."""

    module_id: bytes
    platform: Platform
    seconds: float
    names: tuple[str, ...]
    offsets: tuple[int, ...]
    imports: tuple[str, ...]
    signatures: tuple[str, ...]


#: A row from its fields, without the call of a constructor written in Python.
_new: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)


def make_row(module_id: bytes, records: bytes, notes: bytes) -> Row:
    """The row of a module from its sections.

    Raises:
        FormatError: a record is damaged.
    """
    platform: Platform | None = None
    functions = []
    imports: dict[str, None] = {}
    for offset, payload in iterate_frames(records):
        kind = payload[:1]
        if kind == b"F":
            record = decode_function(payload)
            functions.append((record.name, offset, record.signature))
        elif kind == b"N":
            imports.update(dict.fromkeys(_imports_of(payload)))
        elif kind == b"M":
            platform = _platform_of(payload[:_KEY_AT], payload[_KEY_AT + _KEY_SIZE :])
    if platform is None:
        raise FormatError("the module has no module record")
    names, offsets, signatures = zip(*functions, strict=True) if functions else ((), (), ())
    own = set(names)
    imported = tuple([name for name in imports if name not in own])
    return Row(module_id, platform, _seconds(notes), names, offsets, imported, signatures)


@lru_cache(maxsize=256)
def _platform_of(head: bytes, rest: bytes) -> Platform:
    """The platform in a module record less its key: few records differ in anything else."""
    h = decode_module(head + bytes(_KEY_SIZE) + rest)
    return Platform(h.image_kind, h.triple, h.cpu, h.features, h.llvm_version, h.abi)


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
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
        return 0.0
    return float(value) if isinstance(value, (int, float)) else 0.0


def encode_row(row: Row) -> bytes:
    """A row for a statistics file: any number of them can follow one another."""
    return _pack([*row[:1], list(row.platform), *row[2:]])


def decode_rows(data: bytes) -> list[Row]:
    """The rows that `encode_row` made; none where the bytes are not such rows."""
    unpacker = msgpack.Unpacker(
        raw=False, use_list=False, unicode_errors="surrogatepass", max_buffer_size=max(len(data), 1)
    )
    unpacker.feed(data)
    try:
        return [_row(module_id, Platform(*platform), *rest) for module_id, platform, *rest in unpacker]
    except (ValueError, TypeError, msgpack.UnpackException):
        return []


def _row(module_id: bytes, platform: Platform, *rest: Any) -> Row:
    return Row(module_id, platform, *rest)


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogatepass")
    return packed


def read_row(store: Store, module_id: bytes) -> Row | None:
    """The row of a module, read from its file; None where that is gone or damaged. Nothing is quarantined."""
    try:
        with ModuleSections(store, module_id) as module:
            return make_row(module_id, module.records(), module.notes())
    except (OSError, FormatError, UnicodeDecodeError):
        return None


def load_rows(
    store: Store,
    present: Iterable[bytes],
    known: Mapping[bytes, Row],
    progress: Progress | None = None,
    *,
    store_result: bool = True,
) -> dict[bytes, Row]:
    """The rows of the modules that are present; those that cannot be read are left out.

    Args:
        store: the cache directory.
        present: the modules.
        known: rows that are in no roster yet.
        progress: called with (modules read, modules to read) now and then while modules are read.
        store_result: keep what was read for the next tool.
    """
    stored = _read_roster(store)
    present = frozenset(present)
    if present == stored.keys():
        return stored
    rows: dict[bytes, Row] = {}
    missing = []
    for module_id in present:
        row = stored.get(module_id) or known.get(module_id)
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
        _write_roster(store, rows)
    return rows


def _read_roster(store: Store) -> dict[bytes, Row]:
    try:
        data = file_ops.read_file(store.files, store.path(*_NAMES), _MAX_ROSTER)
    except OSError:
        return {}
    start = len(_MAGIC) + CHECK_SIZE
    if data[: len(_MAGIC)] != _MAGIC or check(data[start:]) != data[len(_MAGIC) : start]:
        return {}
    try:
        platforms, rows = _unpack(memoryview(data)[start:])
        known = [Platform(*platform) for platform in platforms]
        return {key: _new((key, known[number], *rest)) for key, number, *rest in rows}
    except (ValueError, TypeError, IndexError, msgpack.UnpackException):
        return {}


def _unpack(content: memoryview) -> Any:
    """What is in a msgpack text; names that are no UTF-8 are rare, and being ready for them takes twice the time."""
    try:
        return msgpack.unpackb(content, raw=False, use_list=False)
    except UnicodeDecodeError:
        return msgpack.unpackb(content, raw=False, use_list=False, unicode_errors="surrogatepass")


def _write_roster(store: Store, rows: Mapping[bytes, Row]) -> None:
    """Publish the roster where that can be done: the next tool reads the modules again otherwise."""
    if store.readonly:
        return
    numbers: dict[Platform, int] = {}
    packed = [
        (row.module_id, numbers.setdefault(row.platform, len(numbers)), *row[2:]) for row in rows.values()
    ]
    content = _pack([[list(platform) for platform in numbers], packed])
    try:
        file_ops.publish(
            store.files, store.temporary, store.path(*_NAMES), [_MAGIC, check(content), content], sync=False
        )
    except OSError:
        return
