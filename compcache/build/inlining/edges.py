"""The edges for inlining in a module's graph: from functions to the functions whose code they may contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.build.inlining.imported import Inlined
from compcache.depgraph import DependencyGraph
from compcache.formats.graph import INLINED, SymbolNode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.formats.graph import ModuleGraph

__all__ = ["inlined_of", "with_inlined"]


def with_inlined(nodes: Iterable[SymbolNode], inlined: Inlined) -> list[SymbolNode]:
    """Return the nodes of an optimized module's graph, with edges from its functions to the bodies that they may contain.

    LLVM does not report which bodies it inlined. Therefore edges refer to all bodies that the function reached before it was optimized. A
    function without an edge to a body does not contain the body.
    """
    extended = list(nodes)
    if not inlined.sources:
        return extended
    graph = DependencyGraph(inlined.edges)
    inlined_symbols: dict[str, None] = {}
    for number, node in enumerate(extended):
        if node.kind == "function" and node.symbol in graph:
            bodies = [symbol for symbol in graph.closure([node.symbol]) if symbol in inlined.sources]
            inlined_symbols |= dict.fromkeys(bodies)
            extended[number] = node._replace(references=(*node.references, *map(_body_key, bodies)))
    return extended + [SymbolNode(_body_key(symbol), INLINED, *inlined.sources[symbol], ()) for symbol in inlined_symbols]


def inlined_of(graph: ModuleGraph) -> Inlined:
    """Return the functions that may be inlined in a stored module. `with_inlined` adds their edges when the module is rebuilt."""
    symbols = {key: key.removesuffix(f" ({INLINED})") for key, node in graph.nodes.items() if node.kind == INLINED}
    edges = {
        name: tuple([symbols[key] for key in node.references if key in symbols])
        for name, node in graph.nodes.items()
        if name not in symbols
    }
    sources = {symbol: (str(graph.nodes[key].func_name), graph.nodes[key].signature) for key, symbol in symbols.items()}
    return Inlined(sources, (), {**edges, **dict.fromkeys(symbols.values(), ())})


def _body_key(symbol: str) -> str:
    """Return the key of the node for an inlined body. The node of the called function has another key."""
    return f"{symbol} ({INLINED})"
