"""A graph as one HTML file that works without a network: pan, zoom, search, details on click."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

from compcache.cli.render.colours import fill
from compcache.cli.render.graphviz import place_by_graphviz
from compcache.cli.render.layout import HEIGHT, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.inspect.descriptions import FunctionGraph

__all__ = ["html"]

_KINDS = ("function", "missing", "global", "variable", "native", "inlined")


def html(graph: FunctionGraph, title: str) -> Iterator[str]:
    """The parts of the file: the page template of this package with the graph and its layout as embedded data."""
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    head, _, tail = page.partition("/*DATA*/")
    yield head.replace("<!--TITLE-->", _escape(title))
    yield _data(graph, title)
    yield tail


def _escape(text: str) -> str:
    from html import escape

    return escape("".join(c if c.isprintable() else " " for c in text))


def _data(graph: FunctionGraph, title: str) -> str:
    layout = place_by_graphviz(graph) or place(graph)
    modules: dict[str, int] = {}
    nodes = [
        [
            _KINDS.index(node.kind),
            node.name,
            node.signature,
            modules.setdefault(node.module_id, len(modules)),
            node.problem,
            round(box.x),
            round(box.y),
            round(box.width),
            fill(node),
        ]
        for node, box in zip(graph.nodes, layout.boxes, strict=True)
    ]
    data = {
        "title": title, "kinds": _KINDS, "modules": list(modules), "height": HEIGHT,
        "size": [round(layout.width), round(layout.height)], "nodes": nodes, "edges": graph.edges, "routes": layout.routes,
        "clusters": [[modules[c.module_id], round(c.x), round(c.y), round(c.width), round(c.height)] for c in layout.clusters],
    }  # fmt: skip
    # Inside a script element the text "</script" or "<!--" would end or confuse it.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
