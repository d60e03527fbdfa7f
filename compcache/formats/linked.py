"""The codec for the description of a linked closure: an entry of the kind `KIND` in the closure's file.

All these entries have the same name, so that the index lists them. An entry requires the modules whose code is in the image, followed by
the modules that they use by plain names. The first modules are contained in the image with their changeable variables. A process loads
either such a module or the image, not both.

The data consists of texts separated by NUL: the label of the closure, the number of modules that it contains whole, the functions for which
it was linked, each preceded by a plus sign, and the bindings of plain names. A binding is the number of a module, a space and the name. In
the index, the record offsets of the closure's functions contain `LINKED` (`compcache.formats.manifest`), which distinguishes them from
additions.
"""

from __future__ import annotations

from compcache.formats.manifest import LINKED
from compcache.interrupts import as_format_error
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KIND", "NAME", "ClosureRecord", "decode_closure", "encode_closure", "mark_linked"]

#: The kind and the name of the entry.
KIND, NAME = "linked", "closures"


def mark_linked(functions: Iterable[tuple[str, int, str]], kinds: Iterable[str]) -> list[tuple[str, int, str]]:
    """Return the index entries (name, record offset, requirement) of a module's functions, with `LINKED` in offsets of a linked closure.

    `kinds` are the kinds of the module's entries, which show whether the module is a linked closure.
    """
    flag = LINKED if KIND in kinds else 0
    return [(name, offset | flag, requirement) for name, offset, requirement in functions]


class ClosureRecord(Record):
    """A linked closure.

    `label` names a function or a set. `homes` is the number of modules that it contains whole, with their variables. `roots` are the
    functions for which it was linked. `bindings` has the number of the module to which each plain name is bound.
    """

    __slots__ = ("label", "homes", "roots", "bindings")
    label: str
    homes: int
    roots: tuple[str, ...]
    bindings: dict[str, int]


def encode_closure(closure: ClosureRecord) -> bytes:
    """Encode the data of a linked closure's entry."""
    rows = [f"{number} {name}" for name, number in sorted(closure.bindings.items())]
    roots = [f"+{name}" for name in closure.roots]
    return "\0".join([closure.label, str(closure.homes), *roots, *rows]).encode("utf-8", "surrogatepass")


def decode_closure(data: bytes) -> ClosureRecord:
    """Decode the data of a linked closure's entry. Raise `FormatError` if the data is damaged."""
    with as_format_error("the entry of a linked closure is damaged"):
        label, homes, *texts = data.decode("utf-8", "surrogatepass").split("\0")
        roots = tuple([text[1:] for text in texts if text[:1] == "+"])
        rows = [text.partition(" ") for text in texts if text[:1] != "+"]
        return ClosureRecord(label, int(homes), roots, {name: int(number) for number, _, name in rows})
