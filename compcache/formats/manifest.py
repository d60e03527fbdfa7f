"""The codec for the manifest of a module: records that are decoded one at a time.

The records section of a module file is a sequence of frames::

    payload length u32 | check of the payload (8 bytes) | payload

The check is salted with the frame's offset and, except for the module record, personalized with the module's key. The
key is a digest of everything in the module that its author chose. So no other bytes of a module, such as a constant, can
imitate a record: their author would have to know the key before choosing the bytes.

A frame is identified by its offset in the section. The index refers to function records, function records refer to needs
records, and needs records refer to global records and other needs records. A payload is a type byte and the fields of one
class below, integers as little-endian u32, texts as UTF-8 preceded by their u32 length. The first frame is the module
record. These frames contain everything that a hit reads, so a hit does not import msgpack, and its time does not depend on
the size of the module. Data for tools is in the module file's graph section.

Decoding raises `FormatError` for anything except a valid record of the expected type. Counts and lengths are checked
against the payload before they are used.
"""

from __future__ import annotations

from _struct import Struct  # avoids importing the file `struct`, which re-exports it

from compcache.native import runtime
from compcache.record import Record, set_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    #: An import in a needs record: its key, its func_name, its places and its link type (`NeedsRecord`).
    Use: TypeAlias = "tuple[int | str, str, bytes, bytes]"

__all__ = [
    "FRAME", "FUNCTION", "FUNCTION_HEAD", "GLOBAL", "IMAGE_NONE", "IMAGE_OBJECT", "IMAGE_OTHER", "IMAGE_SHARED", "LINKED", "LINK_ONLY",
    "LINK_TYPE", "MAPPED_IN_PLACE", "MERGED", "MODULE", "NEEDS", "NO_ENTRY", "STARTUP", "SUSPECT", "VARIABLE", "WEAK", "FunctionRecord",
    "NeedsRecord", "decode_function", "decode_needs", "read_frame",
]  # fmt: skip

FRAME = Struct("<I8s")
FUNCTION_HEAD = Struct("<cIII8sIII")
NO_ENTRY = 0xFFFFFFFF
#: The kind of a global record whose slot is the number of the function that runs the module's constructors.
STARTUP = "startup"
#: The prefix of signatures of symbols that can be imported but not called: variables and hidden functions.
LINK_ONLY = "= "
#: The prefix of signatures of variables that are not merged with other variables of the same name.
VARIABLE = "= variable "
#: The prefix of signatures of merged variables, whose storage is in the module that is loaded first.
MERGED = "= merged variable "
#: The prefix of signatures of merged variables that give way to a definition which is not merged.
WEAK = "= merged variable (weak) "
#: The flags of module entries in the index: the image is a shared object, an object or of another kind, or the file is a pack.
IMAGE_SHARED, IMAGE_OBJECT, IMAGE_OTHER, IMAGE_NONE = 1, 2, 3, 4
#: The flag of a module one of whose makers is known to generate wrong code (`compcache.formats.known_faults`).
SUSPECT = 5
#: A bit in the index's record offsets for functions of linked closures (`compcache.formats.linked`). Other look-ups skip these rows.
LINKED = 1 << 31
#: The flags of images that the native runtime maps from the module's file.
MAPPED_IN_PLACE = frozenset((IMAGE_SHARED,))

#: The first byte of a payload: the type of the record.
MODULE, FUNCTION, NEEDS, GLOBAL, LINK_TYPE = b"M", b"F", b"N", b"G", b"T"


class FunctionRecord(Record):
    """An exported function: the numbers of its code and its entry point, and its needs.

    `function` and `entry` are symbol numbers in the image's module table. `entry` is NO_ENTRY if Python cannot call the function. Then
    `signature` contains the reason, or `LINK_ONLY` and the kind of the symbol. `needs` is the offset of a needs record; 0 for none.
    `target_id` is the digest of the function's requirement (`ModuleRecord.features_of`). `link_type` is the digest (8 bytes) of its link
    type and the offset of the link type's record; empty or zeros if the type is unknown.
    """

    __slots__ = ("name", "symbol", "signature", "target_id", "function", "entry", "needs", "link_type")
    name: str
    symbol: str
    signature: str
    target_id: bytes
    function: int
    entry: int
    needs: int
    link_type: bytes

    def __init__(
        self, name: str, symbol: str, signature: str, target_id: bytes, function: int, entry: int, needs: int, link_type: bytes = b""
    ) -> None:
        # Every load creates a function record, and this takes a fifth of the time of the general constructor.
        set_field(self, "name", name)
        set_field(self, "symbol", symbol)
        set_field(self, "signature", signature)
        set_field(self, "target_id", target_id)
        set_field(self, "function", function)
        set_field(self, "entry", entry)
        set_field(self, "needs", needs)
        set_field(self, "link_type", link_type)


class NeedsRecord(Record):
    """The needs of a set of functions: imports, global variables, native symbols and further needs.

    `imports` has, for each imported function or variable: its key, which is the symbol number of its slot, or its func_name if it has
    places instead; its func_name; the places of its address in the image, as pairs of i64: the distance from the module table, and a number
    to add to the address; and the link type that the code expects, in the form of `FunctionRecord.link_type`, or b"" if no type is known.
    `globals` has offsets of global records. `natives` has symbols of the process that other processes may lack. `children` has offsets of
    needs records.
    """

    __slots__ = ("imports", "globals", "natives", "children")
    imports: tuple[Use, ...]
    globals: tuple[int, ...]
    natives: tuple[str, ...]
    children: tuple[int, ...]

    def __init__(
        self,
        imports: tuple[Use, ...],
        globals: tuple[int, ...],  # noqa: A002 - the field's name
        natives: tuple[str, ...],
        children: tuple[int, ...],
    ) -> None:
        set_field(self, "imports", imports)  # faster than the general constructor, as in `FunctionRecord`
        set_field(self, "globals", globals)
        set_field(self, "natives", natives)
        set_field(self, "children", children)


def decode_function(payload: bytes) -> FunctionRecord:
    """Decode a function record. Raise `FormatError` if it is malformed."""
    return FunctionRecord(*runtime.function_record(payload))


def decode_needs(payload: bytes) -> NeedsRecord:
    """Decode a needs record. Raise `FormatError` if it is malformed."""
    return NeedsRecord(*runtime.needs_record(payload))


def read_frame(read: Callable[[int, int], bytes] | bytes, offset: int, limit: int, key: bytes) -> bytes:
    """Return the verified payload of a frame.

    Args:
        read: the records section, or a function that takes a position and a size, and returns these bytes of the section.
        offset: the position of the frame in the section.
        limit: the size of the section in bytes.
        key: the module's key. The check of the module record does not depend on the key.

    Raises:
        FormatError: the frame does not exist or is damaged.
        Exception: any error of `read`.
    """
    payload: bytes = runtime.read_frame(read, offset, limit, key)
    return payload
