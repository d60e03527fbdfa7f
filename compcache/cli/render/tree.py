"""A graph as an indented tree of text lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.inspect.descriptions import FunctionGraph, GraphNode

__all__ = ["label", "tree"]


def tree(graph: FunctionGraph) -> Iterator[str]:
    """Yield the lines of the tree. A node that was shown before is not expanded again. Cycles are marked."""
    successors: list[list[int]] = [[] for _ in graph.nodes]
    for start, end in graph.edges:
        successors[start].append(end)
    visited: set[int] = set()
    for root in _find_roots(graph):
        if root not in visited:
            yield from _draw_subtree(graph, successors, root, visited)


def _find_roots(graph: FunctionGraph) -> Iterator[int]:
    """Yield the numbers of the nodes without a referring node, then of all functions, because the first nodes may not reach every cycle."""
    targets = {end for start, end in graph.edges if start != end}
    numbers = range(len(graph.nodes))
    yield from (number for number in numbers if number not in targets)
    yield from (number for number in numbers if graph.nodes[number].kind == "function")


def _draw_subtree(graph: FunctionGraph, successors: list[list[int]], root: int, visited: set[int]) -> Iterator[str]:
    """Yield the lines of a node and its successors, and add the expanded nodes to `visited`. There is no recursion: graphs may be deep."""
    path: list[int] = []  # from the root to the current node
    # (node, prefix of its line, prefix of its children's lines, depth)
    stack = [(root, "", "", 0)]
    while stack:
        number, prefix, indent, depth = stack.pop()
        del path[depth:]
        note = " (see above)" if number in visited and successors[number] else ""
        if number in path:
            note = " (cycle)"
        yield f"{prefix}{label(graph.nodes[number])}{note}"
        if note or number in visited:
            continue
        visited.add(number)
        path.append(number)
        children = successors[number]
        for position, child in reversed(list(enumerate(children))):
            branch, below = ("└── ", "    ") if position == len(children) - 1 else ("├── ", "│   ")
            stack.append((child, indent + branch, indent + below, depth + 1))


def label(node: GraphNode) -> str:
    """Return the text of a node on one line: its name, its signature or kind (for inlined code, its module), its problem if any."""
    from compcache.cli.names import short_name
    from compcache.cli.output import printable, style

    name = printable(short_name(node.name))
    if node.kind == "function":
        name = f"{style(name, fg='cyan')}  {style(node.signature, dim=True)}"
        return name + (f"  [{style(node.problem, fg='yellow')}]" if node.problem else "")
    if node.kind == "inlined":
        return f"{name}  [inlined from {node.module_id[:12]}]"
    return f"{name}  [{node.kind}{': ' + node.problem if node.problem else ''}]"
