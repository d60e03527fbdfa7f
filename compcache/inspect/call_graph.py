"""The dependency graph across the modules of a cache: functions by name, and the variables that they use.

Functions that are private to a module are left out. Their references count as references of their callers.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from compcache.depgraph import DependencyGraph
from compcache.digest import is_content_name
from compcache.errors import CompcacheError, FormatError
from compcache.formats.graph import INLINED, decode_graph
from compcache.formats.manifest import LINK_ONLY
from compcache.inspect.descriptions import FunctionGraph, GraphNode
from compcache.inspect.functions import unreadable_error
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_lists import ModuleLists
from compcache.publish.module_reader import ModuleSections, linked_closures, read_graph
from compcache.usage import listings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from compcache.formats.graph import ModuleGraph
    from compcache.hit.loader import Loader
    from compcache.store import Store
    from compcache.usage.module_files import Progress
    from compcache.usage.summaries import ModuleSummary

__all__ = ["cache_graph", "function_graph", "whole_graph"]

_PROGRESS_STEP = 256
_ANONYMOUS_PREFIXES = ("__const", "anon.", "switch.table", "str", ".")


class _Module:
    """The decoded graph of one module. `graph` and `transparent` contain symbols; `exports` has the symbols by func_name."""

    __slots__ = ("_dependencies", "exports", "graph", "module_id", "problem", "transparent")

    def __init__(self, module_id: str, graph: ModuleGraph, problem: str) -> None:
        self.module_id = module_id
        self.problem = problem
        self.graph = graph.nodes
        self._dependencies = DependencyGraph({name: node.references for name, node in graph.nodes.items()})
        self.exports = {
            node.func_name: name for name, node in graph.nodes.items() if node.kind in ("function", "variable") and node.func_name
        }
        self.transparent = frozenset(name for name, node in graph.nodes.items() if not _is_shown(node.kind, name, node.func_name))

    def successors(self, symbol: str) -> list[str]:
        """Return the nodes to which a node refers, directly or through nodes that are not shown."""
        return self._dependencies.through(symbol, self.transparent)


def _is_shown(kind: str, symbol: str, func_name: str | None) -> bool:
    """Return whether a graph shows a node. Private functions and compiler-named constants are not shown."""
    if kind == "function":
        return func_name is not None
    return kind != "variable" or func_name is not None or not symbol.startswith(_ANONYMOUS_PREFIXES)


class _Builder:
    """Collects nodes and edges of a graph. The key of a node is its kind, its name, and its module or ""."""

    def __init__(self, modules_of: Callable[[str], Iterator[_Module | Exception]]) -> None:
        self._modules_of = modules_of  # returns the modules that realize a function, the preferred module first, or why they are unreadable
        self.failures: dict[str, Exception] = {}  # by func_name: why the first unreadable module is unreadable
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._nodes: list[GraphNode] = []
        self._edges: dict[tuple[int, int], None] = {}
        self._waiting: list[tuple[int, _Module, str]] = []

    def add_function(self, func_name: str) -> int:
        """Add the node of a function or an exported variable if it is new, and return its number. `walk` adds its successors.

        The node of a function that no module realizes has the kind "missing".
        """
        existing = self._numbers.get(("function", func_name, ""))
        if existing is not None:
            return existing
        realization = self._find_realization(func_name)
        if realization is None:
            problem = str(self.failures.get(func_name, "not in the cache"))
            return self._add_node(("function", func_name, ""), GraphNode("missing", func_name, "", "", problem))
        module, symbol = realization
        symbol_node = module.graph[symbol]
        signature = symbol_node.signature.removeprefix(LINK_ONLY)
        node = GraphNode(symbol_node.kind, func_name, signature, module.module_id, module.problem)
        number = self._add_node(("function", func_name, ""), node)
        self._waiting.append((number, module, symbol))
        return number

    def walk(self) -> None:
        """Add all nodes that are reachable from the added nodes, and the edges between them."""
        while self._waiting:
            number, module, symbol = self._waiting.pop()
            for successor in module.successors(symbol):
                self._edges[number, self._add_reference(module, successor)] = None

    def _add_reference(self, module: _Module, symbol: str) -> int:
        """Add the node of a module's symbol if it is new, and return its number. An inlined function gets an edge to its original."""
        node = module.graph[symbol]
        if node.kind in ("function", "import") or (node.kind == "variable" and node.func_name is not None):
            return self.add_function(node.func_name or symbol)
        # A native symbol belongs to no module, and an inlined function to the module that `signature` names.
        owner = {"native": "", INLINED: node.signature}.get(node.kind, module.module_id)
        name = node.func_name or symbol
        existing = self._numbers.get((node.kind, name, owner))
        if existing is not None:
            return existing
        number = self._add_node((node.kind, name, owner), GraphNode(node.kind, name, "", owner, ""))
        if node.kind == INLINED and self._find_realization(name) is not None:
            self._edges[number, self.add_function(name)] = None  # an edge to the function whose body was inlined
        self._waiting.append((number, module, symbol))
        return number

    def _add_node(self, key: tuple[str, str, str], node: GraphNode) -> int:
        """Add a node with a key, and return its number."""
        number = self._numbers[key] = len(self._nodes)
        self._nodes.append(node)
        return number

    def _find_realization(self, func_name: str) -> tuple[_Module, str] | None:
        """Return the module and symbol of the realization that a load would choose; None if no module with a realization can be read.

        If this host cannot use any realization, return the first one. Record the error of the first unreadable module in `failures`.
        """
        fallback = None
        for module in self._modules_of(func_name):
            if isinstance(module, Exception):
                if not isinstance(module, FileNotFoundError):  # another process has removed the module
                    self.failures.setdefault(func_name, module)
                continue
            symbol = module.exports.get(func_name)
            if symbol is not None:
                if not module.problem:
                    return module, symbol
                fallback = fallback or (module, symbol)
        return fallback

    def graph(self) -> FunctionGraph:
        """Return the collected graph."""
        return FunctionGraph(tuple(self._nodes), tuple(self._edges))


