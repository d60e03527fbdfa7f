"""Records of a manifest that few hits read: module record, global variables, link types.

Their form is described in `compcache.formats.manifest`.
"""

from __future__ import annotations

from compcache.digest import KEY_SIZE
from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.host import requirement, target_id
from compcache.formats.manifest import LINK_TYPE, MODULE, FunctionRecord
from compcache.native import runtime
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = [
    "GlobalRecord", "ModuleRecord", "decode_global", "decode_link_type", "decode_module", "version_numbers",
]  # fmt: skip


class ModuleRecord(Record):
    """The fields that hold for a whole module.

    `key` (16 bytes) is what the image's module table repeats; `image_kind` names the kind of its image (`compcache.images.kinds`).
    `features` are what its
    functions require of a processor, each text once. `libc` is the C library that it needs; `cpu` and `machine_features` are what LLVM
    was given,
    `made_for` is what these allowed it to use, `made_on` the processor that the code was compiled for exactly. The forms are those of
    `compcache.formats.host`.
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
        """Return the host requirement of functions that use these features; without features, the requirement for mapping the module."""
        return requirement(self.abi, self.triple, self.libc, self.cpu, self.made_for, self.made_on, features)

    def features_of(self, record: FunctionRecord) -> str:
        """Return the processor features that one of its functions requires.

        Raises:
            FormatError: the record belongs to another module.
        """
        for text in self.features:
            if target_id(self.requirement(text)) == record.target_id:
                return text
        raise FormatError(f"the record of function {record.name!r} names a requirement that its module does not have")


class GlobalRecord(Record):
    """One global variable: the place and the form of its storage, and its definition, still serialized.

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


class _Reader:
    """Reads fields from a payload; anything unexpected is a FormatError."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, expected: bytes, what: str) -> None:
        self._data = data
        self._at = 1
        self._what = what
        if data[:1] != expected:
            self.fail(f"has the type {data[:1]!r}")

    def fail(self, reason: str) -> NoReturn:
        """Raise the error of a damaged record."""
        raise FormatError(f"a {self._what} record {reason}")

    def u32(self) -> int:
        """Return the next integer."""
        at = self._at
        self._at = at + 4
        if self._at > len(self._data):
            self.fail("is truncated")
        return int.from_bytes(self._data[at : at + 4], "little")

    def blob(self) -> bytes:
        """Return the next bytes, which are preceded by their number."""
        size = self.u32()
        at = self._at
        self._at = at + size
        if self._at > len(self._data):
            self.fail("is truncated")
        return self._data[at : at + size]

    def text(self) -> str:
        """Read the next text, which is preceded by its length in bytes."""
        try:
            return self.blob().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.fail("holds a text that is not UTF-8")

    def end(self) -> None:
        """Require that all fields are read."""
        if self._at != len(self._data):
            self.fail("is longer than its fields")


def decode_module(payload: bytes) -> ModuleRecord:
    """Return the module record in `payload`. Raises `FormatError` if it is malformed."""
    reader = _Reader(payload, MODULE, "module")
    abi = reader.u32()
    key = reader.blob()
    if len(key) != KEY_SIZE:
        reader.fail(f"has a key of {len(key)} bytes")
    image_kind, triple, cpu, features, *texts = [reader.text() for _ in range(9)]
    reader.end()
    return ModuleRecord(key, image_kind, triple, cpu, tuple(features.split("\n")), *texts, abi)


def decode_link_type(payload: bytes) -> str:
    """Return the link type in the payload of its record. Raises `FormatError` if it is malformed."""
    reader = _Reader(payload, LINK_TYPE, "link type")
    text = reader.text()
    reader.end()
    return text


def decode_global(payload: bytes) -> GlobalRecord:
    """Return the global record in `payload`, its definition still serialized. Raises `FormatError` if it is malformed."""
    return GlobalRecord(*runtime.global_record(payload))


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a version of LLVM, as module records and users write it, in a comparable form: (21, 1, 8).

    Raises:
        ValueError: the text is not a version.
    """
    try:
        return tuple([int(part) for part in version.split(".")])
    except ValueError as error:
        reraise_interrupt(error)
        raise ValueError(f"{version!r} is not a version of LLVM: expected numbers, like 22 or 21.1") from None
