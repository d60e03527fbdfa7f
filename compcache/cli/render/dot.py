"""A graph in the language of Graphviz (https://graphviz.org/doc/info/lang.html)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.cli.render.colours import fill_colour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.inspect.descriptions import FunctionGraph, GraphNode

__all__ = ["dot"]

_SHAPES = {"function": "box", "missing": "box", "global": "ellipse", "variable": "ellipse", "native": "plaintext", "inlined": "component"}


def dot(graph: FunctionGraph) -> Iterator[str]:
    """Yield the lines of a DOT file, without line ends, that describes a graph."""
    yield "digraph compcache {"
    yield '  rankdir=LR; node [fontname="sans-serif", style=filled];'
    for number, node in enumerate(graph.nodes):
        yield f"  n{number} [{_node_attributes(node)}];"
    for start, end in graph.edges:
        style = "" if graph.nodes[end].kind in ("function", "missing") else " [style=dashed, color=gray50]"
        yield f"  n{start} -> n{end}{style};"
    yield "}"


def _node_attributes(node: GraphNode) -> str:
    """Return the attributes of a node in DOT."""
    text = f"{node.name}\n{node.signature}" if node.signature else node.name
    parts = [f"label={_quote(text)}", f"shape={_SHAPES[node.kind]}", f"fillcolor={_quote(fill_colour(node))}"]
    if node.problem:
        parts += ["color=red", f"tooltip={_quote(node.problem)}"]
    return ", ".join(parts)


def _quote(text: str) -> str:
    """Return a text as a quoted string in DOT. Other control characters than line breaks become question marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(char if char.isprintable() else "?" for char in escaped) + '"'
