"""Layout of a graph in columns from left to right: a node is to the left of the nodes that it refers to.

The layer of a node is the length of the longest path from it in the graph of strongly connected components. The order in a layer follows
the average positions of the neighbours (the barycenter heuristic of Sugiyama, Tagawa and Toda, 1981). A layer with too many nodes for a
column is split into several columns. Globals, variables and native symbols have their own columns at the right.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from compcache.depgraph import DependencyGraph
from compcache.identity import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.inspect.descriptions import FunctionGraph

__all__ = ["HEIGHT", "Box", "Layout", "place"]

HEIGHT = 24  # of a box; lengths are in pixels
_SHOWN_DIGITS = 8
_ROW = 34  # the distance of two rows
_GAP = 70  # between two columns
_MARGIN = 16
_CHARACTER = 7.0  # the width of a character
_MIN_WIDTH, _MAX_WIDTH = 40, 260  # of a box
_SWEEPS = 4  # passes that order the layers
_MIN_ROWS = 24  # boxes that a column may hold in any drawing


class Box(NamedTuple):
    """The box of a node: its upper left corner and its width, in pixels."""

    x: float
    y: float
    width: float


class Layout(NamedTuple):
    """The boxes of all nodes, in the order of the nodes, and the size of the drawing in pixels."""

    boxes: tuple[Box, ...]
    width: float
    height: float


def place(graph: FunctionGraph) -> Layout:
    """Return the positions of all nodes of a graph. The same graph always has the same layout."""
    if not graph.nodes:
        return Layout((), 2 * _MARGIN, 2 * _MARGIN)
    layers = _order_layers(_assign_layers(graph), graph)
    rows = max(_MIN_ROWS, math.ceil(math.sqrt(len(graph.nodes) * 5)))
    columns = [layer[start : start + rows] for layer in layers for start in range(0, len(layer), rows)]
    return _place_columns(graph, columns)


def _assign_layers(graph: FunctionGraph) -> list[list[int]]:
    """Return the numbers of the nodes in layers from left to right: callers, callees, data, other symbols."""
    numbers = range(len(graph.nodes))
    is_code = [graph.nodes[number].kind in ("function", "missing") for number in numbers]
    edges: dict[str, list[str]] = {str(number): [] for number in numbers if is_code[number]}
    for start, end in graph.edges:
        if is_code[start] and is_code[end]:
            edges[str(start)].append(str(end))
    height = _heights_above_leaves(edges)
    greatest_height = max(height.values(), default=-1)
    layers: list[list[int]] = [[] for _ in range(greatest_height + 1)]
    for name, level in height.items():
        layers[greatest_height - level].append(int(name))
    layers.append([number for number in numbers if graph.nodes[number].kind in ("global", "variable")])
    layers.append([number for number in numbers if graph.nodes[number].kind in ("native", "inlined")])
    return [sorted(layer) for layer in layers if layer]


def _heights_above_leaves(edges: dict[str, list[str]]) -> dict[str, int]:
    """Return the height of each node above the leaves. The nodes of a cycle have the same height."""
    height: dict[str, int] = {}
    for component in DependencyGraph(edges).components():  # after the components that it refers to
        members = set(component)
        heights = [height[target] for name in component for target in edges[name] if target not in members]
        height |= dict.fromkeys(component, 1 + max(heights, default=-1))
    return height


def _order_layers(layers: list[list[int]], graph: FunctionGraph) -> list[list[int]]:
    """Sort each layer in place by the average positions of the neighbours of its nodes; return `layers`."""
    neighbours: list[list[int]] = [[] for _ in graph.nodes]
    for start, end in graph.edges:
        neighbours[start].append(end)
        neighbours[end].append(start)
    position = [0.0] * len(graph.nodes)
    for layer in layers:
        _separate_positions(layer, position)
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            near = {number: neighbours[number] or [number] for number in layer}  # a node without neighbours stays
            centres = {number: sum(position[other] for other in others) / len(others) for number, others in near.items()}
            layer.sort(key=lambda number: (centres[number], number))
            _separate_positions(layer, position)
    return layers


def _separate_positions(layer: Sequence[int], position: list[float]) -> None:
    """Set the positions of the nodes of a layer in `position`, evenly between 0 and 1."""
    for index, number in enumerate(layer):
        position[number] = (index + 0.5) / len(layer)


def _place_columns(graph: FunctionGraph, columns: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of nodes in columns. Each column is centred vertically."""
    tallest = max(map(len, columns))
    boxes: list[Box] = [Box(0, 0, 0)] * len(graph.nodes)
    left_edge = float(_MARGIN)
    for column in columns:
        widths = {number: _box_width(graph.nodes[number].name) for number in column}
        top_edge = _MARGIN + (tallest - len(column)) * _ROW / 2
        for row, number in enumerate(column):
            boxes[number] = Box(left_edge, top_edge + row * _ROW, widths[number])
        left_edge += max(widths.values()) + _GAP
    return Layout(tuple(boxes), left_edge - _GAP + _MARGIN, 2 * _MARGIN + (tallest - 1) * _ROW + HEIGHT)


def _box_width(name: str) -> float:
    """Return the width of the box for a name. A content name is shown with only the first digits of its digest."""
    label = label_of(name)
    text_length = len(name) if label is None else len(label) + 1 + _SHOWN_DIGITS
    return min(max(text_length * _CHARACTER + 16, _MIN_WIDTH), _MAX_WIDTH)
