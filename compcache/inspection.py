"""What people ask about cached functions (imports msgpack and dataclasses; not on the hit path)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.depgraph import DependencyGraph
from compcache.errors import CompcacheError, FormatError, NotCachedError
from compcache.graphsection import ModuleGraph, decode_graph, decode_notes
from compcache.manifest import decode_function, decode_module
from compcache.reports import Realization
from compcache.target import link_name_of

if TYPE_CHECKING:
    from compcache.loader import Loader
    from compcache.store import ModuleFile, Store

__all__ = ["dependencies", "module_graph", "module_notes", "realizations"]


def realizations(store: Store, loader: Loader, func_name: str) -> tuple[Realization, ...]:
    """Every stored copy of a function that is there and not damaged."""
    loaded = {module.module_id for module in loader.loaded_modules()}
    found = []
    for module_id, offset in store.find_all(func_name):
        try:
            with store.open_module(module_id) as module:
                found.append(_describe(loader, module, offset, loaded=module_id in loaded))
        except (FileNotFoundError, CompcacheError):
            continue
    return tuple(found)


def _describe(loader: Loader, module: ModuleFile, offset: int, *, loaded: bool) -> Realization:
    record = decode_function(module.read_record(offset))
    header = decode_module(module.read_record(0))
    problem = ""
    try:
        loader.require_usable(module)
    except CompcacheError as error:
        problem = str(error)
    return Realization(
        func_name=record.name,
        link_name=link_name_of(record.symbol, module.module_id),
        module_id=module.module_id.hex(),
        signature=record.signature,
        cpu=header.cpu,
        features=header.features,
        llvm_version=header.llvm_version,
        image_kind=header.image_kind,
        size=module.size,
        created=float(module_notes(module).get("created", 0.0)),
        loaded=loaded,
        problem=problem,
    )


def module_graph(module: ModuleFile) -> ModuleGraph:
    """The dependency graph of a module."""
    footer = module.footer()
    return decode_graph(module.read(footer.image + footer.records, footer.graph))


def module_notes(module: ModuleFile) -> dict[str, Any]:
    """The notes of a module; empty where they are damaged."""
    footer = module.footer()
    try:
        return decode_notes(module.read(footer.content, footer.notes))
    except FormatError:
        return {}


def dependencies(store: Store, loader: Loader, func_name: str, *, transitive: bool) -> tuple[str, ...]:
    """The func_names that a function refers to, looking through functions that are private to its module."""
    order: dict[str, None] = {}
    waiting = [func_name]
    seen = {func_name}
    while waiting:
        name = waiting.pop(0)
        found = _direct_dependencies(store, loader, name)
        if found is None:
            if name == func_name:
                raise NotCachedError(
                    f"function {name!r} is not in the cache {store.root}", func_name=name, cache_dir=store.root
                )
            continue
        for other in found:
            order[other] = None
            if transitive and other not in seen:
                seen.add(other)
                waiting.append(other)
    return tuple(order)


def _direct_dependencies(store: Store, loader: Loader, func_name: str) -> list[str] | None:
    for module_id, offset in loader.candidates(func_name):
        try:
            with store.open_module(module_id) as module:
                symbol = decode_function(module.read_record(offset)).symbol
                return _named_successors(module_graph(module), symbol)
        except (FileNotFoundError, CompcacheError):
            continue
    return None


def _named_successors(graph: ModuleGraph, symbol: str) -> list[str]:
    edges = {name: node.references for name, node in graph.nodes.items()}
    named = {
        name: node.func_name
        for name, node in graph.nodes.items()
        if node.func_name is not None and node.kind in ("function", "import")
    }
    transparent = [name for name in edges if name not in named]
    found = DependencyGraph(edges).through(symbol, transparent)
    return [named[name] for name in found if name in named]