def function_graph(store: Store, loader: Loader, roots: Sequence[str]) -> FunctionGraph:
    """Return the dependencies of the functions `roots`, transitively and across modules, as `loader` would load them now.

    Raise the exception of `unreadable_error` if no module with a root can be read.
    """
    builder = _Builder(_LoadableModules(store, loader).modules_of)
    for name in roots:
        number = builder.add_function(name)
        if builder._nodes[number].kind == "missing":
            raise unreadable_error(store, name, builder.failures.get(name))
    builder.walk()
    return builder.graph()


def cache_graph(
    store: Store, loader: Loader, names: Iterable[str] | None, *, reverse: bool, progress: Progress | None = None
) -> FunctionGraph:
    """Return the graph of functions and their dependencies, or their users with `reverse`; see `Cache.graph`.

    Raise the exception of `unreadable_error` if no module with a named function can be read.
    With `reverse`, a missing function that cached functions import is accepted: the result shows its users.
    """
    if names is None:
        graph = whole_graph(store, progress)
        if not reverse:
            return graph
        return FunctionGraph(graph.nodes, tuple([(dependency, user) for user, dependency in graph.edges]))
    roots = list(dict.fromkeys(names))
    if not reverse:
        return function_graph(store, loader, roots)
    # A function with a content name may be inlined into modules that do not import it. The lists have only imports.
    summaries = None if any(map(is_content_name, roots)) else _related_modules(store, roots)
    return _reversed_graph(whole_graph(store, progress, summaries), store, roots)


def _related_modules(store: Store, roots: Iterable[str]) -> list[ModuleSummary]:
    """Return the modules that contain the roots, and all modules that import the roots directly or indirectly."""
    related: dict[str, ModuleSummary] = {}
    all_lists = [ModuleLists(layer) for layer in (store, *store.layers)]
    names = set(roots)
    new_ids = set[bytes]()
    for lists in all_lists:
        new_ids.update(*map(lists.holders, names), *map(lists.importers, names))
    while new_ids:
        rows = listings.modules_of(store, new_ids)
        related.update({row.module_id: row for row in rows})
        names = {name for row in rows for name, _ in row.functions}
        users = {module_id for lists in all_lists for name in names for module_id in lists.importers(name)}
        new_ids = {module_id for module_id in users if module_id.hex() not in related} - new_ids
    return list(related.values())


