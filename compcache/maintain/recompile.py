"""Recompiles the stored bitcode of a module and compares it with the module's graph and image (imports LLVM).

The bitcode is parsed, verified and compiled for the CPU that the module is for. Its definitions and their references
must be those of the module's dependency graph; every exported function must be in the new object; and the machine
code of that object must be in the image, except for the places that linking fills in. The last is only checked if
this process has the LLVM that compiled the module: another one may choose other instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.build import codegen
from compcache.build.ir_text import read_module
from compcache.build.kept_code import LEVELS, NoCodeError, is_translatable, read_code
from compcache.errors import FormatError
from compcache.formats.graph import INLINED, ModuleGraph
from compcache.formats.records import decode_module
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import undefined_symbols
from compcache.publish.index_rebuild import module_functions
from compcache.publish.module_reader import read_graph

if TYPE_CHECKING:
    from compcache.build.ir_text import Definition
    from compcache.store import Store

__all__ = ["Recompiled", "recompile"]


class Recompiled(NamedTuple):
    """Whether a module had bitcode to compile, and whether the machine code was compared with the image."""

    translated: bool
    compared: bool


def recompile(store: Store, module_id: str) -> Recompiled:
    """Recompile the stored bitcode of a module and compare.

    Raises:
        FormatError: the bitcode does not match the module; the message names the difference.
        CompcacheError, OSError: the module cannot be read, or its bitcode cannot be compiled.
    """
    with store.open_module(bytes.fromhex(module_id)) as module:
        if not is_translatable(decode_module(module.read_record(0))):
            return Recompiled(translated=False, compared=False)
        graph = read_graph(module)
        functions = {name for name, *_ in module_functions(module)}
    try:
        code = read_code(store, module_id)
    except NoCodeError:
        return Recompiled(translated=False, compared=False)
    text = codegen.run(lambda context: str(codegen.parse(code.bitcode, context)))
    _compare_graph(graph, dict(read_module(text)), functions)
    emitted = code.object(LEVELS[0])
    if is_elf(emitted):
        _require_definitions(graph, emitted)
    if not code.is_comparable():
        return Recompiled(translated=True, compared=False)
    if code.level() is None:
        where = "".join(f" for {name!r}" for name in code.differing_functions()[:1])
        raise FormatError(f"recompiling its bitcode gives different machine code{where}")
    return Recompiled(translated=True, compared=True)


def _compare_graph(graph: ModuleGraph, definitions: dict[str, Definition], functions: set[str]) -> None:
    """Compare the definitions of the bitcode with the nodes of the graph, except nodes of inlined bodies, which have no names in code."""
    graph = ModuleGraph({name: node for name, node in graph.nodes.items() if node.kind != INLINED})
    for name, definition in definitions.items():
        if name.startswith("llvm."):
            continue
        node = graph.nodes.get(name)
        if node is None:
            raise FormatError(f"its bitcode defines {name!r}, which its dependency graph does not have")
        references = tuple([other for other in definition.references if not other.startswith("llvm.")])
        if references != tuple([other for other in node.references if other in graph.nodes]):
            raise FormatError(f"the references of {name!r} in its bitcode differ from those in its dependency graph")
    missing = [name for name in graph.nodes if name not in definitions]
    if missing:
        raise FormatError(f"its dependency graph has {missing[0]!r}, which its bitcode does not define")
    exported = {node.func_name for node in graph.nodes.values() if node.kind == "function"}
    if not functions.issuperset(exported - {None}):
        raise FormatError("its dependency graph exports functions that its records do not")


def _require_definitions(graph: ModuleGraph, emitted: bytes) -> None:
    undefined = set(undefined_symbols(emitted))
    lost = [name for name, node in graph.nodes.items() if node.kind == "function" and name in undefined]
    if lost:
        raise FormatError(f"its recompiled bitcode does not define {lost[0]!r}")
