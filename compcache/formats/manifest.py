"""The manifest of a module: records that decode one at a time.

The records section of a module file is a row of frames::

    payload length u32 | check of the payload (8 bytes) | payload

The check is salted with the frame's offset and, but for the module record, personalized with the module's key. That
digests all of the module that its author chose, so that no bytes in it, a constant least of all, can be made to pose as
a record: an attacker who points the index at them would have to know the key before choosing the bytes.
and the offset of a frame in the section is its name: the index points at function records, function records
at needs records, needs records at global records and at one another. A payload is a type byte and the fields
of one class below, integers as little-endian u32, texts as UTF-8 behind their u32 length. The first frame is
the module record. Everything that a hit reads is in these frames, so that a hit pays neither for msgpack nor
for the size of the module; data that only tools need is in the module file's graph section.

Decoding raises `FormatError` for anything that is not exactly a record of the expected type. Counts and lengths
are checked against the payload before they size anything.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache.digest import KEY_SIZE, check
from compcache.errors import FormatError
from compcache.formats.host import required, requirement
from compcache.record import Record, set_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

__all__ = [
    "FUNCTION",
    "GLOBAL",
    "IMAGE_OBJECT",
    "IMAGE_SHARED",
    "MODULE",
    "NEEDS",
    "NO_ENTRY",
    "FunctionRecord",
    "GlobalRecord",
    "ManifestWriter",
    "ModuleRecord",
    "NeedsRecord",
    "decode_function",
    "decode_global",
    "decode_module",
    "decode_needs",
    "encode_function",
    "encode_global",
    "encode_module",
    "encode_needs",
    "image_flag",
    "iterate_frames",
    "read_frame",
    "version_numbers",
]

_FRAME = Struct("<I8s")
_U32 = Struct("<I")
_PAIR = Struct("<II")
_FUNCTION_HEAD = Struct("<cIIIIIII")
_FIRST_READ = 512
_KEY_AT = 9  # where a module record holds its key: behind type, ABI and the length of the key
_MAX_FRAME = 1 << 26
NO_ENTRY = 0xFFFFFFFF
#: How an image is loaded, as the index remembers it: by the dynamic linker, or through ORC.
IMAGE_SHARED, IMAGE_OBJECT = 1, 2
_IMAGE_FLAGS = {"shared": IMAGE_SHARED, "object": IMAGE_OBJECT}

#: The first byte of a payload: which record it is.
MODULE, FUNCTION, NEEDS, GLOBAL = b"M", b"F", b"N", b"G"


class ModuleRecord(Record):
    """The fields that hold for a whole module.

    `key` (16 bytes) is what the image's module table repeats; `image_kind` is "shared" or "object". `features` are those that
    the code requires of a host (``+avx2,+fma``, sorted), `libc` is the C library that it needs; `cpu` and `machine_features` are what LLVM was given.
    """

    __slots__ = ("key", "image_kind", "triple", "cpu", "features", "libc", "machine_features", "llvm_version", "abi")
    key: bytes
    image_kind: str
    triple: str
    cpu: str
    features: str
    libc: str
    machine_features: str
    llvm_version: str
    abi: int

    def requirement(self, features: str = "") -> str:
        """The host requirements of the module; or of one of its functions, which requires these features as well."""
        if features:
            features = ",".join(["+" + name for name in sorted(required(features) | required(self.features))])
        return requirement(self.abi, self.triple, self.libc, self.cpu, features or self.features)


class FunctionRecord(Record):
    """One exported function: where its code and its entry point are, and what loading it needs.

    `function` and `entry` number symbols of the image's module table; `entry` is NO_ENTRY where the function
    has no signature that Python could call, and `signature` then says why. `needs` is the offset of a needs
    record, 0 for none. `features` are those that the function requires of a host beside its module's.
    """

    __slots__ = ("name", "symbol", "signature", "features", "function", "entry", "needs")
    name: str
    symbol: str
    signature: str
    features: str
    function: int
    entry: int
    needs: int

    def __init__(
        self, name: str, symbol: str, signature: str, features: str, function: int, entry: int, needs: int
    ) -> None:
        # One of these is made by every load: a fifth of the time of the general constructor.
        set_field(self, "name", name)
        set_field(self, "symbol", symbol)
        set_field(self, "signature", signature)
        set_field(self, "features", features)
        set_field(self, "function", function)
        set_field(self, "entry", entry)
        set_field(self, "needs", needs)


class NeedsRecord(Record):
    """The needs of a set of functions: import slots, global variables, native symbols, further needs.

    `imports` are (symbol number of the slot, func_name); `globals` are offsets of global records; `natives`
    are symbols of the process that may be missing in another one; `children` are offsets of needs records.
    """

    __slots__ = ("imports", "globals", "natives", "children")
    imports: tuple[tuple[int, str], ...]
    globals: tuple[int, ...]
    natives: tuple[str, ...]
    children: tuple[int, ...]


class GlobalRecord(Record):
    """One global variable: where its storage is, of what form, and its still serialized definition.

    `slot` numbers a symbol of the image's module table; `form` and `size` describe the storage (see
    `compcache.globals.Storage`); `kind` names the class that decodes `payload`.
    """

    __slots__ = ("name", "slot", "form", "size", "kind", "payload")
    name: str
    slot: int
    form: str
    size: int
    kind: str
    payload: bytes


def image_flag(kind: str) -> int:
    """How an image of this kind is loaded, as index entries say it.

    Raises:
        FormatError: this package knows no such kind.
    """
    try:
        return _IMAGE_FLAGS[kind]
    except KeyError:
        raise FormatError(f"the image kind {kind!r} is not known") from None


class _Reader:
    """Takes fields off a payload; anything that does not fit is a FormatError."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, expected: bytes, what: str) -> None:
        self._data = data
        self._at = 1
        self._what = what
        if data[:1] != expected:
            self.fail(f"has the type {data[:1]!r}")

    def fail(self, reason: str) -> NoReturn:
        raise FormatError(f"a {self._what} record {reason}")

    def u32(self) -> int:
        at = self._at
        self._at = at + 4
        if self._at > len(self._data):
            self.fail("is truncated")
        return int.from_bytes(self._data[at : at + 4], "little")

    def blob(self) -> bytes:
        size = self.u32()
        at = self._at
        self._at = at + size
        if self._at > len(self._data):
            self.fail("is truncated")
        return self._data[at : at + size]

    def text(self) -> str:
        try:
            return self.blob().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.fail("holds a text that is not UTF-8")

    def count(self, item_size: int) -> int:
        number = self.u32()
        if number * item_size > len(self._data) - self._at:
            self.fail("is truncated")
        return number

    def end(self) -> None:
        if self._at != len(self._data):
            self.fail("is longer than its fields")


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return _U32.pack(len(data)) + data