def _reversed_graph(graph: FunctionGraph, store: Store, roots: Sequence[str]) -> FunctionGraph:
    """Return the part of a graph that reaches the roots, with its edges reversed.

    Raise `NotCachedError` if the graph has no node for a root. A root that is not in the cache has a node if cached functions import it.
    """
    # A function has priority over a variable of the same name that is private to a module.
    numbers = {node.name: number for number, node in enumerate(graph.nodes) if node.kind == "variable"}
    numbers |= {node.name: number for number, node in enumerate(graph.nodes) if node.kind in ("function", "missing")}
    users: dict[int, list[int]] = {}
    for user, dependency in graph.edges:
        users.setdefault(dependency, []).append(user)
    order: dict[int, int] = {}
    for name in roots:
        if name not in numbers:
            raise unreadable_error(store, name, None)
        order.setdefault(numbers[name], len(order))
    pending = list(order)
    for number in pending:  # the loop appends to the list
        for user in users.get(number, ()):
            if user not in order:
                order[user] = len(order)
                pending.append(user)
    edges = [(order[dependency], order[user]) for dependency in order for user in users.get(dependency, ())]
    return FunctionGraph(tuple(graph.nodes[number] for number in order), tuple(edges))


class _LoadableModules:
    """Finds and reads modules as a load does: through the index, with verification."""

    def __init__(self, store: Store, loader: Loader) -> None:
        self._store = store
        self._loader = loader
        self._modules: dict[bytes, _Module | Exception] = {}

    def modules_of(self, func_name: str) -> Iterator[_Module | Exception]:
        """Yield the modules that realize a function, in the order of a load. See `_read`."""
        for module_id, _ in self._loader.candidates(func_name):
            if module_id not in self._modules:
                self._modules[module_id] = self._read(module_id)
            yield self._modules[module_id]

    def _read(self, module_id: bytes) -> _Module | Exception:
        """Return a module, with the reason if this host cannot use it, or the exception if it cannot be read."""
        problem = ""
        try:
            with self._store.open_module(module_id) as file:
                try:
                    self._loader.require_usable(file)
                except CompcacheError as error:
                    problem = str(error)
                return _Module(module_id.hex(), read_graph(file), problem)
        except (FileNotFoundError, CompcacheError) as error:
            reraise_interrupt(error)
            return copy(error)  # without its frames


def whole_graph(store: Store, progress: Progress | None = None, among: Iterable[ModuleSummary] | None = None) -> FunctionGraph:
    """Return the graph of all functions, or of the functions of some modules. Functions of unreadable modules are missing.

    Every module is read once. Linked closures are left out, because their functions are in other modules. `among` are the modules whose
    functions are in the graph; None: all modules.
    """
    realized: dict[str, list[bytes]] = {}
    problems: dict[bytes, str] = {}
    derived = {module_id.hex() for module_id in linked_closures(store)}
    summaries = listings.modules(store, progress) if among is None else among
    for module in (module for module in summaries if module.module_id not in derived):
        module_id = bytes.fromhex(module.module_id)
        problems[module_id] = module.problem
        for name, _ in module.functions:
            realized.setdefault(name, []).append(module_id)
    modules: dict[bytes, _Module | Exception] = {}

    def modules_of(func_name: str) -> Iterator[_Module | Exception]:
        """Yield the modules that realize a function (`_read_module`). Report the progress when a module is read for the first time."""
        for module_id in realized.get(func_name, ()):
            if module_id not in modules:
                modules[module_id] = _read_module(store, module_id, problems[module_id])
                if progress is not None and len(modules) % _PROGRESS_STEP == 0:
                    progress(len(modules), len(problems))
            yield modules[module_id]

    builder = _Builder(modules_of)
    for name in sorted(realized):
        builder.add_function(name)
    builder.walk()
    if progress is not None:
        progress(len(problems), len(problems))
    return builder.graph()


def _read_module(store: Store, module_id: bytes, problem: str) -> _Module | Exception:
    """Return a module without verification, or the exception if it cannot be read.

    `problem` says why this host cannot use the module, or is "".
    """
    try:
        with ModuleSections(store, module_id) as file:
            return _Module(module_id.hex(), decode_graph(file.graph()), problem)
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        return copy(error)  # without its frames
