"""The codec for bodies of small functions, which importing modules can inline.

Bodies are at the end of a module file's bitcode section: a zlib stream, its size u32 and the magic. The stream is a msgpack array of the
version and, for each function, ``[func_name, instructions, code, natives, imports]``. Code is LLVM assembly of a module that defines the
function as it was before optimization. Functions with content names have these names in it, always in quotes. Natives are the functions of
the platform that the function calls. Imports are the functions with content names that it calls.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError
from compcache.interrupts import as_format_error
from compcache.messagepack import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Body", "encode_bodies", "read_bodies"]

_VERSION = 1
_MAGIC = b"CCBODIES"
_TAIL = Struct("<I8s")
_MOST = 1 << 26  # bytes of the decompressed stream


class Body(NamedTuple):
    """The body of a function. `instructions` is its number of instructions, as inliners count them."""

    name: str
    instructions: int
    code: str
    natives: tuple[str, ...]
    imports: tuple[str, ...]


def encode_bodies(bodies: Iterable[Body]) -> bytes:
    """Encode bodies for the end of a bitcode section. The result is empty if there are no bodies."""
    rows = [list(body) for body in bodies]
    if not rows:
        return b""
    stream = zlib.compress(pack([_VERSION, rows]), 1)
    return stream + _TAIL.pack(len(stream), _MAGIC)


def read_bodies(read: Callable[[int, int], bytes], end: int) -> dict[str, Body]:
    """Decode the bodies in a bitcode section, by func_name. The result is empty if there are none, or only of another version.

    `read(offset, size)` returns bytes of the section, whose size is `end`. Raise `FormatError` if the bodies are damaged.
    """
    if end < _TAIL.size:
        return {}
    size, magic = _TAIL.unpack(read(end - _TAIL.size, _TAIL.size))
    if magic != _MAGIC:
        return {}
    if size > end - _TAIL.size:
        raise FormatError(f"the inlinable bodies of a module have {size} bytes, more than the {end - _TAIL.size} bytes of their section")
    with as_format_error("the inlinable bodies of a module are damaged"):
        version, rows = unpack(zlib.decompressobj().decompress(read(end - _TAIL.size - size, size), _MOST))
        return {row[0]: _checked_body(*row) for row in rows} if version == _VERSION else {}


def _checked_body(name: object, instructions: object, code: object, natives: object, imports: object) -> Body:
    """Create a body from the decoded fields of a row. Raise `TypeError` or `ValueError` if a field is not valid."""
    fields = zip(Body._fields, (name, instructions, code, natives, imports), (str, int, str, list, list), strict=True)
    for field, value, kind in fields:
        if type(value) is not kind:
            raise TypeError(f"the field {field} of a body is of type {type(value).__name__}, not {kind.__name__}")
    for symbol in (*natives, *imports):  # type: ignore[misc] # lists
        if not isinstance(symbol, str):
            raise TypeError(f"the body of {name!r} needs a symbol of type {type(symbol).__name__}, not str")
    if instructions < 0:  # type: ignore[operator] # an int
        raise ValueError(f"the body of {name!r} has {instructions} instructions, but the number must not be negative")
    return Body(name, instructions, code, tuple(natives), tuple(imports))  # type: ignore[arg-type] # checked above