def _blob(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def encode_module(record: ModuleRecord) -> bytes:
    """The payload of a module record."""
    texts = (
        record.image_kind, record.triple, record.cpu, record.features, record.libc, record.machine_features,
        record.llvm_version,
    )  # fmt: skip
    return b"".join([MODULE, _U32.pack(record.abi), _blob(record.key), *map(_text, texts)])


def decode_module(payload: bytes) -> ModuleRecord:
    """The module record in `payload`, or FormatError."""
    reader = _Reader(payload, MODULE, "module")
    abi = reader.u32()
    key = reader.blob()
    if len(key) != KEY_SIZE:
        reader.fail(f"has a key of {len(key)} bytes")
    texts = [reader.text() for _ in range(7)]
    reader.end()
    return ModuleRecord(key, *texts, abi)


def encode_function(record: FunctionRecord) -> bytes:
    """The payload of a function record: type, numbers, the lengths of the texts, the texts."""
    texts = [text.encode("utf-8", "surrogatepass") for text in (record.name, record.symbol, record.signature, record.features)]
    return b"".join([_FUNCTION_HEAD.pack(FUNCTION, record.function, record.entry, record.needs, *map(len, texts)), *texts])


def decode_function(payload: bytes) -> FunctionRecord:
    """The function record in `payload`, or FormatError."""
    start = _FUNCTION_HEAD.size
    if len(payload) < start:
        raise FormatError("a function record is truncated")
    kind, function, entry, needs, *sizes = _FUNCTION_HEAD.unpack_from(payload)
    first = start + sizes[0]
    second = first + sizes[1]
    third = second + sizes[2]
    if kind != FUNCTION or third + sizes[3] != len(payload):
        raise FormatError("a function record is damaged")
    try:
        name, symbol, signature, features = [
            text.decode("utf-8", "surrogatepass")
            for text in (payload[start:first], payload[first:second], payload[second:third], payload[third:])
        ]
    except UnicodeDecodeError:
        raise FormatError("a function record holds a text that is not UTF-8") from None
    return FunctionRecord(name, symbol, signature, features, function, entry, needs)


def encode_needs(record: NeedsRecord) -> bytes:
    """The payload of a needs record."""
    parts = [NEEDS, _U32.pack(len(record.imports))]
    for slot, name in record.imports:
        parts += [_U32.pack(slot), _text(name)]
    for offsets in (record.globals, record.children):
        parts += [_U32.pack(len(offsets)), *map(_U32.pack, offsets)]
    parts += [_U32.pack(len(record.natives)), *map(_text, record.natives)]
    return b"".join(parts)


def decode_needs(payload: bytes) -> NeedsRecord:
    """The needs record in `payload`, or FormatError."""
    reader = _Reader(payload, NEEDS, "needs")
    imports = tuple([(reader.u32(), reader.text()) for _ in range(reader.count(8))])
    globals_ = tuple([reader.u32() for _ in range(reader.count(4))])
    children = tuple([reader.u32() for _ in range(reader.count(4))])
    natives = tuple([reader.text() for _ in range(reader.count(4))])
    reader.end()
    return NeedsRecord(imports, globals_, natives, children)


def encode_global(record: GlobalRecord) -> bytes:
    """The payload of a global record."""
    numbers = _PAIR.pack(record.slot, record.size)
    texts = map(_text, (record.name, record.form, record.kind))
    return b"".join([GLOBAL, numbers, *texts, _blob(record.payload)])


def decode_global(payload: bytes) -> GlobalRecord:
    """The global record in `payload`, or FormatError. The definition in it stays serialized."""
    reader = _Reader(payload, GLOBAL, "global")
    slot, size = reader.u32(), reader.u32()
    name, form, kind = reader.text(), reader.text(), reader.text()
    definition = reader.blob()
    reader.end()
    return GlobalRecord(name, slot, form, size, kind, definition)


class ManifestWriter:
    """Collects frames and tells their offsets."""

    __slots__ = ("_frames", "_key", "size")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._key = b""
        self.size = 0

    def add(self, payload: bytes) -> int:
        """Append a frame, the module record first; its offset."""
        offset = self.size
        self._frames += (_FRAME.pack(len(payload), check(payload, offset, self._key)), payload)
        if not offset:
            self._key = _key_in(payload)
        self.size += _FRAME.size + len(payload)
        return offset

    def content(self) -> bytes:
        """The records section."""
        return b"".join(self._frames)


def _key_in(payload: bytes) -> bytes:
    """The key in the payload of a module record; empty where it is not one."""
    return payload[_KEY_AT : _KEY_AT + KEY_SIZE] if payload[:1] == MODULE else b""


def read_frame(read: Callable[[int, int], bytes], offset: int, limit: int, key: bytes) -> bytes:
    """The verified payload of a frame.

    Args:
        read: gives (offset, size) bytes of the records section.
        offset: where the frame is in it.
        limit: the size of the section.
        key: the module's key, which does not matter for the module record.

    Raises:
        FormatError: the frame does not exist or is damaged.
    """
    data = read(offset, min(_FIRST_READ, limit - offset)) if 0 <= offset < limit else b""
    if len(data) < _FRAME.size:
        raise FormatError(f"no record at offset {offset}")
    length, expected = _FRAME.unpack_from(data)
    end = _FRAME.size + length
    if length > _MAX_FRAME or offset + end > limit:
        raise FormatError(f"the record at offset {offset} is damaged")
    if len(data) < end:
        data += read(offset + len(data), end - len(data))
    payload = data[_FRAME.size : end]
    if len(payload) != length or check(payload, offset, key if offset else b"") != expected:
        raise FormatError(f"the record at offset {offset} is damaged")
    return payload


def version_numbers(version: str) -> tuple[int, ...]:
    """A version of LLVM, as module records and users write it, in a form that compares: (21, 1, 8).

    Raises:
        ValueError: it is not a version.
    """
    try:
        return tuple([int(part) for part in version.split(".")])
    except ValueError:
        raise ValueError(f"{version!r} is not a version of LLVM: expected numbers, like 22 or 21.1") from None


def iterate_frames(section: bytes) -> Iterator[tuple[int, bytes]]:
    """The offset and verified payload of every frame of a whole records section, in order.

    Raises:
        FormatError: a frame is damaged.
    """
    offset = 0
    key = b""
    while offset < len(section):
        payload = read_frame(lambda at, size: section[at : at + size], offset, len(section), key)
        if not offset:
            key = _key_in(payload)
        yield offset, payload
        offset += _FRAME.size + len(payload)
