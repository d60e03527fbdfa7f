"""Does the code that is kept beside an image still say what the module says? (imports LLVM)

The bitcode is parsed, verified and translated again, for the CPU that the module is for; its definitions and what they
refer to must be those of the module's dependency graph, and every exported function must be in the new object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache import codegen
from compcache.elf import is_elf, undefined_symbols
from compcache.errors import FormatError
from compcache.inspection import module_graph
from compcache.irtext import read_module
from compcache.listing import NoCodeError, _read
from compcache.rebuild import module_functions

if TYPE_CHECKING:
    from compcache.graphsection import ModuleGraph
    from compcache.irtext import Definition
    from compcache.store import Store

__all__ = ["recompile"]


def recompile(store: Store, module_id: str) -> bool:
    """Translate the kept code of a module again and compare; False where no code was kept.

    Raises:
        FormatError: the code is not that of the module; the message says where they part.
        CompcacheError, OSError: the module cannot be read, or its code cannot be translated.
    """
    try:
        bitcode, cpu, features = _read(store, module_id)
    except NoCodeError:
        return False
    with store.open_module(bytes.fromhex(module_id)) as module:
        graph = module_graph(module)
        functions = {name for name, _ in module_functions(module)}
    with codegen.new_context() as context:
        parsed = codegen.parse(bitcode, context)
        definitions = dict(read_module(str(parsed)))
        _compare(graph, definitions, functions)
        emitted = codegen.emit_object(parsed, codegen.target_machine(cpu, features, 1))
    if is_elf(emitted):
        _compare_object(graph, emitted)
    return True


def _compare(graph: ModuleGraph, definitions: dict[str, Definition], functions: set[str]) -> None:
    """The definitions of the code against the nodes of the graph."""
    for name, definition in definitions.items():
        if name.startswith("llvm."):
            continue
        node = graph.nodes.get(name)
        if node is None:
            raise FormatError(f"its code has {name!r}, which its dependency graph has not")
        references = tuple([other for other in definition.references if not other.startswith("llvm.")])
        if references != node.references:
            raise FormatError(f"in its code {name!r} refers to other things than in its dependency graph")
    missing = [name for name in graph.nodes if name not in definitions]
    if missing:
        raise FormatError(f"its dependency graph has {missing[0]!r}, which its code has not")
    exported = {node.func_name for node in graph.nodes.values() if node.kind == "function"}
    if not functions.issuperset(exported - {None}):
        raise FormatError("its dependency graph exports functions that its records do not")


def _compare_object(graph: ModuleGraph, emitted: bytes) -> None:
    undefined = set(undefined_symbols(emitted))
    lost = [name for name, node in graph.nodes.items() if node.kind == "function" and name in undefined]
    if lost:
        raise FormatError(f"translated again its code does not define {lost[0]!r}")
