"""Tables for terminals: names are cut in the middle until a row fits, numbers are never cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Column", "cell_width", "shortened", "table_lines"]

_GAP = "  "
_LEAST = 8  # the least width of a column
_LEGIBLE = 20  # columns are dropped before names are cut to less
_ELLIPSIS = "…"


class Column(NamedTuple):
    """A column: its head, whether it holds numbers, whether it may be cut to fit, and how soon it is dropped.

    If a row does not fit, columns with the highest `spare` are dropped first, those with 0 never.
    """

    head: str
    numeric: bool = False
    flexible: bool = False
    spare: int = 0


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[tuple[str, ...]]:
    """Return the cells of the head and of every row, padded and cut so that a row has at most `width` positions.

    If even the least widths do not fit, rows are longer.
    """
    heads = [column.head for column in columns]
    contents = list(zip(heads, *rows, strict=True))  # by column: most columns are uniform and handled at once
    natural = [_widest(cells) for cells in contents]
    kept = _kept(columns, natural, width)
    columns = [columns[n] for n in kept]
    widths = _fitting(columns, [natural[n] for n in kept], width - len(_GAP) * (len(kept) - 1))
    return zip(*[_aligned(contents[n], w, c) for n, w, c in zip(kept, widths, columns, strict=True)], strict=True)


def _kept(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """Return the numbers of the columns that fit."""
    least = [min(size, _LEGIBLE) if c.flexible else size for c, size in zip(columns, natural, strict=True)]
    kept = list(range(len(columns)))
    while sum(least[n] + len(_GAP) for n in kept) - len(_GAP) > width:
        first = max(kept, key=lambda n: columns[n].spare)
        if not columns[first].spare:
            break
        kept.remove(first)
    return kept


def _fitting(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """Return the widths of the columns: rigid ones get their full width; flexible ones share the rest, and the widest shrink first."""
    free = width - sum(size for column, size in zip(columns, natural, strict=True) if not column.flexible)
    flexible = sorted(size for column, size in zip(columns, natural, strict=True) if column.flexible)
    cap = flexible[-1] if flexible else 0
    for position, size in enumerate(flexible):
        share = free // (len(flexible) - position)
        if size > share:
            cap = max(share, _LEAST)
            break
        free -= size
    return [min(size, cap) if column.flexible else size for column, size in zip(columns, natural, strict=True)]


def cell_width(text: str) -> int:
    """Return the width of a printable text on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def shortened(text: str, width: int) -> str:
    """Return a text cut in the middle to at most `width` positions: names differ at both ends."""
    if cell_width(text) <= width:
        return text
    front, back = text[: (width - 1) // 2], text[len(text) - (width - 1 - (width - 1) // 2) :]
    while cell_width(front) + cell_width(back) >= width:
        front, back = (front[:-1], back) if cell_width(front) >= cell_width(back) else (front, back[1:])
    return f"{front}{_ELLIPSIS}{back}"


def _widest(cells: Sequence[str]) -> int:
    return max(map(len if "".join(cells).isascii() else cell_width, cells))


def _aligned(cells: Sequence[str], width: int, column: Column) -> list[str]:
    """Return the cells of one column, all of the same width."""
    if "".join(cells).isascii():
        pad = str.rjust if column.numeric else str.ljust
        cut = [cell if len(cell) <= width else shortened(cell, width) for cell in cells]
        return [cell if len(cell) == width else pad(cell, width) for cell in cut]
    cut = [shortened(cell, width) for cell in cells]
    spaces = [" " * (width - cell_width(cell)) for cell in cut]
    pairs = zip(spaces, cut, strict=True) if column.numeric else zip(cut, spaces, strict=True)
    return [first + second for first, second in pairs]
