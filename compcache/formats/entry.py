"""Entries of data: bytes that belong to cached code, as frames beside the records of functions.

Look-ups find an entry like a function: the index has its record under `index_name`, which no func_name equals, because func_names contain
no NUL. It lies in the file of the module that it describes, or in a *pack*: a module file of the image kind "data", which has no image and
nothing but entries (`docs/format.md`, "Entries").

Of several entries with one kind and name, the highest sequence is in force; of equal ones, the greater data. An entry that is marked as
gone says that there is none.
"""

from __future__ import annotations

from _struct import Struct  # what `struct` re-exports: a file less to read
from time import time_ns

from compcache.digest import DIGEST_SIZE
from compcache.errors import FormatError
from compcache.formats.manifest import IMAGE_NONE
from compcache.record import Record

__all__ = [
    "ENTRY", "MOST_DATA", "PACK", "PACK_FLAG", "PART_OF", "PICKLED", "STUB", "EntryRecord", "decode_entry", "decode_stub", "encode_entry",
    "encode_stub", "index_name", "is_pack", "may_be_read", "sequence_after",
]  # fmt: skip

#: The first byte of the payload.
ENTRY = b"E"
#: The image kind of a pack, in module records and in index entries.
PACK, PACK_FLAG = "data", IMAGE_NONE
#: The beginning of kinds whose data is unpickled: the reader's argument decides that, not the file.
PICKLED = "pickle:"
#: The kind whose data names the function, or the label, to which a module's functions belong as parts.
PART_OF = "part of"
#: The kind whose data says which symbol of its module is bound in place of a function that this processor cannot run (`encode_stub`).
STUB = "processor stub"
#: The most bytes of an entry, which a reader reads at once.
MOST_DATA = 1 << 25
_HEAD = Struct("<cBQIIII")  # type, whether it is gone, sequence, number of modules, the sizes of kind, name and data
_MAX_SEQUENCE = 0xFFFFFFFFFFFFFFFF


class EntryRecord(Record):
    """One entry: `data` under a name and a kind. Without the modules in `requires` (module_ids) it has no meaning."""

    __slots__ = ("kind", "name", "sequence", "requires", "data", "gone")
    kind: str
    name: str
    sequence: int
    requires: tuple[bytes, ...]
    data: bytes
    gone: bool

    @property
    def order(self) -> tuple[int, bool, bytes]:
        """Return the sort key of entries with the same kind and name. The greatest is in force."""
        return self.sequence, self.gone, self.data


def is_pack(image_kind: str) -> bool:
    """Return whether a module file with this image kind is a pack."""
    return image_kind == PACK


def index_name(kind: str, name: str) -> str:
    """Return the name under which the index has an entry."""
    return f"\0{kind}\0{name}"


def may_be_read(kind: str, *, elsewhere: bool) -> bool:
    """Return whether entries of this kind may be read from a file. No trusted key vouches for entries in files from `elsewhere`."""
    return not (elsewhere and kind.startswith(PICKLED))


def sequence_after(known: EntryRecord | None) -> int:
    """Return the sequence for an entry that replaces this one: the time, or one more than `known` if clocks differ."""
    return max(0 if known is None else known.sequence + 1, time_ns())


def encode_entry(record: EntryRecord) -> bytes:
    """Return the payload of an entry's record."""
    texts = record.kind.encode("utf-8", "surrogatepass"), record.name.encode("utf-8", "surrogatepass")
    head = _HEAD.pack(
        ENTRY, record.gone, min(record.sequence, _MAX_SEQUENCE), len(record.requires), len(texts[0]), len(texts[1]), len(record.data)
    )
    return b"".join([head, *record.requires, *texts, record.data])


def decode_entry(payload: bytes) -> EntryRecord:
    """Return the entry's record in `payload`.

    Raises:
        FormatError: it is not an entry's record.
    """
    if len(payload) < _HEAD.size or payload[:1] != ENTRY:
        raise FormatError(f"an entry's record has the type {payload[:1]!r}")
    _, gone, sequence, count, kind_size, name_size, size = _HEAD.unpack_from(payload)
    first = _HEAD.size + count * DIGEST_SIZE
    second = first + kind_size
    third = second + name_size
    if third + size != len(payload) or gone > 1:
        raise FormatError("an entry's record is damaged")
    requires = tuple([payload[at : at + DIGEST_SIZE] for at in range(_HEAD.size, first, DIGEST_SIZE)])
    try:
        kind, name = payload[first:second].decode("utf-8", "surrogatepass"), payload[second:third].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise FormatError("an entry's record holds a text that is not UTF-8") from None
    return EntryRecord(kind, name, sequence, requires, payload[third:], bool(gone))


def encode_stub(symbol: int, features: str) -> bytes:
    """Return the data of an entry of the kind `STUB`: the number of the symbol, and the features that the stub itself requires."""
    return symbol.to_bytes(4, "little") + features.encode("utf-8", "surrogatepass")


def decode_stub(data: bytes) -> tuple[int, str]:
    """See `encode_stub`.

    Raises:
        FormatError: the data is of another kind.
    """
    try:
        features = data[4:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise FormatError("a stub's entry holds a text that is not UTF-8") from None
    if len(data) < 4:  # noqa: PLR2004 - the number
        raise FormatError("a stub's entry is truncated")
    return int.from_bytes(data[:4], "little"), features
