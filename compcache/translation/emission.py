"""Compiles an optimized module to its object, and collects the metadata that the module's file records."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.arch.known import architecture
from compcache.build import codegen, pic
from compcache.build.entry_code import object_file
from compcache.build.entry_points import entries_text, symbols_of_entries, table_head, table_symbols_of, table_text
from compcache.build.exports import make_entries
from compcache.build.inlining.edges import with_inlined
from compcache.build.inlining.imported import NOTHING_INLINED
from compcache.build.ir_text import Definition, lines_from, read_assembly, read_module, with_image_symbols
from compcache.build.link_types import LinkTypes, read_link_types
from compcache.build.records import read_needs, symbol_nodes
from compcache.build.slots import SLOT_PREFIX, is_known_by_name
from compcache.build.stubs import stub_symbol, stubs_text
from compcache.build.trial import assembly_parts, has_assembly, try_in_child
from compcache.depgraph import DependencyGraph
from compcache.digest import KEY_SIZE, digest
from compcache.errors import CompileError
from compcache.formats.deflate import deflate
from compcache.formats.graph import encode_graph
from compcache.formats.host import platform_name
from compcache.formats.module_table import TABLE_SYMBOL
from compcache.images import platform_symbols
from compcache.images.elf.objects import DistanceTable
from compcache.images.elf.parts import is_elf, object_symbols
from compcache.images.elf.patching import move_definitions, with_sections
from compcache.images.elf.reading import undefined_symbols, users_of
from compcache.images.making import EntryObjects
from compcache.images.static_runtime import FINALIZE
from compcache.targets.cpu_table import baseline
from compcache.translation.requirements import Code, allowed_features, own_features, requirements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from compcache.build.entry_points import EntryPoint
    from compcache.build.exports import Entries, Export
    from compcache.build.inlining.imported import Inlined
    from compcache.build.pic import Alias
    from compcache.build.records import Needs
    from compcache.build.slots import Resolution
    from compcache.formats.bodies import Body
    from compcache.targets.machine import Machine
    from compcache.translation.requests import Request

__all__ = ["Prepared", "Translated", "emit", "table_symbols"]

#: The prefix of the names under which a module has its own definitions of merged variables.
_OWN_PREFIX = "compcache.own."
#: The largest number of entry points that are compiled to separate objects.
_MAX_SEPARATE = 8


class Prepared(NamedTuple):
    """The properties of a module before optimization. `globals` has (name, kind, encoded value).

    `find_bodies` returns the bodies that the module offers for inlining, and `find_contents` digests of the content of its symbols
    (compcache.content.functions). Both are called while LLVM generates code.
    """

    exports: tuple[Export, ...]
    aliases: dict[str, Alias]
    resolution: Resolution
    globals: tuple[tuple[str, str, bytes], ...]
    code: bytes  # bitcode before optimization; empty if it is not stored
    data: Mapping[str, bytes] = {}  # values of large variables, by section (compcache.build.large_data)
    inlined: Inlined = NOTHING_INLINED
    find_bodies: Callable[[], tuple[Body, ...]] = tuple
    find_contents: Callable[[], Mapping[str, bytes]] = dict


class Translated(NamedTuple):
    """The result of compiling a module for one machine. It contains no LLVM objects."""

    machine: Machine
    requires: dict[str, frozenset[str]]  # the features that each exported symbol requires
    prepared: Prepared
    definitions: dict[str, Definition]
    constructors: pic.Constructors
    entries: Entries
    slots: tuple[str, ...]
    needs: Needs
    key: bytes
    bitcode: bytes
    graph: bytes
    level: int
    object: bytes
    entry_objects: EntryObjects
    digests: Mapping[str, str]
    stubs: tuple[str, ...]  # the exported symbols that have a stub (compcache.build.stubs)
    bodies: tuple[Body, ...]  # that the module offers for inlining
    contents: Mapping[str, bytes]  # digests of the content of symbols (compcache.content.functions)
    seconds: float = 0.0
    beside_code: bytes = b""  # a digest of the inputs that affect the functions and are not in the code
    weak: frozenset[str] = frozenset()  # definitions that those of other sources may override
    overridden: frozenset[str] = frozenset()  # definitions that are declarations, because others override them
    types: LinkTypes = LinkTypes({}, {})
    makers: str = ""  # the makers of the given code (compcache.formats.makers)


def emit(module: Any, text: str, context: Any, target: Any, request: Request, prepared: Prepared) -> Translated:
    """Compile an optimized module to an object.

    `text` is the module as LLVM prints it, `context` is the module's LLVM context, and `target` is LLVM's target machine.

    Raises:
        CompileError: LLVM cannot translate the code, or code that runs during mapping uses imports or globals, or LLVM changed a symbol.
        SignatureMismatchError: a signature does not match a function's LLVM type.
        FormatError: LLVM's object is malformed.
    """
    constructors = pic.find_constructors(text)
    written = read_module(text)
    if _must_run_later(constructors, with_image_symbols(written, text), prepared.resolution, shared=request.shared):
        text = pic.with_deferred_start(text, constructors)
        module, constructors = codegen.parse(text, context), pic.Constructors((), ())
        written = read_module(text)
    definitions = with_image_symbols(written, text)
    startup = _startup_functions(definitions, constructors, prepared.resolution, text)
    code, module = _prepare_module(module, text, context, target, constructors, request)
    allowed = allowed_features(text)
    optional = own_features(allowed, prepared.exports, prepared.aliases, request.machine)
    if optional:
        module.link_in(codegen.parse(stubs_text(optional, {export.symbol: export.name for export in prepared.exports}), context))
    known = architecture(platform_name())
    distance = known.relocations.distance if request.shared else None
    describe = partial(_describe_module, text, code, written, definitions, prepared, request, tuple(optional), startup)
    if distance is None:
        table, translated = describe()
        module.link_in(codegen.parse(table_text(table.key, table.symbols, table.points, table.slots, table.variables), context))
        compiled = codegen.emit_object(module, target)
    else:
        compiled, (table, translated) = codegen.call_beside(partial(codegen.emit_object, module, target), describe)
    extended, unowned = _with_references_of_code(definitions, compiled, prepared.resolution, text)
    if extended is not definitions:
        startup = _startup_functions(extended, constructors, prepared.resolution, text)
        translated = partial(translated, needs=read_needs(extended, prepared.resolution, table.slots, [*startup, *unowned]))
    completed, entry_objects = with_sections(compiled, prepared.data) if prepared.data else compiled, EntryObjects()
    if distance is not None:
        completed = move_definitions(completed, table.renamed) if table.renamed else completed
        _require_symbols(completed, table.symbols)
        names = table_symbols_of(table.symbols, table.points, table.slots)
        constant = DistanceTable(known.elf_machine, TABLE_SYMBOL, table_head(table.key, len(names)), names, distance)
        entry_objects = _entry_objects(table.points, request.level)._replace(table=constant)
    machine_code = Code(text, allowed, definitions, prepared.aliases, compiled)
    return translated(
        requires=requirements_of(machine_code, prepared.exports, [*startup, *constructors.functions()], request.machine),
        constructors=constructors,
        object=completed,
        entry_objects=entry_objects,
    )


def _prepare_module(
    module: Any, text: str, context: Any, target: Any, constructors: pic.Constructors, request: Request
) -> tuple[bytes, Any]:
    """Return the bitcode to store, b"" if none is stored, and the module to compile, whose constructors the dynamic linker finds.

    Note the text of the module for LLVM's target machine `target`.

    Raise `CompileError` if LLVM cannot translate the inline assembly of the module.
    """
    doubtful = assembly_parts(text)
    if doubtful is not None:  # invalid assembly would end this process
        codegen.call_in_caller(try_in_child, doubtful, request.machine, 0)
    code = b""
    if request.keep_bitcode:
        code, module = _write_and_read_back(module, context)
    if constructors.functions():
        text = pic.with_init_arrays(text, constructors)
        module = codegen.parse(text, context)
    codegen.note_text(text, target)
    return code, module


class _Table(NamedTuple):
    """The contents of a module's table. `key` is the digest of the image's inputs.

    `renamed` maps an exported variable to its name in the object, if the module also imports a variable of its name.
    """

    key: bytes
    symbols: list[str]
    points: tuple[EntryPoint, ...]
    slots: tuple[str, ...]
    variables: list[str]
    renamed: dict[str, str]


def _describe_module(
    text: str,
    code: bytes,
    written: Mapping[str, Definition],
    definitions: dict[str, Definition],
    prepared: Prepared,
    request: Request,
    stubs: tuple[str, ...],
    startup: tuple[str, ...],
) -> tuple[_Table, Callable[..., Translated]]:
    """Return the contents of a module's table, and a function that makes the result of `emit` from the fields that depend on the object.

    `text` is the optimized module as LLVM prints it, and `code` its bitcode (b"" if none is stored). `written` has the global values in the
    text, and `definitions` also those of the image (`with_image_symbols`). `stubs` are the exported symbols that have a stub, and `startup`
    the functions that run while the image is mapped or unmapped. This function does not use LLVM.

    Raise `SignatureMismatchError` if a signature does not match a function's LLVM type.
    """
    entries = make_entries(prepared.exports, definitions, prepared.aliases, lines_from(text, "attributes #"))
    table = _make_table(_image_key(text, request, prepared), prepared, definitions, entries, stubs)
    return table, partial(
        Translated,
        machine=request.machine,
        prepared=prepared._replace(data={}, find_bodies=tuple, find_contents=dict),
        definitions=definitions,
        entries=entries,
        slots=table.slots,
        needs=read_needs(definitions, prepared.resolution, table.slots, startup),
        key=table.key,
        bitcode=deflate(code) if code else b"",
        graph=_encode_symbols(definitions, entries, prepared),
        level=request.level,
        digests=request.digests,
        stubs=stubs,
        bodies=prepared.find_bodies(),
        contents=prepared.find_contents(),
        types=_read_types(text, written, prepared),
        makers=request.makers,
    )


def _with_references_of_code(
    definitions: dict[str, Definition], compiled: bytes, resolution: Resolution, text: str
) -> tuple[dict[str, Definition], list[str]]:
    """Return the definitions with the references that only machine code has, and the symbols to which unnamed code may refer.

    Code generation calls functions by their names, such as `memcpy`, and assembly can compose names. Without such references the
    definitions are returned unchanged.
    """
    # Calls of a thunk in the same section have no relocations.
    unowned = [name for name in resolution.thunks if name in definitions and is_known_by_name(name)]
    undefined = undefined_symbols(compiled) if is_elf(compiled) else ()
    names = {*resolution.slots, *resolution.storage} if has_assembly(text) else set()
    names |= {name for name in undefined if name in resolution.imports or (name not in definitions and not _is_provided(name, resolution))}
    users = users_of(compiled, names) if names else set()
    missing = [(user, name) for user, name in sorted(users) if user not in definitions or name not in definitions[user].references]
    if missing:
        mentioned = frozenset[str]().union(*[definition.references for definition in definitions.values()])
        unowned += [name for user, name in missing if user not in definitions and name not in mentioned]
    extra = [(user, name) for user, name in missing if user in definitions]
    if not unowned and not extra:
        return definitions, []
    extended = {**{name: Definition("declaration", "", ()) for name in names}, **definitions}
    for user, name in extra:
        extended[user] = extended[user]._replace(references=(*extended[user].references, name))
    return extended, unowned


def _is_provided(name: str, resolution: Resolution) -> bool:
    """Return whether a symbol that the code does not declare is in every process that can load the module."""
    if name.startswith(platform_symbols.ALWAYS_THERE) or platform_symbols.is_platform_symbol(name):
        return True
    return any(library.path_of(name) for library in resolution.libraries)


def _make_table(key: bytes, prepared: Prepared, definitions: Mapping[str, Definition], entries: Entries, stubs: tuple[str, ...]) -> _Table:
    """Return the contents of the module's table. `stubs` are the exported symbols that have a stub."""
    resolution = prepared.resolution
    exported = {export.symbol for export in prepared.exports if definitions[export.symbol].kind == "variable"}
    variables = sorted(exported.difference(prepared.aliases))
    renamed = {name: _OWN_PREFIX + name for name in variables if name in resolution.imports}
    symbols = [renamed.get(name, name) for name in table_symbols(prepared, definitions, stubs)]
    slots = tuple([name for name in (*resolution.slots, *resolution.storage) if name in definitions])
    return _Table(key, symbols, entries.points, slots, [renamed.get(name, name) for name in variables], renamed)


