"""Does the code that is kept beside an image still say what the module says? (imports LLVM)

The bitcode is parsed, verified and translated again, for the CPU that the module is for. Its definitions and what they
refer to must be those of the module's dependency graph; every exported function must be in the new object; and the
machine code of that object must be in the image, but for the places that linking fills in. The last only where
this process has the LLVM that translated the module: another one may choose other instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.build import codegen
from compcache.build.ir_text import read_module
from compcache.build.kept_code import LEVELS, NoCodeError, read_code
from compcache.errors import FormatError
from compcache.images.elf import is_elf, undefined_symbols
from compcache.publish.index_rebuild import module_functions
from compcache.usage.module_reader import read_graph

if TYPE_CHECKING:
    from compcache.build.ir_text import Definition
    from compcache.formats.graph import ModuleGraph
    from compcache.store import Store

__all__ = ["Recompiled", "recompile"]


class Recompiled(NamedTuple):
    """What was done with one module: was there code to translate, and was the result compared with the image."""

    translated: bool
    compared: bool


def recompile(store: Store, module_id: str) -> Recompiled:
    """Translate the kept code of a module again and compare.

    Raises:
        FormatError: the code is not that of the module; the message says where they part.
        CompcacheError, OSError: the module cannot be read, or its code cannot be translated.
    """
    try:
        code = read_code(store, module_id)
    except NoCodeError:
        return Recompiled(translated=False, compared=False)
    with store.open_module(bytes.fromhex(module_id)) as module:
        graph = read_graph(module)
        functions = {name for name, *_ in module_functions(module)}
    text = codegen.run(lambda context: str(codegen.parse(code.bitcode, context)))
    _compare_graph(graph, dict(read_module(text)), functions)
    emitted = code.object(LEVELS[0])
    if is_elf(emitted):
        _require_definitions(graph, emitted)
    if not code.is_comparable():
        return Recompiled(translated=True, compared=False)
    if code.level() is None:
        where = "".join(f"of {name!r} " for name in code.differing_functions()[:1])
        raise FormatError(f"translated again its code gives other machine code {where}than its image has")
    return Recompiled(translated=True, compared=True)


def _compare_graph(graph: ModuleGraph, definitions: dict[str, Definition], functions: set[str]) -> None:
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


def _require_definitions(graph: ModuleGraph, emitted: bytes) -> None:
    undefined = set(undefined_symbols(emitted))
    lost = [name for name, node in graph.nodes.items() if node.kind == "function" and name in undefined]
    if lost:
        raise FormatError(f"translated again its code does not define {lost[0]!r}")
