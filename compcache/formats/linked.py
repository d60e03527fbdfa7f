"""What the file of a linked closure says of it: an entry of the kind `KIND`, beside the records of its functions.

The entry requires the modules whose code is in the image, its parts, and those which these use by plain names. The data says to which of
them each plain name was bound when it was linked: texts of the number of the module, a space and the name, with NUL between them. The index
has the functions of such a module with `LINKED` in the offsets of their records (`compcache.formats.manifest`), so that nobody takes one
for an addition.
"""

from __future__ import annotations

from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import LINKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["KIND", "decode_bindings", "encode_bindings", "marked"]

#: The kind of the entry.
KIND = "linked"


def marked(functions: Iterable[tuple[str, int, str]], kinds: Iterable[str]) -> list[tuple[str, int, str]]:
    """The (name, record offset, requirement) of functions as the index has them, of a module with entries of these kinds."""
    mark = LINKED if KIND in kinds else 0
    return [(name, offset | mark, requirement) for name, offset, requirement in functions]


def encode_bindings(bindings: Mapping[str, int]) -> bytes:
    """The data of the entry: the numbers of parts by the plain names that are bound to them."""
    return "\0".join([f"{number} {name}" for name, number in sorted(bindings.items())]).encode("utf-8", "surrogatepass")


def decode_bindings(data: bytes) -> dict[str, int]:
    """See `encode_bindings`.

    Raises:
        FormatError: it is no such data.
    """
    try:
        rows = [text.partition(" ") for text in data.decode("utf-8", "surrogatepass").split("\0")] if data else []
        return {name: int(number) for number, _, name in rows}
    except ValueError as error:
        reraise_interrupt(error)
        raise FormatError("the entry of a linked closure does not decode") from error
