"""Writes manifests, and reads whole manifests. Hits only read single records (`compcache.formats.manifest`)."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from compcache.digest import KEY_SIZE, check
from compcache.formats.entry import ENTRY, PICKLED, EntryRecord, decode_entry, index_name
from compcache.formats.linked import mark_linked
from compcache.formats.manifest import (
    FRAME,
    FUNCTION,
    FUNCTION_HEAD,
    GLOBAL,
    IMAGE_NONE,
    IMAGE_OBJECT,
    IMAGE_OTHER,
    IMAGE_SHARED,
    LINK_TYPE,
    MODULE,
    NEEDS,
    decode_function,
    decode_needs,
    read_frame,
)
from compcache.formats.records import decode_global, decode_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.manifest import FunctionRecord, NeedsRecord
    from compcache.formats.records import GlobalRecord, ModuleRecord

__all__ = [
    "PICKLED_GLOBAL", "ManifestWriter", "WholeManifest", "encode_function", "encode_global", "encode_link_type", "encode_module",
    "encode_needs", "image_flag", "iterate_frames",
]  # fmt: skip

_U32 = Struct("<I")
_PAIR = Struct("<II")
_KEY_AT = 9  # the offset of the key in a module record, after the type, the ABI version and the length of the key
#: The kind of globals that are unpickled.
PICKLED_GLOBAL = "pickle"
#: The slot number of an import for which the image has places, and the size of a link type.
_NO_SLOT, _LINK_TYPE_SIZE = 0xFFFFFFFF, 12
_IMAGE_FLAGS = {"shared": IMAGE_SHARED, "object": IMAGE_OBJECT, "data": IMAGE_NONE}


def image_flag(kind: str) -> int:
    """Return the flag of index entries for images of a kind."""
    return _IMAGE_FLAGS.get(kind, IMAGE_OTHER)


def _encode_text(value: str) -> bytes:
    """Encode a text, preceded by its length in bytes."""
    data = value.encode("utf-8", "surrogatepass")
    return _U32.pack(len(data)) + data


def _encode_blob(value: bytes) -> bytes:
    """Return bytes, preceded by their number."""
    return _U32.pack(len(value)) + value


def encode_module(record: ModuleRecord) -> bytes:
    """Encode a module record."""
    texts = (
        record.image_kind, record.triple, record.cpu, "\n".join(record.features), record.libc, record.machine_features,
        record.llvm_version, record.made_for, record.made_on,
    )  # fmt: skip
    return b"".join([MODULE, _U32.pack(record.abi), _encode_blob(record.key), *map(_encode_text, texts)])


def encode_function(record: FunctionRecord) -> bytes:
    """Encode a function record: type, numbers, lengths of the texts, texts, and the link type if it is known."""
    texts = [text.encode("utf-8", "surrogatepass") for text in (record.name, record.symbol, record.signature)]
    head = FUNCTION_HEAD.pack(FUNCTION, record.function, record.entry, record.needs, record.target_id, *map(len, texts))
    return b"".join([head, *texts, record.link_type])


def encode_needs(record: NeedsRecord) -> bytes:
    """Encode a needs record. Link types are written if one is known, and places if there are any or link types follow."""
    parts = [NEEDS, _U32.pack(len(record.imports))]
    for key, name, _, _ in record.imports:
        parts += [_U32.pack(key if isinstance(key, int) else _NO_SLOT), _encode_text(name)]
    for offsets in (record.globals, record.children):
        parts += [_U32.pack(len(offsets)), *map(_U32.pack, offsets)]
    parts += [_U32.pack(len(record.natives)), *map(_encode_text, record.natives)]
    has_types = any(link_type for _, _, _, link_type in record.imports)
    if has_types or any(places for _, _, places, _ in record.imports):
        parts += [_encode_blob(places) for _, _, places, _ in record.imports]
    if has_types:
        parts += [link_type or bytes(_LINK_TYPE_SIZE) for _, _, _, link_type in record.imports]
    return b"".join(parts)


def encode_link_type(text: str) -> bytes:
    """Encode a link type record."""
    return LINK_TYPE + _encode_text(text)


def encode_global(record: GlobalRecord) -> bytes:
    """Encode a global record."""
    numbers = _PAIR.pack(record.slot, record.size)
    texts = map(_encode_text, (record.name, record.form, record.kind))
    return b"".join([GLOBAL, numbers, *texts, _encode_blob(record.payload)])


class ManifestWriter:
    """Collects the frames of a records section. `size` is the size of the section so far."""

    __slots__ = ("_frames", "_key", "size")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._key = b""
        self.size = 0

    def add(self, payload: bytes) -> int:
        """Append a frame, and return its offset. The first frame must be the module record."""
        offset = self.size
        self._frames += (FRAME.pack(len(payload), check(payload, offset, self._key)), payload)
        if not offset:
            self._key = _key_in(payload)
        self.size += FRAME.size + len(payload)
        return offset

    def content(self) -> bytes:
        """Return the records section."""
        return b"".join(self._frames)


def _key_in(payload: bytes) -> bytes:
    """Return the key in the payload of a module record, or b"" for other payloads."""
    return payload[_KEY_AT : _KEY_AT + KEY_SIZE] if payload[:1] == MODULE else b""


def iterate_frames(section: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the verified payload of each frame of a records section, in order. Raise `FormatError` if one is damaged."""
    offset = 0
    key = b""
    while offset < len(section):
        payload = read_frame(lambda at, size: section[at : at + size], offset, len(section), key)
        if not offset:
            key = _key_in(payload)
        yield offset, payload
        offset += FRAME.size + len(payload)


