"""Definitions that are blocks of memory: bytes, str and copies of buffers. The variable contains the block or a pointer to it."""

from __future__ import annotations

from struct import calcsize
from struct import error as StructError  # noqa: N812 - it is a class

from compcache.globals.definition import GlobalDefinition, Storage, invalid_error, misfit_error, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.globals.definition import LoadContext

__all__ = ["Buffer", "Bytes", "Text"]

_POINTER_SIZE = 8
#: The formats of elements that are addresses: ``struct``'s P, objects of NumPy and ctypes, and ctypes' pointers, texts and functions
#: (PEP 3118).
_ADDRESSES = frozenset("POzZX&")


def _encode_span(data: bytes, count: int, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
    """Return the bytes for a variable whose value is a block of memory, and an object that keeps the block alive, or None.

    Args:
        data: the block.
        count: the number of elements, which a span contains as its length.
        storage: the storage of the variable. It contains the block, or a pointer to a copy of the block.
        context: the services for loading.

    Raises:
        GlobalValidationError: the block does not fit the storage.
    """
    if storage.form == "inline":
        if len(data) > storage.size:
            raise misfit_error(f"a value of {len(data)} bytes", storage)
        return data.ljust(storage.size, b"\0"), None
    if storage.form not in ("pointer", "span"):
        hint = "use a number as the value, or declare a pointer, an array or {ptr, i64}"
        raise invalid_error(f"a block of {len(data)} bytes does not fit the variable's storage ({storage}): {hint}")
    block = bytearray(data + b"\0")
    address = context.address_of(block).to_bytes(_POINTER_SIZE, "little")
    length = count.to_bytes(8, "little") if storage.form == "span" else b""
    return address + length, memoryview(block)  # the view keeps the bytearray from being resized


@register
class Bytes(GlobalDefinition):
    """Bytes, followed by a NUL. The variable contains a pointer, a pointer and the number of bytes, or the bytes.

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
        return _encode_span(self.value, len(self.value), storage, context)


@register
class Text(GlobalDefinition):
    """A text in UTF-8, followed by a NUL. The length of a span is the number of bytes.

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
        return _encode_span(data, len(data), storage, context)


def _plain_format(format_: str) -> str:
    """Remove field names and complex numbers, whose letters look like addresses, from a buffer format."""
    plain = "".join(format_.split(":")[::2])  # a name is between two colons
    for number in ("Zf", "Zd", "Zg"):
        plain = plain.replace(number, "")
    return plain


@register
class Buffer(GlobalDefinition):
    """A copy of a buffer, made by `Buffer.of`. The length of a span is the number of elements.

    Every load has its own copy, which the code may change. The elements are stored in a variable that is an array. Their type and number
    are checked when the module is added.

    Args:
        data: the elements, in C order.
        format: the type of the elements, as a format of `struct`.
    """

    __slots__ = ("data", "format")
    data: bytes
    format: str
    kind = "buffer"

    @classmethod
    def of(cls, exporter: Any) -> Buffer:
        """Copy the content of a buffer, in C order.

        Args:
            exporter: an object that supports the buffer protocol, such as bytes, `array.array`, a NumPy array or a `memoryview`, with
                any shape and any element type of `struct`.

        Raises:
            GlobalValidationError: the elements are addresses, such as Python objects or ctypes pointers, which are valid in only one
                process, or a time of NumPy, whose unit the buffer lacks.
        """
        if getattr(getattr(exporter, "dtype", None), "kind", "") in ("m", "M"):  # NumPy's times, without an import of NumPy
            raise invalid_error(f"a {type(exporter).__name__} has a unit, which a buffer does not contain: pass an integer")
        with memoryview(exporter) as view:
            if _ADDRESSES.intersection(_plain_format(view.format)):
                raise invalid_error(
                    f"a buffer of format {view.format!r} contains addresses, which are not valid in other processes: pass numbers"
                )
            return cls(view.tobytes(), view.format)

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes, or 1 if elements are empty or the `struct` module does not support the format."""
        try:
            return calcsize(self.format) or 1
        except StructError:
            return 1

    def encode(self) -> bytes:
        return self.format.encode() + b"\0" + self.data

    @classmethod
    def decode(cls, payload: bytes) -> Buffer:
        format_, _, data = payload.partition(b"\0")
        return cls(data, format_.decode())

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _encode_span(self.data, len(self.data) // self.itemsize, storage, context)