def _require_symbols(obj: bytes, names: Iterable[str]) -> None:
    """Raise `CompileError` if an object lacks one of the symbols. LLVM changes the names of some symbols."""
    present = {symbol.name for symbol in object_symbols(obj)}
    lost_name = next((name for name in names if name not in present), None)
    if lost_name is not None:
        raise CompileError(
            f"the object that LLVM emitted has no symbol {lost_name!r}, although the code defines it: LLVM changes the symbols of some "
            "calling conventions (vectorcall); give the function another calling convention, or make it internal"
        )


def _read_types(text: str, written: Mapping[str, Definition], prepared: Prepared) -> LinkTypes:
    """Return the link types of the module's exports and imports. Symbols that assembly defines have no known type."""
    resolution = prepared.resolution
    slots = {slot: slot.removeprefix(SLOT_PREFIX) for slot in resolution.slots}
    symbols = [export.symbol for export in prepared.exports]
    return read_link_types(text, written, symbols, prepared.aliases, resolution.imports, slots)


def _encode_symbols(definitions: Mapping[str, Definition], entries: Entries, prepared: Prepared) -> bytes:
    """Return the encoded graph of the module's symbols, and of the functions that were inlined into them."""
    signatures = dict(zip([export.symbol for export in prepared.exports], entries.signatures, strict=True))
    names = {export.symbol: export.name for export in prepared.exports}
    return encode_graph(with_inlined(symbol_nodes(definitions, names, prepared.resolution, signatures), prepared.inlined))


