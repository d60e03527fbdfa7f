"""The bodies of small functions, for modules that import these: at the end of a module file's bitcode section.

Behind the other streams stand a zlib stream, its size u32 and `MAGIC`. The stream is a msgpack array of the version and, for each function,
``[func_name, instructions, code, natives, imports]``: code is LLVM assembly of one module that defines the function as it was before it was
optimized, each function that has a name of content under that name, always in quotes; natives are the functions of the platform that it
calls, imports the functions with names of content.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError, MissingPackageError
from compcache.files import reraise_interrupt

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "compiling") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Body", "encode_bodies", "read_bodies"]

_VERSION = 1
_MAGIC = b"CCBODIES"
_TAIL = Struct("<I8s")
_MOST = 1 << 26


class Body(NamedTuple):
    """The body of a function. `instructions` is its size as inliners count it."""

    name: str
    instructions: int
    code: str
    natives: tuple[str, ...]
    imports: tuple[str, ...]


def encode_bodies(bodies: Iterable[Body]) -> bytes:
    """Encode the bodies for the end of the file; empty if there are none."""
    rows = [list(body) for body in bodies]
    if not rows:
        return b""
    stream = zlib.compress(msgpack.packb([_VERSION, rows], unicode_errors="surrogatepass"), 1)
    return stream + _TAIL.pack(len(stream), _MAGIC)


def read_bodies(read: Callable[[int, int], bytes], end: int) -> dict[str, Body]:
    """Return the bodies, by func_name, in a bitcode section that ends at this size; `read` returns bytes from an offset on.

    Raises:
        FormatError: they do not decode.
    """
    if end < _TAIL.size:
        return {}
    size, magic = _TAIL.unpack(read(end - _TAIL.size, _TAIL.size))
    if magic != _MAGIC:
        return {}
    try:
        if size > end - _TAIL.size:
            raise FormatError("the bodies of functions are larger than their section")
        unpacking = zlib.decompressobj()
        version, rows = msgpack.unpackb(
            unpacking.decompress(read(end - _TAIL.size - size, size), _MOST), unicode_errors="surrogatepass", strict_map_key=False
        )
        return {row[0]: _body(*row) for row in rows} if version == _VERSION else {}
    except (zlib.error, ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        raise FormatError(f"the bodies of functions do not decode: {error}") from error


def _body(name: object, instructions: object, code: object, natives: object, imports: object) -> Body:
    """Return a body from the fields of a row; TypeError if they have other types."""
    if not isinstance(natives, list) or not isinstance(imports, list) or not isinstance(instructions, int) or instructions < 0:
        raise TypeError("a field of a function's body has the wrong type")
    if not all(isinstance(text, str) for text in (name, code, *natives, *imports)):
        raise TypeError("a field of a function's body is not text")
    return Body(name, instructions, code, tuple(natives), tuple(imports))  # type: ignore[arg-type] # looked at above
