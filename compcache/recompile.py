"""Does the code that is kept beside an image still say what the module says? (imports LLVM)

The bitcode is parsed, verified and translated again, for the CPU that the module is for. Its definitions and what they
refer to must be those of the module's dependency graph; every exported function must be in the new object; and the
machine code of that object must be in the image, but for the places that linking fills in. The last only where
this process has the LLVM that translated the module: another one may choose other instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache import codegen
from compcache.elf import code_sections, has_fixed_code, is_elf, undefined_symbols
from compcache.errors import FormatError
from compcache.inspection import module_graph
from compcache.irtext import read_module
from compcache.listing import NoCodeError, read_code
from compcache.manifest import decode_module
from compcache.normalize import find_constructors, with_init_arrays
from compcache.rebuild import module_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.elf import CodeSection
    from compcache.graphsection import ModuleGraph
    from compcache.irtext import Definition
    from compcache.store import Store

__all__ = ["Recompiled", "recompile"]

#: The levels of LLVM's code generator, the usual one first: which one made an image is not recorded.
_LEVELS = (2, 3, 1)


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
        bitcode, cpu, features = read_code(store, module_id)
    except NoCodeError:
        return Recompiled(translated=False, compared=False)
    with store.open_module(bytes.fromhex(module_id)) as module:
        graph = module_graph(module)
        functions = {name for name, _ in module_functions(module)}
        llvm_version = decode_module(module.read_record(0)).llvm_version
        image = module.read(0, module.footer().image)
    with codegen.new_context() as context:
        _compare_graph(graph, dict(read_module(str(codegen.parse(bitcode, context)))), functions)
    translate = _Translator(bitcode, cpu, features)
    emitted = translate(_LEVELS[0])
    if not is_elf(emitted):
        return Recompiled(translated=True, compared=False)
    _require_definitions(graph, emitted)
    if llvm_version != codegen.llvm_version() or not has_fixed_code(emitted):
        return Recompiled(translated=True, compared=False)
    _require_code(image, translate)
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


# ---------------------------------------------------------------------- machine code


class _Translator:
    """The objects of one module by the level of the code generator."""

    def __init__(self, bitcode: bytes, cpu: str, features: str) -> None:
        self._bitcode = bitcode
        self._target = cpu, features
        self._objects: dict[int, bytes] = {}

    def __call__(self, level: int) -> bytes:
        if level not in self._objects:
            self._objects[level] = self._translate(level)
        return self._objects[level]

    def _translate(self, level: int) -> bytes:
        """What the linker does, on a module of its own: the code generator changes the one that it translates."""
        with codegen.new_context() as context:
            code = codegen.parse(self._bitcode, context)
            text = str(code)
            constructors = find_constructors(text)
            if constructors.functions():
                code = codegen.parse(with_init_arrays(text, constructors), context)
            return codegen.emit_object(code, codegen.target_machine(*self._target, level))


def _require_code(image: bytes, translate: _Translator) -> None:
    """The image must hold the machine code of one of the levels.

    Raises:
        FormatError: it does not; the message names a function for the level that comes closest.
    """
    closest: list[str] | None = None
    for level in _LEVELS:
        sections = code_sections(translate(level))
        if all(_occurs(image, section, 0, len(section.code)) for section in sections):
            return
        different = [
            name
            for section in sections
            for start, end, name in section.functions
            if not _occurs(image, section, start, end)
        ]
        if closest is None or len(different) < len(closest):
            closest = different
    where = f"of {closest[0]!r} " if closest else ""
    raise FormatError(f"translated again its code gives other machine code {where}than its image has")


def _occurs(image: bytes, section: CodeSection, start: int, end: int) -> bool:
    """Whether a part of a section is somewhere in the image, but for what linking changes."""
    runs = list(_fixed_runs(section, start, end))
    if not runs:
        return True
    longest, its_end = max(runs, key=lambda run: run[1] - run[0])
    seed = section.code[longest:its_end]
    found = image.find(seed)
    while found >= 0:
        shift = found - longest  # negative where the part would begin before the image does
        if start + shift >= 0 and all(image[a + shift : b + shift] == section.code[a:b] for a, b in runs):
            return True
        found = image.find(seed, found + 1)
    return False


def _fixed_runs(section: CodeSection, start: int, end: int) -> Iterator[tuple[int, int]]:
    """What linking leaves alone between two offsets, as (start, end)."""
    at = start
    for place, place_end in section.places:
        if place_end <= start or place >= end:
            continue
        if place > at:
            yield at, place
        at = max(at, place_end)
    if at < end:
        yield at, end
