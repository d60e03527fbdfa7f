"""A graph as one self-contained SVG file."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from compcache.cli.render.colours import fill_colour
from compcache.cli.render.layout import HEIGHT, Box, place
from compcache.cli.render.table import cut_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.inspect.descriptions import FunctionGraph, GraphNode

__all__ = ["path", "svg"]

_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#111}"
    "rect{stroke:#555;stroke-width:1}.missing,.problem{stroke:#c00}"
    "path{fill:none;stroke:#777;stroke-width:1}.data{stroke-dasharray:4 3;stroke:#aaa}"
)
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" style="fill:#777;stroke:none"/></marker>'
)


def svg(graph: FunctionGraph) -> Iterator[str]:
    """Yield the lines of an SVG file, without line ends, that shows a graph."""
    layout = place(graph)
    size = f'width="{layout.width:.0f}" height="{layout.height:.0f}" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    yield f"<style>{_STYLE}</style><defs>{_ARROW}</defs>"
    for start, end in graph.edges:
        kind = "" if graph.nodes[end].kind in ("function", "missing") else ' class="data"'
        yield f'<path{kind} marker-end="url(#arrow)" d="{path(layout.boxes[start], layout.boxes[end])}"/>'
    for node, box in zip(graph.nodes, layout.boxes, strict=True):
        yield _node_element(node, box)
    yield "</svg>"


def path(start: Box, end: Box) -> str:
    """Return the path data of an edge from the right side of one box to the left side of another box.

    The edge is a curve. It bends back if the second box is further left.
    """
    x1, y1 = start.x + start.width, start.y + HEIGHT / 2
    x2, y2 = end.x, end.y + HEIGHT / 2
    bend = max(30.0, (x2 - x1) / 2) if x2 > x1 else 60.0
    return f"M{x1:.0f} {y1:.0f}C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"


def _node_element(node: GraphNode, box: Box) -> str:
    """Return the SVG element of a node: a rectangle with the name, and its details as a tooltip."""
    radius = 3 if node.kind in ("function", "missing") else HEIGHT / 2
    style = "problem" if node.problem and node.kind != "missing" else node.kind
    title = "\n".join(filter(None, (f"{node.name}: {node.kind}", node.signature, node.module_id, node.problem)))
    title = escape(_replace_control_characters(title, keep="\n"))
    text = cut_middle(_replace_control_characters(node.name), int((box.width - 16) / 7))
    return (
        f"<g><title>{title}</title>"
        f'<rect class="{style}" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{HEIGHT}" rx="{radius:.0f}" '
        f'fill="{fill_colour(node)}"/>'
        f'<text x="{box.x + 8:.0f}" y="{box.y + 16:.0f}">{escape(text)}</text></g>'
    )


def _replace_control_characters(text: str, keep: str = "") -> str:
    """Replace control characters except `keep` by the replacement character. XML 1.0 cannot contain them, not even escaped."""
    return "".join(character if character.isprintable() or character in keep else "\N{REPLACEMENT CHARACTER}" for character in text)
