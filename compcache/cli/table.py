"""Tables for terminals: names are cut in the middle until a row fits, numbers never are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Column", "cell_width", "shortened", "table_lines"]

_GAP = "  "
_LEAST = 8  # columns narrower than this say nothing
_ELLIPSIS = "…"


class Column(NamedTuple):
    """A column: its head, whether it holds numbers, whether it may be cut to fit."""

    head: str
    numeric: bool = False
    flexible: bool = False


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> Iterator[tuple[str, ...]]:
    """The cells of the head and of every row, padded and cut so that a row has at most `width` positions.

    Where even the least widths do not fit, rows are longer.
    """
    heads = [column.head for column in columns]
    natural = [max(map(cell_width, cells)) for cells in zip(heads, *rows, strict=True)]
    widths = _fitting(columns, natural, width - len(_GAP) * (len(columns) - 1))
    for row in (heads, *rows):
        yield tuple(map(_padded, row, widths, columns))


def _fitting(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """Rigid columns get what they need; flexible ones share the rest, the widest give way first."""
    free = width - sum(size for column, size in zip(columns, natural, strict=True) if not column.flexible)
    flexible = sorted(size for column, size in zip(columns, natural, strict=True) if column.flexible)
    cap = flexible[-1] if flexible else 0
    for position, size in enumerate(flexible):
        share = free // (len(flexible) - position)
        if size > share:
            cap = max(share, _LEAST)
            break
        free -= size
    return [
        min(size, cap) if column.flexible else size for column, size in zip(columns, natural, strict=True)
    ]


def cell_width(text: str) -> int:
    """How many positions of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def shortened(text: str, width: int) -> str:
    """A text that takes at most `width` positions: its middle goes, for names differ at both ends."""
    if cell_width(text) <= width:
        return text
    front, back = text[: (width - 1) // 2], text[len(text) - (width - 1 - (width - 1) // 2) :]
    while cell_width(front) + cell_width(back) >= width:
        front, back = (front[:-1], back) if cell_width(front) >= cell_width(back) else (front, back[1:])
    return f"{front}{_ELLIPSIS}{back}"


def _padded(text: str, width: int, column: Column) -> str:
    text = shortened(text, width)
    space = " " * (width - cell_width(text))
    return f"{space}{text}" if column.numeric else f"{text}{space}"
