"""The description of a linked closure in its file: an entry of the kind `KIND`, beside the records of its functions.

All have one name, so that the index lists them. It requires the modules whose code is in the image, its parts, and those which these use by
plain names. The first of them are *in* the image, whole, with all that can change: who has loaded one of these does not load the image, and
the other way round. The data is texts with NUL between them: what the closure is called, how many modules are in it, the functions that it
was linked for, each behind a plus sign, and for each plain name the number of the module that it
was bound to when the closure was linked, a space and the name. The index has the functions of such a module with `LINKED` in the offsets of
their records (`compcache.formats.manifest`), so that they are not taken for additions.
"""

from __future__ import annotations

from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import LINKED
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KIND", "NAME", "Closure", "decode_closure", "encode_closure", "marked"]

#: The kind and the name of the entry.
KIND, NAME = "linked", "closures"


def marked(functions: Iterable[tuple[str, int, str]], kinds: Iterable[str]) -> list[tuple[str, int, str]]:
    """Return the (name, record offset, requirement) of functions for the index, for a module with entries of these kinds."""
    mark = LINKED if KIND in kinds else 0
    return [(name, offset | mark, requirement) for name, offset, requirement in functions]


class Closure(Record):
    """A linked closure: its label (a function or a set), the number of modules in it, the functions for which it was linked, and the
    modules' numbers by the plain names that are bound to them.
    """

    __slots__ = ("label", "homes", "roots", "bindings")
    label: str
    homes: int
    roots: tuple[str, ...]
    bindings: dict[str, int]


def encode_closure(closure: Closure) -> bytes:
    """Return the data of the entry."""
    rows = [f"{number} {name}" for name, number in sorted(closure.bindings.items())]
    roots = [f"+{name}" for name in closure.roots]
    return "\0".join([closure.label, str(closure.homes), *roots, *rows]).encode("utf-8", "surrogatepass")


def decode_closure(data: bytes) -> Closure:
    """See `encode_closure`.

    Raises:
        FormatError: the data is of another kind.
    """
    try:
        label, homes, *texts = data.decode("utf-8", "surrogatepass").split("\0")
        roots = tuple([text[1:] for text in texts if text[:1] == "+"])
        rows = [text.partition(" ") for text in texts if text[:1] != "+"]
        return Closure(label, int(homes), roots, {name: int(number) for number, _, name in rows})
    except ValueError as error:
        reraise_interrupt(error)
        raise FormatError("the entry of a linked closure does not decode") from error
