"""The order of additions: for a plain name, a look-up uses the addition with the greatest number.

The number of an addition is one more than the greatest number that the directory knew when the module was added. It is in the notes of the
module's file, so it survives the loss of the index, and copies and bundles contain it. It is not part of the module's content. Concurrent
additions may have the same number. Modules of releases without numbers have the number 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.formats.index import CONTENT_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GREATEST_NUMBER", "UNNUMBERED", "Order", "inherit_order", "is_numbered", "order_of", "with_number"]

#: The greatest number. The segment of all layers uses the higher bits for the position of a layer.
GREATEST_NUMBER = (1 << 48) - 1
_NUMBER, _CONTENTS = "order", "contents"
_NO_CONTENT = bytes(CONTENT_SIZE)


class Order(NamedTuple):
    """An addition number, and the content digests of the functions, `CONTENT_SIZE` bytes each, in the order of their records."""

    number: int
    contents: bytes = b""

    def content(self, position: int) -> bytes:
        """Return the content digest of the function at a position, or zeros if the digest is unknown."""
        return self.contents[position * CONTENT_SIZE : (position + 1) * CONTENT_SIZE] or _NO_CONTENT


UNNUMBERED = Order(0)


def order_of(notes: Mapping[str, Any]) -> Order:
    """Return the order of a module from its notes. Invalid values count as 0 and as missing digests."""
    number, contents = notes.get(_NUMBER), notes.get(_CONTENTS)
    is_valid_number = isinstance(number, int) and 0 <= number <= GREATEST_NUMBER
    are_valid_contents = isinstance(contents, bytes) and len(contents) % CONTENT_SIZE == 0
    return Order(number if is_valid_number else 0, contents if are_valid_contents else b"")  # type: ignore[arg-type] # checked above


def is_numbered(notes: Mapping[str, Any]) -> bool:
    """Return whether the notes of a module contain a number."""
    return _NUMBER in notes


def inherit_order(notes: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes of a derived module with the number and the digests in `origin`, the notes of the original module."""
    number, contents = order_of(origin)
    return {**notes, _NUMBER: number, _CONTENTS: contents}


def with_number(notes: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a module's notes with a new number, which is limited to `GREATEST_NUMBER`."""
    return {**notes, _NUMBER: min(number, GREATEST_NUMBER)}
