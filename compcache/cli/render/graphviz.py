"""Layout by Graphviz: ranks from left to right, modules as clusters, edges that go around boxes.

It is the program ``dot`` on the path, or the library in the `pygraphviz` package (extra `graph`), which brings it. Where there is
neither, or it takes too long, `place` of `layout` has to do.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import import_module
from typing import TYPE_CHECKING, Any

from compcache.cli.render.layout import HEIGHT, Box, Cluster, Layout, node_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.inspect.descriptions import FunctionGraph

__all__ = ["place_by_graphviz"]

_MAX_NODES, _MAX_EDGES = 4_000, 20_000  # beyond these it takes minutes
_SECONDS = 30
_INCH = 72  # points: what positions are in; one is a pixel here
_ROUTED_BY_CURVES = 600  # nodes; with more, edges are straight pieces, which costs less
_SHAPED = 40  # nodes; with more, the drawing gets the shape of a screen
_CLUSTER = 2


def place_by_graphviz(graph: FunctionGraph) -> Layout | None:
    """Lay out a graph; None where Graphviz is not there, fails or takes too long."""
    if not 0 < len(graph.nodes) <= _MAX_NODES or len(graph.edges) > _MAX_EDGES:
        return None
    text = "\n".join(_source(graph))
    answer = _by_program(text) if shutil.which("dot") else _by_package(text)
    try:
        return None if answer is None else _layout(graph, json.loads(answer))
    except (ValueError, KeyError, TypeError):
        return None


def _by_program(text: str) -> str | None:
    try:
        done = subprocess.run(["dot", "-Tjson"], input=text, capture_output=True, text=True, timeout=_SECONDS, check=True, encoding="utf-8")
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _by_package(text: str) -> str | None:
    try:
        pygraphviz = import_module("pygraphviz")
    except ImportError:
        return None
    drawn = pygraphviz.AGraph(string=text).draw(format="json", prog="dot")
    return drawn.decode() if isinstance(drawn, bytes) else None


def _source(graph: FunctionGraph) -> Iterator[str]:
    """The graph in the language of Graphviz: nodes are numbers, and as large as they will be drawn."""
    splines = "true" if len(graph.nodes) <= _ROUTED_BY_CURVES else "polyline"
    shape = " ratio=0.55" if len(graph.nodes) > _SHAPED else ""
    yield f"digraph {{ graph [rankdir=LR splines={splines} nodesep=0.14 ranksep=0.6 nslimit=4 mclimit=0.5 remincross=false{shape}]"
    yield f'node [shape=box fixedsize=true height={HEIGHT / _INCH:.3f} label=""]'
    modules: dict[str, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        yield f"n{number} [width={node_width(node.name) / _INCH:.3f}]"
        if node.module_id:
            modules.setdefault(node.module_id, []).append(number)
    for position, numbers in enumerate(modules.values()):
        if len(numbers) >= _CLUSTER:
            yield f"subgraph cluster_{position} {{ margin=14; {'; '.join(f'n{number}' for number in numbers)} }}"
    for number, (start, end) in enumerate(graph.edges):
        yield f"n{start} -> n{end} [id={number}]"
    yield "}"


def _layout(graph: FunctionGraph, answer: dict[str, Any]) -> Layout:
    """The positions in Graphviz's answer, whose y grows upwards."""
    _, _, width, height = map(float, answer["bb"].split(","))
    boxes: dict[int, Box] = {}
    clusters = []
    for item in answer["objects"]:
        if "nodes" in item or "bb" in item:
            left, low, right, high = map(float, item["bb"].split(","))
            module_id = graph.nodes[_first_node(item, answer)].module_id
            clusters.append(Cluster(module_id, left, height - high, right - left, high - low))
        else:
            number = int(item["name"][1:])
            x, y = map(float, item["pos"].split(","))
            size = node_width(graph.nodes[number].name)
            boxes[number] = Box(x - size / 2, height - y - HEIGHT / 2, size)
    routes = [""] * len(graph.edges)
    for edge in answer.get("edges", ()):
        routes[int(edge["id"])] = _route(edge["pos"], height)
    return Layout(tuple([boxes[n] for n in range(len(graph.nodes))]), width, height, tuple(routes), tuple(clusters))


def _first_node(cluster: dict[str, Any], answer: dict[str, Any]) -> int:
    return int(answer["objects"][cluster["nodes"][0]]["name"][1:])


def _route(position: str, height: float) -> str:
    """An edge's B-spline as the path of an SVG; it ends at the tip of the arrow."""
    words = position.split()
    tip = next((word[2:] for word in words if word.startswith("e,")), None)
    points = [_point(word, height) for word in words if word[1:2] != ","]
    path = f"M{points[0]}C{' '.join(points[1:])}"
    return path + (f"L{_point(tip, height)}" if tip else "")


def _point(text: str, height: float) -> str:
    x, y = map(float, text.split(","))
    return f"{x:.0f} {height - y:.0f}"