def _entry_objects(points: tuple[EntryPoint, ...], level: int) -> EntryObjects:
    """Return objects with entry points for any processor of the architecture. The objects are cached, because modules share entry points.

    Up to `_MAX_SEPARATE` entry points have separate objects. More entry points are compiled together (`_objects_of`), because each object
    takes LLVM two milliseconds and the linker one.
    """
    groups = [(point,) for point in points] if len(points) <= _MAX_SEPARATE else [points]
    objects = [data for group in groups for data in _objects_of(group, level)]
    return EntryObjects(tuple(objects), tuple(symbols_of_entries(points)))


@lru_cache(maxsize=512)
def _objects_of(points: tuple[EntryPoint, ...], level: int) -> tuple[bytes, ...]:
    """Return up to two objects: one with the entry points assembled from patterns, and one with those that LLVM compiles."""
    assembled, uncovered = object_file.entry_object(points)
    compiled = _compile_entries(uncovered, level) if uncovered else b""
    return tuple(filter(None, [assembled, compiled]))


def _compile_entries(points: tuple[EntryPoint, ...], level: int) -> bytes:
    """Return the object file with entry points. They are compiled for the baseline processor, so that every host can share them."""
    with codegen.new_context() as context:
        text = entries_text(points)
        module = codegen.parse(text, context)
        codegen.check_triple(module)
        with codegen.borrow_machine(baseline(platform_name()), "", level, text) as target:
            module.data_layout = codegen.data_layout(target)
            return codegen.emit_object(module, target)


