"""The records of a manifest that few hits read: module record, global records and link type records.

`compcache.formats.manifest` describes their form.
"""

from __future__ import annotations

from compcache.digest import KEY_SIZE
from compcache.errors import FormatError
from compcache.formats.host import requirement, target_id
from compcache.formats.manifest import LINK_TYPE, MODULE, FunctionRecord
from compcache.interrupts import reraise_interrupt
from compcache.native import runtime
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = [
    "GlobalRecord", "ModuleRecord", "decode_global", "decode_link_type", "decode_module", "version_numbers",
]  # fmt: skip


class ModuleRecord(Record):
    """The properties of a whole module.

    `key` (16 bytes) is also in the image's module table. `image_kind` is the name of the image's kind (`compcache.images.kinds`).
    `features` has the distinct texts of the processor features that its functions require. `libc` is the C library that it needs. `cpu` and
    `machine_features` are the CPU and features that were given to LLVM. `made_for` are the features that LLVM was allowed to use. `made_on`
    is the identity of the processor for which the code was compiled exactly, or empty. The forms are described in `compcache.formats.host`.
    """

    __slots__ = ("key", "image_kind", "triple", "cpu", "features", "libc", "machine_features", "llvm_version", "made_for", "made_on", "abi")
    key: bytes
    image_kind: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    libc: str
    machine_features: str
    llvm_version: str
    made_for: str
    made_on: str
    abi: int

    def requirement(self, features: str = "") -> str:
        """Return the requirement of functions with these processor features, or by default the requirement for mapping the module."""
        return requirement(self.abi, self.triple, self.libc, self.cpu, self.made_for, self.made_on, features)

    def features_of(self, record: FunctionRecord) -> str:
        """Return the processor features that a function of this module requires.

        Raise `FormatError` if the module does not have the requirement of the function's record.
        """
        for text in self.features:
            if target_id(self.requirement(text)) == record.target_id:
                return text
        raise FormatError(f"the record of the function {record.name!r} refers to a requirement that its module does not have")


class GlobalRecord(Record):
    """A global variable: its storage, and its serialized definition.

    `slot` is a symbol number in the image's module table. `form` and `size` describe the storage (`compcache.globals.Storage`). `kind`
    names the class that decodes `payload`.
    """

    __slots__ = ("name", "slot", "form", "size", "kind", "payload")
    name: str
    slot: int
    form: str
    size: int
    kind: str
    payload: bytes


class _Reader:
    """Reads the fields of a payload in order. All methods raise `FormatError` for a malformed record."""

    __slots__ = ("_at", "_data", "_record")

    def __init__(self, data: bytes, expected: bytes, record: str) -> None:
        self._data = data
        self._at = 1
        self._record = record
        if data[:1] != expected:
            self.fail(f"has the type {data[:1]!r}, not {expected!r}")

    def fail(self, reason: str) -> NoReturn:
        """Raise `FormatError` with the predicate `reason` about the record."""
        raise FormatError(f"the {self._record} record {reason}")

    def u32(self) -> int:
        """Return the next integer. Raise `FormatError` if the payload ends before it."""
        offset = self._at
        self._at = offset + 4
        if self._at > len(self._data):
            self.fail("is truncated")
        return int.from_bytes(self._data[offset : offset + 4], "little")

    def blob(self) -> bytes:
        """Return the next field of bytes, which is preceded by its size. Raise `FormatError` if the payload ends before it."""
        size = self.u32()
        offset = self._at
        self._at = offset + size
        if self._at > len(self._data):
            self.fail("is truncated")
        return self._data[offset : offset + size]

    def text(self) -> str:
        """Return the next text, which is preceded by its length in bytes. Raise `FormatError` if it is truncated or not UTF-8."""
        try:
            return self.blob().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.fail("contains a text that is not UTF-8")

    def end(self) -> None:
        """Raise `FormatError` if the payload does not end after the last field."""
        if self._at != len(self._data):
            self.fail("is longer than its fields")


def decode_module(payload: bytes) -> ModuleRecord:
    """Decode a module record. Raise `FormatError` if it is malformed."""
    reader = _Reader(payload, MODULE, "module")
    abi = reader.u32()
    key = reader.blob()
    if len(key) != KEY_SIZE:
        reader.fail(f"has a key of {len(key)} bytes, not of {KEY_SIZE} bytes")
    image_kind, triple, cpu, features, *texts = [reader.text() for _ in range(9)]
    reader.end()
    return ModuleRecord(key, image_kind, triple, cpu, tuple(features.split("\n")), *texts, abi)


def decode_link_type(payload: bytes) -> str:
    """Decode a link type record. Raise `FormatError` if it is malformed."""
    reader = _Reader(payload, LINK_TYPE, "link type")
    text = reader.text()
    reader.end()
    return text


def decode_global(payload: bytes) -> GlobalRecord:
    """Decode a global record. Its definition stays encoded. Raise `FormatError` if the record is malformed."""
    return GlobalRecord(*runtime.global_record(payload))


def version_numbers(version: str) -> tuple[int, ...]:
    """Parse an LLVM version from a module record or a setting, for comparisons: (21, 1, 8), for example.

    Raise `ValueError` if the text is not a version.
    """
    try:
        return tuple([int(number) for number in version.split(".")])
    except ValueError as error:
        reraise_interrupt(error)
        raise ValueError(f"{version!r} is not a version of LLVM: use numbers like 22 or 21.1") from None
