"""The codec for entries of data: bytes that belong to cached code, stored as frames beside the records of functions.

Look-ups find an entry like a function. The index has its record under `index_name`, which differs from all func_names, because it contains
NUL. An entry is in the file of the module that it describes, or in a *pack*: a module file of the image kind "data", which contains only
entries (`docs/format.md`, "Entries").

If several entries have the same kind and name, the entry with the highest sequence is valid; for equal sequences, an entry that
records a removal (`gone`), otherwise the entry with the greater data.
"""

from __future__ import annotations

from _struct import Struct  # avoids importing the file `struct`, which re-exports it
from time import time_ns

from compcache.errors import FormatError
from compcache.formats.manifest import IMAGE_NONE
from compcache.native import runtime
from compcache.record import Record

__all__ = [
    "ENTRY", "MOST_DATA", "PACK", "PACK_FLAG", "PART_OF", "PICKLED", "STUB", "EntryRecord", "decode_entry", "decode_stub", "encode_entry",
    "encode_stub", "index_name", "is_pack", "may_be_read", "sequence_after",
]  # fmt: skip

#: The first byte of the payload.
ENTRY = b"E"
#: The image kind of a pack, in module records and in index entries.
PACK, PACK_FLAG = "data", IMAGE_NONE
#: The prefix of kinds whose data is unpickled. Only a reader that requests such a kind unpickles, whatever the file contains.
PICKLED = "pickle:"
#: The kind whose data names the function, or the label, to which a module's functions belong as parts.
PART_OF = "part of"
#: The kind whose data names the symbol that replaces a function which this processor cannot run (`encode_stub`).
STUB = "processor stub"
#: The size limit of an entry in bytes, because a reader reads an entry at once.
MOST_DATA = 1 << 25
_HEAD = Struct("<cBQIIII")  # type, gone, sequence, number of modules, sizes of kind, name and data
_MAX_SEQUENCE = 0xFFFFFFFFFFFFFFFF


class EntryRecord(Record):
    """An entry: `data` with a kind and a name. It is valid only while the modules in `requires` (module_ids) exist."""

    __slots__ = ("kind", "name", "sequence", "requires", "data", "gone")
    kind: str
    name: str
    sequence: int
    requires: tuple[bytes, ...]
    data: bytes
    gone: bool

    @property
    def order(self) -> tuple[int, bool, bytes]:
        """The sort key of entries with the same kind and name. The entry with the greatest key is valid."""
        return self.sequence, self.gone, self.data


def is_pack(image_kind: str) -> bool:
    """Return whether a module file with this image kind is a pack."""
    return image_kind == PACK


def index_name(kind: str, name: str) -> str:
    """Return the name of an entry in the index."""
    return f"\0{kind}\0{name}"


def may_be_read(kind: str, *, elsewhere: bool) -> bool:
    """Return whether entries of a kind may be read from a file. `elsewhere` says that the file is in an unsigned layer."""
    return not (elsewhere and kind.startswith(PICKLED))


def sequence_after(previous: EntryRecord | None) -> int:
    """Return the sequence for an entry that replaces `previous`: the time in nanoseconds, or more if the clock is behind `previous`."""
    return max(0 if previous is None else previous.sequence + 1, time_ns())


def encode_entry(record: EntryRecord) -> bytes:
    """Encode an entry as the payload of its record."""
    texts = record.kind.encode("utf-8", "surrogatepass"), record.name.encode("utf-8", "surrogatepass")
    head = _HEAD.pack(
        ENTRY, record.gone, min(record.sequence, _MAX_SEQUENCE), len(record.requires), len(texts[0]), len(texts[1]), len(record.data)
    )
    return b"".join([head, *record.requires, *texts, record.data])


def decode_entry(payload: bytes) -> EntryRecord:
    """Decode the entry in the payload of a record. Raise `FormatError` if the record is not the record of an entry, or is damaged."""
    return EntryRecord(*runtime.entry_record(payload))


def encode_stub(symbol: int, features: str) -> bytes:
    """Encode the data of a `STUB` entry.

    `symbol` is the number of the stub's symbol in the module table, and `features` the features that the stub requires.
    """
    return symbol.to_bytes(4, "little") + features.encode("utf-8", "surrogatepass")


def decode_stub(data: bytes) -> tuple[int, str]:
    """Decode the data of a `STUB` entry, and return the symbol number and the features.

    Raise `FormatError` if the data is truncated, or contains invalid text.
    """
    if len(data) < 4:  # noqa: PLR2004 - the number
        raise FormatError(f"the entry of a stub is truncated: it has {len(data)} bytes, fewer than the 4 of its symbol number")
    try:
        features = data[4:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise FormatError("the features in the entry of a stub are not valid UTF-8") from None
    return int.from_bytes(data[:4], "little"), features
