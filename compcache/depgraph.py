"""The dependency graph of a module: functions and global variables, and the references between them.

Nodes are names, and the caller provides the edges. This file knows neither LLVM nor files. All walks are iterative, so a chain of a
hundred thousand functions does not overflow the stack. Cycles are allowed.

Strongly connected components follow R. Tarjan, "Depth-first search and linear graph algorithms" (1972).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

__all__ = ["DependencyGraph", "Need", "group_sharing"]


class Need:
    """A node of the needs DAG: the leaves that it contains, and further needs. Functions with equal needs share it."""

    __slots__ = ("children", "leaves")

    def __init__(self, leaves: tuple[str, ...], children: tuple[Need, ...]) -> None:
        self.leaves = leaves
        self.children = children


class DependencyGraph:
    """A directed graph over names.

    Args:
        edges: the references of each node, in order. References to names without a node are dropped.
    """

    __slots__ = ("_edges",)

    def __init__(self, edges: Mapping[str, Iterable[str]]) -> None:
        self._edges = {node: tuple([target for target in targets if target in edges]) for node, targets in edges.items()}

    def __contains__(self, node: str) -> bool:
        return node in self._edges

    def __iter__(self) -> Iterator[str]:
        return iter(self._edges)

    def successors(self, node: str) -> tuple[str, ...]:
        """Return the nodes that a node refers to directly. Raise `KeyError` if the graph does not contain the node."""
        return self._edges[node]

    def closure(self, roots: Iterable[str]) -> list[str]:
        """Return the roots and all nodes that they reach, each once, in breadth-first order. Raise `KeyError` for an unknown root."""
        order = list(dict.fromkeys(roots))
        visited = set(order)
        for node in order:  # grows during the iteration
            for successor in self._edges[node]:
                if successor not in visited:
                    visited.add(successor)
                    order.append(successor)
        return order

    def through(self, root: str, transparent: Collection[str]) -> list[str]:
        """Return the nodes that the root reaches directly or only through `transparent` nodes. Transparent nodes are left out."""
        reached: dict[str, None] = {}
        visited = {root}
        stack = list(reversed(self._edges[root]))
        while stack:
            node = stack.pop()
            if node in visited:
                if node == root and root in self._edges[root]:
                    reached[root] = None
                continue
            visited.add(node)
            if node in transparent:
                stack.extend(reversed(self._edges[node]))
            else:
                reached[node] = None
        return list(reached)

    def components(self) -> list[list[str]]:
        """Return the strongly connected components. A component follows the components that it refers to."""
        index: dict[str, int] = {}
        lowest: dict[str, int] = {}
        on_stack: set[str] = set()
        stack: list[str] = []
        result: list[list[str]] = []
        for start in self._edges:
            if start in index:
                continue
            if not self._edges[start]:
                index[start] = len(index)
                result.append([start])
                continue
            walk: list[tuple[str, Iterator[str]]] = [(start, iter(self._edges[start]))]
            index[start] = lowest[start] = len(index)
            stack.append(start)
            on_stack.add(start)
            while walk:
                node, successors = walk[-1]
                following = self._next_unvisited(node, successors, index, lowest, on_stack)
                if following is not None:
                    index[following] = lowest[following] = len(index)
                    stack.append(following)
                    on_stack.add(following)
                    walk.append((following, iter(self._edges[following])))
                    continue
                walk.pop()
                if walk:
                    parent = walk[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == index[node]:
                    result.append(_pop_component(stack, on_stack, node))
        return result

    @staticmethod
    def _next_unvisited(
        node: str, successors: Iterator[str], index: dict[str, int], lowest: dict[str, int], on_stack: set[str]
    ) -> str | None:
        """Return the next unvisited successor of a node, or None after the last. Lower the node's `lowest` for successors on the stack."""
        for successor in successors:
            if successor not in index:
                return successor
            if successor in on_stack:
                lowest[node] = min(lowest[node], index[successor])
        return None

    def needs(self, leaves: Collection[str]) -> dict[str, Need | None]:
        """Return the `leaves` that every node reaches, as a DAG of needs, by node; None for nodes that reach no leaf.

        Nodes with the same need share it. A component that adds no leaf to the only need of its successors shares this
        need, so the DAG is at most as large as the part of the graph above the leaves.
        """
        result: dict[str, Need | None] = {}
        for component in self.components():
            own_leaves = [node for node in component if node in leaves]
            children: dict[int, Need] = {}
            for node in component:
                for successor in self._edges[node]:
                    need = result.get(successor)
                    if need is not None:
                        children[id(need)] = need
            need = _make_need(tuple(own_leaves), tuple(children.values()))
            for node in component:
                result[node] = need
        return result


def _pop_component(stack: list[str], on_stack: set[str], root: str) -> list[str]:
    """Pop the nodes of the strongly connected component of `root` from the stack (Tarjan), and return them."""
    component: list[str] = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        component.append(node)
        if node == root:
            return component


def _make_need(leaves: Sequence[str], children: tuple[Need, ...]) -> Need | None:
    """Return the needs of a function with its own leaves and those of its children, or None if there are none. Small needs become flat."""
    if not leaves and len(children) <= 1:
        return children[0] if children else None
    # A child without children contains only leaves. Copying the leaves saves a read when the function is loaded.
    flat = [leaf for child in children if not child.children for leaf in child.leaves]
    deep = tuple([child for child in children if child.children])
    if len(leaves) + len(flat) <= _MAX_FLAT:
        return Need(tuple(dict.fromkeys([*leaves, *flat])), deep)
    # A child with one leaf is replaced by its leaf, because a reference to the leaf is no larger than a reference to the child.
    single = [child.leaves[0] for child in children if not child.children and len(child.leaves) == 1]
    return Need(tuple(dict.fromkeys([*leaves, *single])), tuple([child for child in children if child.children or len(child.leaves) != 1]))


_MAX_FLAT = 64


def group_sharing(item_sets: Sequence[int]) -> list[list[int]]:
    """Group sets that share an item, directly or through other sets. A set is a number, in which each item is a bit.

    Return the positions of the sets in each group, in order.
    """
    parents: list[int] = []  # a union-find forest of the sets
    bits_of_root: list[int] = []
    first_user: dict[int, int] = {}  # by bit

    def find_root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    known_bits = 0
    for number, items in enumerate(item_sets):
        parents.append(number)
        bits_of_root.append(items)
        shared_bits = items & known_bits
        while shared_bits:  # one turn for each group, not for each bit
            other = find_root(first_user[shared_bits & -shared_bits])
            parents[other] = number
            bits_of_root[number] |= bits_of_root[other]
            shared_bits &= ~bits_of_root[other]
        new_bits = items & ~known_bits
        known_bits |= new_bits
        while new_bits:
            bit = new_bits & -new_bits
            first_user[bit] = number
            new_bits ^= bit
    groups: dict[int, list[int]] = {}
    for number in range(len(parents)):
        groups.setdefault(find_root(number), []).append(number)
    return list(groups.values())
