"""A graph as one HTML file that works offline: packages that expand, zoom, search, details on click."""

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
        graph: the graph. The page groups its nodes by package and module, and places the nodes.
        title: the heading of the page.
        sizes: the sizes of modules on disk in bytes, by module_id. A missing module counts as 0 bytes.
    """
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page_start, _, page_end = page.partition("/*DATA*/")
    yield page_start.replace("<!--TITLE-->", _escape(title))
    yield _page_data(graph, title, sizes or {})
    yield page_end


def _escape(text: str) -> str:
    """Return a text for HTML, with spaces in place of control characters."""
    from html import escape

    return escape("".join(character if character.isprintable() else " " for character in text))


def _page_data(graph: FunctionGraph, title: str, sizes: Mapping[str, int]) -> str:
    """Return the data of the page as JSON that is safe inside a script element."""
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
    # The text "</script" would end the script element, and "<!--" would change how a browser parses it.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
