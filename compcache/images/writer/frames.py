"""Reads unwinding tables (``.eh_frame``), and builds the index by which unwinders find an entry (``.eh_frame_hdr``).

Layout: Linux Standard Base Core Specification 5.0, "Exception Frames".
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["Frame", "index_of_frames", "index_size", "read_frames"]

_START = Struct("<II")  # length, and 0 or the distance to the common part (CIE) of several entries
_PC = {0x1B: Struct("<i"), 0x1C: Struct("<q")}  # distances of 4 and 8 bytes
_ALIGNMENT, _MAX_LENGTH = 4, 0xFFFFFFF0
_POINTER_SIZES = {0x0: 8, 0x3: 4, 0x4: 8, 0xB: 4, 0xC: 8}
_ABSENT = 0xFF
_HEADER = Struct("<4BiI")
_VERSION, _DISTANCE4, _COUNT4, _FROM_INDEX4 = 1, 0x1B, 0x03, 0x3B
_ROW = Struct("<ii")


class Frame(NamedTuple):
    """An entry of an unwinding table, for one function.

    `offset` is its offset in its section. `place` is the offset of the distance to the function. `encoding` is the encoding of that
    distance, a key of `_PC`.
    """

    offset: int
    place: int
    encoding: int


def read_frames(content: bytes, relocated: Collection[int]) -> tuple[Frame, ...]:
    """Return the entries of a section ``.eh_frame`` before relocation. `relocated` has the offsets of its relocations.

    Raises:
        FormatError: an entry is malformed, has no relocation for its function, or has an encoding that LLVM does not write.
        IndexError, ValueError: the section ends within a common part.
        struct.error: the section ends within the first eight bytes of an entry.
    """
    frames: list[Frame] = []
    encodings: dict[int, int] = {}
    position = 0
    while position < len(content):
        length, distance = _START.unpack_from(content, position)
        end = position + 4 + length
        if length < _ALIGNMENT or length >= _MAX_LENGTH or end > len(content) or length % _ALIGNMENT:
            raise FormatError(f"the entry at byte {position} of the unwinding tables has {length} bytes, which is not a valid length")
        if distance == 0:
            encodings[position] = _encoding(content[position + 8 : end])
        else:
            encoding = encodings.get(position + 4 - distance)
            if encoding is None or position + 8 not in relocated:
                missing = "common part" if encoding is None else "relocation for its function"
                raise FormatError(f"the entry at byte {position} of the unwinding tables has no {missing}")
            frames.append(Frame(position, position + 8, encoding))
        position = end
    return tuple(frames)


def _encoding(common: bytes) -> int:
    """Return the encoding of function starts in entries with this common part (CIE).

    Raise `FormatError` if the version, the augmentation or the encoding is not one that LLVM writes. See also `read_frames`.
    """
    version, end = common[0], common.index(0, 1)
    augmentation = common[1:end]
    if version != 1 or augmentation[:1] != b"z":
        raise FormatError(f"the unwinding tables have version {version} and the augmentation {augmentation!r}, which only linkers support")
    position = _skip_number(common, _skip_number(common, end + 1)) + 1  # the alignments of code and data, and the return address in a byte
    position = _skip_number(common, position)  # the length of the augmentation data
    encoding = -1
    for letter in augmentation[1:]:
        if letter == ord("R"):
            encoding = common[position]
            position += 1
        elif letter == ord("L"):
            position += 1
        elif letter == ord("P"):
            position += 1 + _POINTER_SIZES.get(common[position] & 0xF, len(common))
        elif letter != ord("S"):
            raise FormatError(f"the unwinding tables have the augmentation {augmentation!r}, which only linkers support")
    if encoding not in _PC:
        raise FormatError(f"the unwinding tables have the address encoding {encoding:#x}, which only linkers support")
    return encoding


def _skip_number(content: bytes, position: int) -> int:
    """Return the position after a LEB128 number."""
    while content[position] & 0x80:
        position += 1
    return position + 1


def index_size(count: int) -> int:
    """Return the size in bytes of an index of `count` entries."""
    return _HEADER.size + count * _ROW.size


def index_of_frames(address: int, frames: int, entries: Iterable[tuple[bytearray, int, Frame]]) -> bytes:
    """Return the content of the index (``.eh_frame_hdr``).

    `address` and `frames` are the addresses of the index and of the unwinding tables. `entries` has the relocated section, its address and
    the entry, for each entry.
    """
    rows = []
    for content, start, frame in entries:
        (distance,) = _PC[frame.encoding].unpack_from(content, frame.place)
        rows.append((start + frame.place + distance - address, start + frame.offset - address))
    rows.sort()
    head = _HEADER.pack(_VERSION, _DISTANCE4, _COUNT4, _FROM_INDEX4, frames - address - 4, len(rows))
    return head + b"".join([_ROW.pack(*row) for row in rows])
