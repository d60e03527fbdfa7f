"""Finds variables that exist twice in a program: the requested function uses one, another function of its module the other.

That happens where a module realizes a function that is used from another module, which has the same variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache.depgraph import DependencyGraph
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import MERGED
from compcache.publish.module_reader import read_graph

if TYPE_CHECKING:
    from compcache.formats.graph import ModuleGraph
    from compcache.hit.loader import Loader
    from compcache.store import Store

__all__ = ["SeparateState", "separate_state"]

#: The graph's mark of constant variables.
_CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class SeparateState:
    """A variable that two functions share by source, but not in memory: `func_name` and `other` use it in different modules."""

    func_name: str
    variable: str
    module_id: str
    other: str
    other_module_id: str

    def __str__(self) -> str:
        """Return the same as a sentence."""
        return (
            f"there are two of the variable {self.variable!r}: {self.func_name!r} uses that of module {self.module_id[:12]}, "
            f"{self.other!r} that of module {self.other_module_id[:12]}; add what shares it as one module"
        )


def separate_state(store: Store, loader: Loader, func_name: str) -> tuple[SeparateState, ...]:
    """Return the variables that a function does not share with others of its module, as functions are chosen now."""
    module_id = _chosen(store, loader, func_name)
    graph = _graph_of(store, module_id) if module_id is not None else None
    if module_id is None or graph is None:
        return ()
    own = _variables_of(graph, func_name)
    found: dict[str, SeparateState] = {}
    for node in graph.nodes.values():
        name = node.func_name
        if node.kind != "function" or name is None or name == func_name or own.isdisjoint(_variables_of(graph, name)):
            continue
        other_id = _chosen(store, loader, name)
        other = _graph_of(store, other_id) if other_id is not None and other_id != module_id else None
        if other is None or other_id is None:
            continue
        for variable in sorted(own & _variables_of(graph, name) & _variables_of(other, name)):
            found.setdefault(variable, SeparateState(func_name, variable, module_id.hex(), name, other_id.hex()))
    return tuple(found.values())


def _chosen(store: Store, loader: Loader, func_name: str) -> bytes | None:
    """Return the module that provides a function: that of a loaded target, or of the first available realization."""
    known = loader.targets.get(func_name)
    target = known() if known is not None else None
    if target is not None and target._context is not None:
        module_id: bytes = target._context.module.module_id
        return module_id
    return next((module_id for module_id, _ in loader.candidates(func_name) if store.exists(module_id)), None)


def _graph_of(store: Store, module_id: bytes) -> ModuleGraph | None:
    try:
        with store.open_module(module_id) as module:
            return read_graph(module)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return None


def _variables_of(graph: ModuleGraph, func_name: str) -> set[str]:
    """Return the variables that a function of the module reaches and that can change, except those that all modules share."""
    nodes = graph.nodes
    roots = [node.symbol for node in nodes.values() if node.kind == "function" and node.func_name == func_name]
    reached = DependencyGraph({node.symbol: node.references for node in nodes.values()}).closure(roots)
    return {name for name in reached if nodes[name].kind == "variable" and not nodes[name].signature.startswith((_CONSTANT, MERGED))}
