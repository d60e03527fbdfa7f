"""Draws docs/images/folders.svg: the floors of tests/test_layering.py, each with the first sentence of its docstring.

Run from the root of the project: ``python tools/draw_folders.py``; ``tests/test_layering.py`` fails where a floor is missing in it.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "folders.svg"
_WIDTH = 960
_MARGIN, _GAP, _LINE = 16, 10, 15
_PIXELS_PER_CHARACTER = 5.9  # of 11-pixel text
_HIDDEN = {"__init__", "__main__"}  # one line each: they hand out names, and start the command line
_COLOURS = {True: ("#e6f4ea", "#34814f"), False: ("#eef2fb", "#5b6fa8")}


def draw(floors: tuple[tuple[str, ...], ...], hit_rooms: frozenset[str]) -> str:
    """The picture of these floors, given from the bottom up, as the text of an SVG file."""
    top, body = _MARGIN + 34, []
    for floor in reversed(floors):
        names = [name for name in floor if name not in _HIDDEN]
        if names:
            height, boxes = _row(names, top, hit_rooms)
            body += boxes
            top += height + _GAP
    legend = (
        f'<text x="{_MARGIN}" y="28" class="name">Imports point down.</text>'
        f'<text x="{_MARGIN + 170}" y="28">Green: read by hits; nothing there imports anything slow. '
        "Blue: misses, tools and the command line.</text>"
    )
    style = (
        "text{font:11px system-ui,sans-serif;fill:#333}.name{font:bold 13px ui-monospace,monospace;fill:#111}"
        "rect.page{fill:#fff}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + _MARGIN - _GAP}" role="img" '
        f'aria-label="The folders of compcache, floor by floor"><style>{style}</style>'
        f'<rect class="page" width="{_WIDTH}" height="{top + _MARGIN - _GAP}"/>\n{legend}\n' + "\n".join(body) + "\n</svg>\n"
    )


def _row(names: list[str], top: int, hit_rooms: frozenset[str]) -> tuple[int, list[str]]:
    width = (_WIDTH - 2 * _MARGIN - _GAP * (len(names) - 1)) / len(names)
    texts = [textwrap.wrap(_sentence(name), max(int((width - 16) / _PIXELS_PER_CHARACTER), 12)) for name in names]
    height = 28 + _LINE * max(map(len, texts))
    boxes = []
    for number, (name, lines) in enumerate(zip(names, texts, strict=True)):
        x = _MARGIN + number * (width + _GAP)
        fill, stroke = _COLOURS[name in hit_rooms]
        shown = f"{name}/" if (ROOT / "compcache" / name).is_dir() else f"{name}.py"
        boxes.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="6" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{x + 8:.1f}" y="{top + 18}" class="name">{shown}</text>'
            + "".join(
                f'<text x="{x + 8:.1f}" y="{top + 34 + _LINE * at}">{escape(line)}</text>' for at, line in enumerate(lines)
            )
        )
    return height, boxes


def _sentence(name: str) -> str:
    path = ROOT / "compcache" / name
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return paragraph.replace("\n", " ").replace("`", "").strip()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    from test_layering import FLOORS, HIT_ROOMS

    PICTURE.write_text(draw(FLOORS, HIT_ROOMS), encoding="utf-8")
