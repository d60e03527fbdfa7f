"""The parts of a module: the realizations of functions in other modules whose code is in its image.

Their record is the frame behind that of the makers, in modules that have parts. It says for each which function it is, in which module that was
found, and what it was by its content; parts of parts are among them. It is for people and tools: a part stands for what it does by its
name of content, so that whoever loads the module needs none of them. What readers decide by, who has made the code, is in the record of makers, which has those
of all parts.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import DIGEST_SIZE
from compcache.errors import FormatError
from compcache.formats.index import CONTENT_SIZE
from compcache.formats.makers import MAKERS
from compcache.formats.manifest import FRAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PARTS", "Part", "decode_parts", "encode_parts", "read_parts"]

#: The first byte of the payload.
PARTS = b"P"
_ROW = Struct(f"<{DIGEST_SIZE}s{CONTENT_SIZE}sI")  # module_id, digest of the content, bytes of the name


class Part(NamedTuple):
    """A function of another module whose code is in this one; `content` is its digest of content, zeros where it is not known."""

    name: str
    module_id: bytes
    content: bytes = bytes(CONTENT_SIZE)


def encode_parts(parts: Iterable[Part]) -> bytes:
    """The payload of the record: each part once, sorted."""
    rows = []
    for part in sorted(set(parts)):
        name = part.name.encode("utf-8", "surrogatepass")
        rows += [_ROW.pack(part.module_id, part.content, len(name)), name]
    return b"".join([PARTS, *rows])


def decode_parts(payload: bytes) -> tuple[Part, ...]:
    """The parts in the payload.

    Raises:
        FormatError: it is not the record of parts.
    """
    if payload[:1] != PARTS:
        raise FormatError(f"a record of parts has the type {payload[:1]!r}")
    parts, at = [], 1
    while at < len(payload):
        start = at + _ROW.size
        if start > len(payload):
            raise FormatError("a record of parts is truncated")
        module_id, content, size = _ROW.unpack_from(payload, at)
        at = start + size
        if at > len(payload) or not size:
            raise FormatError("a record of parts is truncated")
        try:
            parts.append(Part(payload[start:at].decode("utf-8", "surrogatepass"), module_id, content))
        except UnicodeDecodeError:
            raise FormatError("a record of parts holds a text that is not UTF-8") from None
    return tuple(parts)


def read_parts(read_record: Callable[[int], bytes], size: int) -> tuple[Part, ...]:
    """The parts of a module whose records, of so many bytes in all, this function reads; empty where it has none.

    Raises:
        FormatError: a record is damaged.
    """
    offset = FRAME.size + len(read_record(0))
    for kind in (MAKERS, PARTS):
        payload = read_record(offset) if offset < size else b""
        if payload[:1] == PARTS:
            return decode_parts(payload)
        if payload[:1] != kind:
            break
        offset += FRAME.size + len(payload)
    return ()
