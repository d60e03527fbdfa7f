"""Blocks of memory: bytes, texts and snapshots of buffers, beside the image or in the variable."""

from __future__ import annotations

from struct import calcsize
from struct import error as StructError  # noqa: N812 - it is a class

from compcache.globals.definition import GlobalDefinition, Storage, invalid, misfit, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.globals.definition import LoadContext

__all__ = ["Buffer", "Bytes", "Text"]

_POINTER_SIZE = 8
#: Elements that are addresses: ``struct``'s P, NumPy's and ctypes' objects, and pointers, texts and functions of ctypes (PEP 3118).
_ADDRESSES = frozenset("POzZX&")


def _pack_span(data: bytes, count: int, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
    """Return mutable bytes beside the image that belong to this load."""
    if storage.form == "inline":
        if len(data) > storage.size:
            raise misfit(f"a value of {len(data)} bytes", storage)
        return data.ljust(storage.size, b"\0"), None
    if storage.form not in ("pointer", "span"):
        hint = "give a number, or declare a pointer, an array or {ptr, i64}"
        raise invalid(f"a block of {len(data)} bytes does not fit its storage ({storage}): {hint}")
    keep = bytearray(data + b"\0")
    address = context.address_of(keep).to_bytes(_POINTER_SIZE, "little")
    length = count.to_bytes(8, "little") if storage.form == "span" else b""
    return address + length, memoryview(keep)  # the view keeps the bytearray from being resized


@register
class Bytes(GlobalDefinition):
    """Bytes, followed by a NUL. The variable holds a pointer, a pointer and their number, or the bytes themselves.

    Args:
        value: the bytes, without the NUL.
    """

    __slots__ = ("value",)
    value: bytes
    kind = "bytes"

    def encode(self) -> bytes:
        return bytes(self.value)

    @classmethod
    def decode(cls, payload: bytes) -> Bytes:
        return cls(payload)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _pack_span(self.value, len(self.value), storage, context)


@register
class Text(GlobalDefinition):
    """A text as UTF-8, followed by a NUL; the length counts bytes.

    Args:
        value: the text.
    """

    __slots__ = ("value",)
    value: str
    kind = "text"

    def encode(self) -> bytes:
        return self.value.encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, payload: bytes) -> Text:
        return cls(payload.decode("utf-8", "surrogatepass"))

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        data = self.encode()
        return _pack_span(data, len(data), storage, context)


def _without_names(format_: str) -> str:
    """Return a format without parts that cannot be addresses: the names of fields, complex numbers."""
    plain = "".join(format_.split(":")[::2])
    for number in ("Zf", "Zd", "Zg"):
        plain = plain.replace(number, "")
    return plain


@register
class Buffer(GlobalDefinition):
    """A snapshot of a buffer, taken by `Buffer.of`; the length of a span counts elements.

    Every load decodes its own copy, which the code may change. An array variable receives its elements; their type and number are compared
    when the module is added.

    Args:
        data: the elements, in C order.
        format: their type, in the format of `struct`.
    """

    __slots__ = ("data", "format")
    data: bytes
    format: str
    kind = "buffer"

    @classmethod
    def of(cls, exporter: Any) -> Buffer:
        """Return a snapshot of the content of an object with a buffer, in C order.

        Args:
            exporter: bytes, an array of NumPy or of `array`, a `memoryview`: any shape, any element type that `struct` knows.

        Raises:
            GlobalValidationError: its elements are addresses, which are valid in one process only: objects, pointers and functions of
                ctypes.
        """
        with memoryview(exporter) as view:
            if _ADDRESSES.intersection(_without_names(view.format)):
                raise invalid(f"a buffer of format {view.format!r} holds addresses of this process, which are not valid in any other")
            return cls(view.tobytes(), view.format)

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes; 1 if the struct module does not know the format."""
        try:
            return calcsize(self.format)
        except StructError:
            return 1

    def encode(self) -> bytes:
        return self.format.encode() + b"\0" + self.data

    @classmethod
    def decode(cls, payload: bytes) -> Buffer:
        format_, _, data = payload.partition(b"\0")
        return cls(data, format_.decode())

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _pack_span(self.data, len(self.data) // self.itemsize, storage, context)
