"""The order of additions, in the notes of a module: for a plain name, the addition with the greatest number is used.

A number is one more than the greatest that the directory knew when the module was added. It is no part of the module's content, but
it is in the module's file, so that it survives the loss of the index and travels with copies and bundles. Two additions that knew nothing
of each other may have the same one. What was written before there were numbers has 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.formats.index import CONTENT_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GREATEST_NUMBER", "UNNUMBERED", "Order", "inherited", "is_numbered", "order_of", "with_number"]

#: The greatest number: the segment of all layers uses the bits above for the place of a layer.
GREATEST_NUMBER = (1 << 48) - 1
_NUMBER, _CONTENTS = "order", "contents"
_NO_CONTENT = bytes(CONTENT_SIZE)


class Order(NamedTuple):
    """The number of an addition, and digests of its functions, of `CONTENT_SIZE` bytes each, in the order of their records."""

    number: int
    contents: bytes = b""

    def content(self, position: int) -> bytes:
        """Return the digest of the function at this position; zeros if it is unknown."""
        return self.contents[position * CONTENT_SIZE : (position + 1) * CONTENT_SIZE] or _NO_CONTENT


UNNUMBERED = Order(0)


def order_of(notes: Mapping[str, Any]) -> Order:
    """Return the place of a module among additions, from its notes."""
    number, contents = notes.get(_NUMBER), notes.get(_CONTENTS)
    known = isinstance(number, int) and 0 <= number <= GREATEST_NUMBER
    usable = isinstance(contents, bytes) and len(contents) % CONTENT_SIZE == 0
    return Order(number if known else 0, contents if usable else b"")  # type: ignore[arg-type] # looked at above


def is_numbered(notes: Mapping[str, Any]) -> bool:
    """Return whether the notes contain a number. A derived module has the number of its origin."""
    return _NUMBER in notes


def inherited(notes: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes of a derived module with the place of its origin among additions."""
    number, contents = order_of(origin)
    return {**notes, _NUMBER: number, _CONTENTS: contents}


def with_number(notes: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the notes with this number."""
    return {**notes, _NUMBER: min(number, GREATEST_NUMBER)}
