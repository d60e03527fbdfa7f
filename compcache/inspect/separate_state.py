"""Variables that exist twice in a program: a function uses one copy, and another function of its module uses the other copy.

This happens if two modules define the same variable, and functions of both modules are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compcache.depgraph import DependencyGraph
from compcache.errors import CompcacheError
from compcache.formats.manifest import MERGED
from compcache.interrupts import suppress
from compcache.publish.module_reader import read_graph

if TYPE_CHECKING:
    from compcache.formats.graph import ModuleGraph
    from compcache.hit.loader import Loader
    from compcache.store import Store

__all__ = ["SeparateState", "find_separate_state"]

#: The signature of constant variables in a graph.
_CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class SeparateState:
    """A variable that two functions share in the source, but not in memory: `func_name` and `other` use it in different modules."""

    func_name: str
    variable: str
    module_id: str
    other: str
    other_module_id: str

    def __str__(self) -> str:
        """Return a message about the variable."""
        return (
            f"the variable {self.variable!r} exists twice: {self.func_name!r} uses the variable of module {self.module_id[:12]}, and "
            f"{self.other!r} uses the variable of module {self.other_module_id[:12]}; add the functions that share it as one module"
        )


def find_separate_state(store: Store, loader: Loader, func_name: str) -> tuple[SeparateState, ...]:
    """Return the variables that a function would not share with the other functions of its module if all were loaded now.

    The result is empty if no module provides the function, or the module's graph cannot be read.
    """
    module_id = _providing_module(store, loader, func_name)
    graph = _read_graph(store, module_id) if module_id is not None else None
    if module_id is None or graph is None:
        return ()
    variables = _mutable_variables(graph, func_name)
    separate: dict[str, SeparateState] = {}
    for node in graph.nodes.values():
        name = node.func_name
        if node.kind != "function" or name is None or name == func_name or variables.isdisjoint(_mutable_variables(graph, name)):
            continue
        other_id = _providing_module(store, loader, name)
        other_graph = _read_graph(store, other_id) if other_id is not None and other_id != module_id else None
        if other_graph is None or other_id is None:
            continue
        for variable in sorted(variables & _mutable_variables(graph, name) & _mutable_variables(other_graph, name)):
            separate.setdefault(variable, SeparateState(func_name, variable, module_id.hex(), name, other_id.hex()))
    return tuple(separate.values())


def _providing_module(store: Store, loader: Loader, func_name: str) -> bytes | None:
    """Return the module_id of a function's loaded call target, otherwise of its first existing realization; None if there is neither."""
    reference = loader.targets.get(func_name)
    target = reference() if reference is not None else None
    if target is not None and target._context is not None:
        module_id: bytes = target._context.module.module_id
        return module_id
    return next((module_id for module_id, _ in loader.candidates(func_name) if store.exists(module_id)), None)


def _read_graph(store: Store, module_id: bytes) -> ModuleGraph | None:
    """Return the graph of a module; None if it cannot be read."""
    with suppress(CompcacheError, OSError), store.open_module(module_id) as module:
        return read_graph(module)
    return None


def _mutable_variables(graph: ModuleGraph, func_name: str) -> set[str]:
    """Return the mutable variables that a function of a module uses directly or indirectly, without variables that all modules share."""
    nodes = graph.nodes
    roots = [node.symbol for node in nodes.values() if node.kind == "function" and node.func_name == func_name]
    reached = DependencyGraph({node.symbol: node.references for node in nodes.values()}).closure(roots)
    return {name for name in reached if nodes[name].kind == "variable" and not nodes[name].signature.startswith((_CONSTANT, MERGED))}
