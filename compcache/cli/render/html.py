"""A graph as one HTML file that works offline: an overview that expands, zoom, search, details on click."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from compcache.inspect.descriptions import FunctionGraph

__all__ = ["KINDS", "html"]

KINDS = ("function", "missing", "global", "variable", "native", "inlined")


def html(graph: FunctionGraph, title: str, sizes: Mapping[str, int] | None = None) -> Iterator[str]:
    """Yield the parts of the file: the page template of this package with the graph as embedded data.

    Args:
        graph: what is shown. The page itself puts nodes into boxes (packages, modules) and gives them places.
        title: the heading.
        sizes: the bytes of modules on disk, by module_id, as far as they are known.
    """
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    head, _, tail = page.partition("/*DATA*/")
    yield head.replace("<!--TITLE-->", _escape(title))
    yield _data(graph, title, sizes or {})
    yield tail


def _escape(text: str) -> str:
    from html import escape

    return escape("".join(c if c.isprintable() else " " for c in text))


def _data(graph: FunctionGraph, title: str, sizes: Mapping[str, int]) -> str:
    modules: dict[str, int] = {}
    nodes = [
        [
            KINDS.index(node.kind),
            node.name,
            node.signature,
            modules.setdefault(node.module_id, len(modules)) if node.module_id else -1,
            node.problem,
        ]
        for node in graph.nodes
    ]
    data = {
        "title": title, "kinds": KINDS, "modules": list(modules), "sizes": [sizes.get(module, 0) for module in modules],
        "nodes": nodes, "edges": graph.edges,
    }  # fmt: skip
    # Inside a script element the text "</script" or "<!--" would end or confuse it.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
