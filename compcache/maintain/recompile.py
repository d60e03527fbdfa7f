"""Recompiles a module's stored bitcode, and compares the result with the module's graph and image. This module imports LLVM.

The bitcode is parsed, verified and compiled for the CPU of the module. Its definitions and references must be equal to those in the
dependency graph of the module. Every exported function must be in the new object. The machine code of the object must be in the image,
except for the places that linking fills in. The machine code is compared only if this process has the LLVM that compiled the module,
because another LLVM may choose other instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.build import codegen
from compcache.build.ir_text import read_module, with_image_symbols
from compcache.build.kept_code import LEVELS, NoCodeError, is_translatable, read_code
from compcache.errors import FormatError
from compcache.formats.graph import INLINED, ModuleGraph
from compcache.formats.records import decode_module
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import undefined_symbols
from compcache.publish.index_rebuild import read_functions
from compcache.publish.module_reader import read_graph

if TYPE_CHECKING:
    from compcache.build.ir_text import Definition
    from compcache.store import Store

__all__ = ["Recompiled", "recompile"]


class Recompiled(NamedTuple):
    """The result of recompiling: whether the module had bitcode to compile, and whether the machine code was compared."""

    translated: bool
    compared: bool


def recompile(store: Store, module_id: str) -> Recompiled:
    """Recompile the stored bitcode of a module, and compare the result with the module.

    Raises:
        FormatError: the bitcode does not match the module. The message names the difference.
        CompcacheError: the module is damaged, or its bitcode cannot be compiled.
        OSError: the module cannot be read.
    """
    with store.open_module(bytes.fromhex(module_id)) as module:
        if not is_translatable(decode_module(module.read_record(0))):
            return Recompiled(translated=False, compared=False)
        graph = read_graph(module)
        functions = {name for name, *_ in read_functions(module)}
    try:
        code = read_code(store, module_id)
    except NoCodeError:
        return Recompiled(translated=False, compared=False)
    text = codegen.run(lambda context: str(codegen.parse(code.bitcode, context)))
    written = dict(read_module(text))
    _compare_graph(graph, with_image_symbols(written, text), written, functions)
    emitted = code.object(LEVELS[0])
    if is_elf(emitted):
        _require_definitions(graph, emitted)
    if not code.is_comparable():
        return Recompiled(translated=True, compared=False)
    if code.level() is None:
        function = "".join(f" for {name!r}" for name in code.differing_functions()[:1])
        raise FormatError(f"recompiling the bitcode of the module gives different machine code{function}")
    return Recompiled(translated=True, compared=True)


def _compare_graph(graph: ModuleGraph, definitions: dict[str, Definition], written: dict[str, Definition], functions: set[str]) -> None:
    """Raise `FormatError` if the definitions in the bitcode differ from the graph. Nodes for inlined bodies are ignored.

    The graph may have other references than the `written` ones where there is assembly, because versions read assembly differently.
    """
    graph = ModuleGraph({name: node for name, node in graph.nodes.items() if node.kind != INLINED})
    for name, definition in definitions.items():
        if name.startswith("llvm."):
            continue
        node = graph.nodes.get(name)
        if node is None:
            raise FormatError(f"the bitcode of the module defines {name!r}, which is not in the dependency graph")
        recorded = tuple([symbol for symbol in node.references if symbol in graph.nodes])
        is_same = recorded == _plain_references(definition)
        if not is_same and (written.get(name) is definition or not {*_plain_references(written[name])} <= {*recorded}):
            raise FormatError(f"the references of {name!r} in the bitcode differ from its references in the dependency graph")
    missing = [name for name in graph.nodes if name not in definitions]
    if missing:
        raise FormatError(f"the dependency graph has {missing[0]!r}, which the bitcode of the module does not define")
    exported = {node.func_name for node in graph.nodes.values() if node.kind == "function"}
    unrecorded = exported - {None} - functions
    if unrecorded:
        raise FormatError(f"the dependency graph exports {min(map(str, unrecorded))!r}, which has no record in the module")


def _plain_references(definition: Definition) -> tuple[str, ...]:
    """Return the references of a definition without LLVM's own symbols."""
    return tuple([symbol for symbol in definition.references if not symbol.startswith("llvm.")])


def _require_definitions(graph: ModuleGraph, emitted: bytes) -> None:
    """Raise `FormatError` if a recompiled object lacks a function of the graph."""
    undefined = set(undefined_symbols(emitted))
    lacking = [name for name, node in graph.nodes.items() if node.kind == "function" and name in undefined]
    if lacking:
        raise FormatError(f"the recompiled bitcode of the module does not define {lacking[0]!r}")