def table_symbols(prepared: Prepared, definitions: Mapping[str, Definition], stubs: Iterable[str]) -> list[str]:
    """Return the symbols at the start of a module's table: exports, start and end functions, and stubs for the symbols `stubs`."""
    start = [pic.INITIALIZE, pic.TERMINATE] if pic.INITIALIZE in definitions else []
    return [*(export.symbol for export in prepared.exports), *start, *map(stub_symbol, stubs)]


def _must_run_later(constructors: pic.Constructors, definitions: Mapping[str, Definition], resolution: Resolution, *, shared: bool) -> bool:
    """Return whether the runtime must run the constructors and destructors instead of the dynamic linker.

    The result is False for objects (not `shared`), which the dynamic linker does not map. Constructors that use imports or globals must
    run later, because these are bound after mapping. Constructors that call external functions must run later, because they could deadlock:
    such a function may wait for the GIL, while the thread that holds the GIL waits for the dynamic linker's lock to import an extension
    module. Destructors that are registered at run time may call any function. Code generation may call functions that it knows by name.
    """
    if not shared or not constructors.functions():
        return False
    if (FINALIZE in definitions and resolution.imports) or any(map(is_known_by_name, [*resolution.imports, *resolution.thunks])):
        return True
    reached = DependencyGraph({name: definition.references for name, definition in definitions.items()}).closure(constructors.functions())
    bound = {*resolution.imported(), *resolution.storage}
    return any(name in bound or _is_external(name, definitions) for name in reached)


