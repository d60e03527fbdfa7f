"""Encodes values as MessagePack, and decodes them. Only this file imports `msgpack`; a hit does not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.errors import MissingPackageError

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "compiling, listing or sharing functions") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["pack", "unpack", "unpack_stream"]

#: Names can be text that is not valid UTF-8. Such text is rare, and allowing it takes twice the time.
_ANY_TEXT = "surrogatepass"


def pack(value: object) -> bytes:
    """Encode a value."""
    packed: bytes
    try:
        packed = msgpack.packb(value)
    except UnicodeEncodeError:
        packed = msgpack.packb(value, unicode_errors=_ANY_TEXT)
    return packed


def unpack(data: bytes | memoryview, *, use_list: bool = True) -> Any:
    """Decode a value. Arrays are decoded as tuples if `use_list` is false. Raise `ValueError` if the data is malformed."""
    try:
        return msgpack.unpackb(data, use_list=use_list)
    except UnicodeDecodeError:
        return msgpack.unpackb(data, use_list=use_list, unicode_errors=_ANY_TEXT)


def unpack_stream(parts: Iterable[bytes]) -> Iterator[Any]:
    """Yield the values in a stream, given in parts of any size. Arrays become tuples. Raise `ValueError` if the data is malformed."""
    unpacker = msgpack.Unpacker(use_list=False, unicode_errors=_ANY_TEXT)
    for part in parts:
        unpacker.feed(part)
        yield from unpacker
