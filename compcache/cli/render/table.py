"""Tables for terminals. Names are cut in the middle until a row fits the terminal. Numbers are never cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Column", "cell_width", "cut_middle", "table_lines"]

_GAP = "  "
_LEAST_WIDTH = 8  # of a column
_LEGIBLE_WIDTH = 20  # columns are dropped before names are cut to fewer positions
_ELLIPSIS = "…"


class Column(NamedTuple):
    """A column: its head, whether it holds numbers, whether its cells may be cut, and how soon it is dropped.

    If a row does not fit, the columns with the highest `spare` are dropped first. A column with a `spare` of 0 is never dropped.
    """

    head: str
    numeric: bool = False
    flexible: bool = False
    spare: int = 0


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[tuple[str, ...]]:
    """Return the cells of the head and of every row, padded and cut to rows of at most `width` positions.

    Columns that do not fit are left out. Rows are longer than `width` if even the least widths of the other columns do not fit.
    """
    titles = [column.head for column in columns]
    contents = list(zip(titles, *rows, strict=True))  # by column: most columns are ASCII and padded in one pass
    natural_widths = [max(map(len if "".join(cells).isascii() else cell_width, cells)) for cells in contents]
    positions = _fitting_columns(columns, natural_widths, width)
    columns = [columns[number] for number in positions]
    width_of_cells = width - len(_GAP) * (len(positions) - 1)
    widths = _fitting_widths(columns, [natural_widths[number] for number in positions], width_of_cells)
    shown_contents = [contents[number] for number in positions]
    return zip(*map(_align_cells, shown_contents, widths, columns), strict=True)


def _fitting_columns(columns: Sequence[Column], natural_widths: Sequence[int], width: int) -> list[int]:
    """Return the positions of the columns that fit into `width`, in order. Columns without `spare` are never left out.

    `natural_widths` are the widths of the uncut columns.
    """
    least_widths = [min(size, _LEGIBLE_WIDTH) if column.flexible else size for column, size in zip(columns, natural_widths, strict=True)]
    positions = list(range(len(columns)))
    while sum(least_widths[number] + len(_GAP) for number in positions) - len(_GAP) > width:
        dropped = max(positions, key=lambda number: columns[number].spare)
        if not columns[dropped].spare:
            break
        positions.remove(dropped)
    return positions


def _fitting_widths(columns: Sequence[Column], natural_widths: Sequence[int], width: int) -> list[int]:
    """Return the widths of the columns, which together are at most `width` if possible.

    A rigid column gets its natural width. The flexible columns share the remaining width; the widest columns shrink first.
    """
    remaining_width = width - sum(size for column, size in zip(columns, natural_widths, strict=True) if not column.flexible)
    flexible_widths = sorted(size for column, size in zip(columns, natural_widths, strict=True) if column.flexible)
    greatest_width = flexible_widths[-1] if flexible_widths else 0
    for position, size in enumerate(flexible_widths):
        share = remaining_width // (len(flexible_widths) - position)
        if size > share:
            greatest_width = max(share, _LEAST_WIDTH)
            break
        remaining_width -= size
    return [min(size, greatest_width) if column.flexible else size for column, size in zip(columns, natural_widths, strict=True)]


def cell_width(text: str) -> int:
    """Return the number of positions that a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    visible = [character for character in text if not combining(character)]
    return len(visible) + sum(east_asian_width(character) in "WF" for character in visible)  # wide characters take two positions


def cut_middle(text: str, width: int) -> str:
    """Return a text of at most `width` positions. A longer text loses its middle, because names differ at both ends.

    `width` is at least 1, the width of the ellipsis.
    """
    if cell_width(text) <= width:
        return text
    half = (width - 1) // 2
    start, end = text[:half], text[len(text) - (width - 1 - half) :]
    while cell_width(start) + cell_width(end) >= width:
        if cell_width(start) >= cell_width(end):
            start = start[:-1]
        else:
            end = end[1:]
    return f"{start}{_ELLIPSIS}{end}"


def _align_cells(cells: Sequence[str], width: int, column: Column) -> list[str]:
    """Return the cells of a column, each cut or padded to `width` positions."""
    if "".join(cells).isascii():
        pad = str.rjust if column.numeric else str.ljust
        cut_cells = [cell if len(cell) <= width else cut_middle(cell, width) for cell in cells]
        return [cell if len(cell) == width else pad(cell, width) for cell in cut_cells]
    cut_cells = [cut_middle(cell, width) for cell in cells]
    spaces = [" " * (width - cell_width(cell)) for cell in cut_cells]
    pairs = zip(spaces, cut_cells, strict=True) if column.numeric else zip(cut_cells, spaces, strict=True)
    return ["".join(pair) for pair in pairs]
