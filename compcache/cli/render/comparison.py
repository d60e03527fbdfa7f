"""The differences of two stored components of an identity: short values on one line, texts side by side."""

from __future__ import annotations

import json
import re
import shutil
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from compcache.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.identity import Difference

__all__ = ["difference_lines", "shows_only_digests"]

_DIGEST = re.compile(r"(?:[0-9a-f]{32,128}|digest [0-9a-f]+ of \d+ characters)")
_CONTEXT = 1  # lines around a change
_LEAST_WIDTH, _MOST_WIDTH = 24, 90  # of each of the two columns
_MARKS = {"equal": " ", "replace": "|", "delete": "<", "insert": ">"}
_COLOURS = {"replace": "yellow", "delete": "red", "insert": "green"}


def shows_only_digests(difference: Difference) -> bool:
    """Return whether both values are only digests, which do not show how the values differ."""
    return all(_DIGEST.fullmatch(text or "") for text in (difference.stored, difference.wanted))


def difference_lines(difference: Difference) -> Iterator[str]:
    """Yield the lines that show a difference on a terminal."""
    stored_text, wanted_text = _decoded_text(difference.stored), _decoded_text(difference.wanted)
    if "\n" not in stored_text + wanted_text:
        yield printable(str(difference))
        return
    yield f"{printable(difference.component)}:"
    yield from _side_by_side(stored_text.splitlines(), wanted_text.splitlines())


def _decoded_text(canonical: str | None) -> str:
    """Return a text component without its encoding; the canonical form of other components; "" for a missing component."""
    if canonical is None:
        return ""
    if canonical.startswith("bytes "):
        try:
            return bytes.fromhex(canonical[len("bytes ") :]).decode()
        except ValueError:  # not text
            return canonical
    try:
        return str(json.loads(canonical)) if canonical.startswith('"') else canonical
    except ValueError:
        return canonical


def _side_by_side(old_lines: list[str], new_lines: list[str]) -> Iterator[str]:
    """Yield the changed lines of two texts in two columns, with the lines around each change."""
    digits = len(str(max(len(old_lines), len(new_lines))))
    width = (shutil.get_terminal_size((120, 24)).columns - 2 * digits - 10) // 2
    width = max(_LEAST_WIDTH, min(width, _MOST_WIDTH))
    yield f"{'before':<{digits + width + 1}}   now"
    matcher = SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number:
            yield "..."
        for kind, start, end, new_start, new_end in group:
            for old_number, new_number in zip_longest(range(start, end), range(new_start, new_end)):
                old = _line_cell(old_lines, old_number, digits, width)
                new = _line_cell(new_lines, new_number, digits, width)
                pair = f"{old} {_MARKS[kind]} {new}".rstrip()
                yield click.style(pair, fg=_COLOURS[kind]) if kind in _COLOURS else pair


def _line_cell(lines: list[str], position: int | None, digits: int, width: int) -> str:
    """Return a line with its number, padded and cut to a column of the table; spaces if `position` is None."""
    if position is None:
        return " " * (digits + 1 + width)
    text = printable(lines[position].expandtabs(4))
    cell_text = text if len(text) <= width else f"{text[: width - 1]}…"
    return f"{position + 1:>{digits}} {cell_text:<{width}}"