class WholeManifest:
    """A complete records section. Its frames are verified when it is created. `header` is the module record.

    Raises:
        FormatError: a record is damaged, or the first record is not a module record. All methods raise it.
    """

    __slots__ = ("_frames", "header")

    def __init__(self, records: bytes) -> None:
        self._frames = list(iterate_frames(records))
        self.header = decode_module(self._frames[0][1] if self._frames else b"")

    def functions(self) -> list[tuple[str, int, str]]:
        """Return the (name, record offset, requirement) of every function. Raise `FormatError` for a damaged record."""
        records = [(offset, decode_function(payload)) for offset, payload in self._payloads_of(FUNCTION)]
        return [(record.name, offset, self.header.requirement(self.header.features_of(record))) for offset, record in records]

    def entries(self) -> list[tuple[int, EntryRecord]]:
        """Return the (record offset, entry) of all entries of data. Raise `FormatError` for a damaged record."""
        return [(offset, decode_entry(payload)) for offset, payload in self._payloads_of(ENTRY)]

    def indexed(self) -> list[tuple[str, int, str]]:
        """Return rows (name or `index_name`, record offset, requirement) of functions and entries. See `functions` for the exception."""
        requirement = self.header.requirement()
        entries = self.entries()
        functions = mark_linked(self.functions(), [record.kind for _, record in entries])
        return functions + [(index_name(record.kind, record.name), offset, requirement) for offset, record in entries]

    def imports(self) -> tuple[str, ...]:
        """Return the func_names of all functions and variables that the module imports, without duplicates.

        Raise `FormatError` for a damaged record.
        """
        needs = [decode_needs(payload) for _, payload in self._payloads_of(NEEDS)]
        return tuple(dict.fromkeys(name for record in needs for _, name, _, _ in record.imports))

    def is_pickled(self) -> bool:
        """Return whether loading a global variable of the module, or reading one of its entries, unpickles data.

        Raise `FormatError` for a damaged record.
        """
        if any(decode_global(payload).kind == PICKLED_GLOBAL for _, payload in self._payloads_of(GLOBAL)):
            return True
        return any(record.kind.startswith(PICKLED) for _, record in self.entries())

    def _payloads_of(self, record_type: bytes) -> Iterator[tuple[int, bytes]]:
        """Return the offsets and the payloads of the records of a type."""
        return ((offset, payload) for offset, payload in self._frames if payload[:1] == record_type)
