"""The manifest of a module: records that decode one at a time.

The records section of a module file is a row of frames::

    payload length u32 | check of the payload (8 bytes) | payload

The check is salted with the frame's offset and, but for the module record, personalized with the module's key. That
digests all of the module that its author chose, so that no bytes in it, a constant least of all, can be made to pose as
a record: an attacker who points the index at them would have to know the key before choosing the bytes.
and the offset of a frame in the section is its name: the index points at function records, function records
at needs records, needs records at global records and at one another. A payload is a type byte and the fields
of one class below, integers as little-endian u32, texts as UTF-8 behind their u32 length. The first frame is
the module record. Everything that a hit reads is in these frames, so that a hit pays neither for msgpack nor
for the size of the module; data that only tools need is in the module file's graph section.

Decoding raises `FormatError` for anything that is not exactly a record of the expected type. Counts and lengths
are checked against the payload before they size anything.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read

from compcache.native import runtime
from compcache.record import Record, set_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FRAME",
    "FUNCTION",
    "FUNCTION_HEAD",
    "GLOBAL",
    "IMAGE_NONE",
    "IMAGE_OBJECT",
    "IMAGE_OTHER",
    "IMAGE_SHARED",
    "LINKED",
    "LINK_ONLY",
    "LINK_TYPE",
    "MAPPED_IN_PLACE",
    "MERGED",
    "MODULE",
    "NEEDS",
    "NO_ENTRY",
    "NO_SLOT",
    "STARTUP",
    "SUSPECT",
    "VARIABLE",
    "WEAK",
    "FunctionRecord",
    "NeedsRecord",
    "decode_function",
    "decode_needs",
    "read_frame",
]

FRAME = Struct("<I8s")
FUNCTION_HEAD = Struct("<cIII8sIII")
NO_ENTRY = 0xFFFFFFFF
#: The slot of an import for which the linker has left places.
NO_SLOT = 0xFFFFFFFF
#: The kind of a global record that is not a variable: its slot has the number of the function that runs the module's constructors.
STARTUP = "startup"
#: The beginning of signatures of symbols that can be imported and not called: variables, hidden functions.
LINK_ONLY = "= "
#: The same for a variable that belongs to its module alone, and is not merged with others of its name.
VARIABLE = "= variable "
#: The same for one that is merged: the first loaded module provides it.
MERGED = "= merged variable "
#: The same for a merged one that gives way to a definition that is not merged.
WEAK = "= merged variable (weak) "
#: How an image is loaded, as the index remembers it: by the dynamic linker, through ORC, or as the kind does that the module record
#: names; a
#: file of entries of data has none.
IMAGE_SHARED, IMAGE_OBJECT, IMAGE_OTHER, IMAGE_NONE = 1, 2, 3, 4
#: In place of these: a maker of the module is known to have made wrong code (`compcache.formats.known_faults`).
SUSPECT = 5
#: Set in the offsets that the index has of functions of linked closures (`compcache.formats.linked`); other look-ups skip these.
LINKED = 1 << 31
#: The kinds that the native runtime maps from the module's own file.
MAPPED_IN_PLACE = frozenset((IMAGE_SHARED,))

#: The first byte of a payload: the type of the record.
MODULE, FUNCTION, NEEDS, GLOBAL, LINK_TYPE = b"M", b"F", b"N", b"G", b"T"


class FunctionRecord(Record):
    """One exported function: where its code and its entry point are, and what loading it needs.

    `function` and `entry` number symbols of the image's module table. `entry` is NO_ENTRY if Python cannot call the function; `signature`
    then says why, or, after `LINK_ONLY`, what kind of symbol it is. `needs` is the offset of a needs record, 0 for none. `target_id`
    stands for what the function requires of a host (`ModuleRecord.features_of`). `link_type` is the digest (8) of its link type and the
    offset of the record that has it; empty or zeros where it is not known.
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
        # Every load makes one: this takes a fifth of the time of the general constructor.
        set_field(self, "name", name)
        set_field(self, "symbol", symbol)
        set_field(self, "signature", signature)
        set_field(self, "target_id", target_id)
        set_field(self, "function", function)
        set_field(self, "entry", entry)
        set_field(self, "needs", needs)
        set_field(self, "link_type", link_type)


class NeedsRecord(Record):
    """The needs of a set of functions: imports, global variables, native symbols, further needs.

    `imports` are (symbol number of the slot, func_name); `globals` are offsets of global records; `natives`
    are symbols of the process that may be missing in another one; `children` are offsets of needs records. `places` are,
    for each of the imports, where the image holds its address, less what is to be added to it: pairs of i64, the distance
    from the module table and that number. The slot of such an import is `NO_SLOT`. Empty where all have slots. `link_types` are,
    for each of the imports, what `FunctionRecord.link_type` is: of the type that the code expects. Empty where none is known.
    """

    __slots__ = ("imports", "globals", "natives", "children", "places", "link_types")
    imports: tuple[tuple[int, str], ...]
    globals: tuple[int, ...]
    natives: tuple[str, ...]
    children: tuple[int, ...]
    places: tuple[bytes, ...]
    link_types: tuple[bytes, ...]

    def __init__(
        self,
        imports: tuple[tuple[int, str], ...],
        globals: tuple[int, ...],  # noqa: A002 - the field's name
        natives: tuple[str, ...],
        children: tuple[int, ...],
        places: tuple[bytes, ...] = (),
        link_types: tuple[bytes, ...] = (),
    ) -> None:
        set_field(self, "imports", imports)  # as in `FunctionRecord`: a load of many modules makes one for each function
        set_field(self, "globals", globals)
        set_field(self, "natives", natives)
        set_field(self, "children", children)
        set_field(self, "places", places)
        set_field(self, "link_types", link_types)


def decode_function(payload: bytes) -> FunctionRecord:
    """Return the function record in `payload`. Raises `FormatError` if it is malformed."""
    return FunctionRecord(*runtime.function_record(payload))


def decode_needs(payload: bytes) -> NeedsRecord:
    """Decode the needs record in `payload`. Raises `FormatError` if it is malformed."""
    return NeedsRecord(*runtime.needs_record(payload))


def read_frame(read: Callable[[int, int], bytes] | bytes, offset: int, limit: int, key: bytes) -> bytes:
    """Return the verified payload of a frame.

    Args:
        read: the records section, or a function that returns `size` bytes of it from `offset` on.
        offset: the position of the frame in it.
        limit: the size of the section.
        key: the module's key; the module record does not depend on it.

    Raises:
        FormatError: the frame does not exist or is damaged.
    """
    payload: bytes = runtime.read_frame(read, offset, limit, key)
    return payload