def _is_external(name: str, definitions: Mapping[str, Definition]) -> bool:
    """Return whether code outside of the module defines a function. LLVM's intrinsics are not external."""
    return not name.startswith("llvm.") and (name not in definitions or definitions[name].kind == "declaration")


def _startup_functions(
    definitions: Mapping[str, Definition], constructors: pic.Constructors, resolution: Resolution, text: str
) -> tuple[str, ...]:
    """Return the functions that run when the image is mapped, and those that run when the module is loaded or unloaded.

    Raise `CompileError` if functions that run while the image is mapped use imports or globals, which are bound later.
    """
    run_by_mapping = pic.symbols_run_by_mapping(definitions, constructors, read_assembly(text).mentioned)
    graph = DependencyGraph({name: definition.references for name, definition in definitions.items()} if run_by_mapping else {})
    reached = graph.closure(run_by_mapping)
    imported = resolution.imported()
    needed = [imported[name] for name in reached if name in imported]
    needed += [name.removeprefix(SLOT_PREFIX) for name in reached if name in resolution.storage]
    if needed:
        raise CompileError(
            f"code that runs while the module is mapped ({', '.join(run_by_mapping)}) uses {', '.join(map(repr, needed))}, but imports and "
            "globals are bound later: move this code into a function that the program calls first"
        )
    return (*run_by_mapping, pic.INITIALIZE, pic.TERMINATE) if pic.INITIALIZE in definitions else run_by_mapping


def _write_and_read_back(module: Any, context: Any) -> tuple[bytes, Any]:
    """Convert a module to bitcode and back. Return the bitcode and the module that was read from the bitcode.

    The image must be compiled from the returned module. Bitcode does not contain the order of a value's uses, which affects machine code.
    Therefore compiling the stored bitcode (`compcache.build.kept_code`) would not reproduce an image of the original module.
    """
    code = module.as_bitcode()
    return code, codegen.read_back(code, context)


def _image_key(text: str, request: Request, prepared: Prepared) -> bytes:
    """Return a digest of all inputs of the image. The image and the manifest contain it."""
    libraries = [(library.name, getattr(library, "digest", "")) for library in prepared.resolution.libraries]
    target = request.machine.cpu, request.machine.features
    settings = prepared.exports, target, request.level, prepared.resolution.imported(), list(prepared.globals), libraries
    parts = [*prepared.data.values(), text.encode("utf-8", "surrogateescape"), repr(settings).encode(), codegen.llvm_version().encode()]
    return digest(parts, size=KEY_SIZE)
