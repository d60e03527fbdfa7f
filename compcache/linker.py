"""The miss path: from a module's source to the sections of a module file.

Parse, provide for declarations (`compcache.build.slots`), optimize, read the dependency graph off the result, add entry
points and the module table (`compcache.build.entry_points`), emit an object and link it into a shared object
(`compcache.images.linked_image`). LLVM works in a thread of its own (`compcache.images.llvm_thread`); what is the caller's
stays in the caller's thread. The linker knows no directory: it asks `is_cached` whether the cache holds a function, and
hands back a `BuiltModule`.
"""

from __future__ import annotations

import time
import warnings
import zlib
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.entry_points import entries_text, symbols_of_entries, table_text
from compcache.build.exports import (
    MERGED,
    VISIBLE_LINKAGES,
    Export,
    choose_exports,
    make_entries,
    read_exports,
)
from compcache.build.ir_text import (
    Definition,
    extreme_of,
    is_vectorized,
    lines_of_variables,
    passes_vectors,
    read_assembly,
    read_module,
    section_bounds,
    with_image_symbols,
)
from compcache.build.large_data.variables import abridged, set_data_aside, with_data
from compcache.build.pic import (
    ADDRESS_OF,
    INITIALIZE,
    TERMINATE,
    Alias,
    Constructors,
    aliases,
    find_constructors,
    for_shared_object,
    merged_variables,
    run_by_mapping,
    shared_thread_locals,
    thread_locals,
    with_addresses,
    with_deferred_start,
    with_init_arrays,
)
from compcache.build.recipe import write_recipe
from compcache.build.records import RecordBuilder, encode_definition, is_weak, symbol_nodes
from compcache.build.slots import (
    SLOT_PREFIX,
    Requests,
    Resolution,
    imported_thread_locals,
    read_requests,
    resolve_declarations,
    restore_resolution,
)
from compcache.build.source import ModuleSource
from compcache.build.trial import UNTRUSTED, assembly_parts, has_assembly, try_in_child
from compcache.content.names import frozen, source_digests
from compcache.depgraph import DependencyGraph
from compcache.digest import KEY_SIZE, digest
from compcache.errors import CacheWarning, CompileError, GlobalValidationError, LinkerError
from compcache.formats import host
from compcache.formats.graph import SOURCE_DIGESTS, encode_graph, encode_notes
from compcache.formats.manifest import NO_ENTRY, ModuleRecord
from compcache.formats.manifest_writer import image_flag
from compcache.formats.module_table import TABLE_SYMBOL
from compcache.images.archives import Archive
from compcache.images.elf import set_aside
from compcache.images.linked_image import EntryObject, first_linker, link_image
from compcache.images.linkers.find import find_linker
from compcache.images.llvm_thread import in_llvm_thread
from compcache.images.static_runtime import FINALIZE
from compcache.targets.libc import libc_requirement
from compcache.targets.machine import NATIVE, as_text, machine_for, requested_targets
from compcache.targets.used_features import (
    TARGET_ATTRIBUTE,
    check_attributes,
    exported_requirements,
    target_attributes,
    uses_beyond,
    without_unknown_features,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from compcache.build.entry_points import EntryPoint
    from compcache.build.exports import Entries
    from compcache.build.recipe import Recipe
    from compcache.formats.host import Host
    from compcache.images.linked_image import LinkerFor
    from compcache.targets.machine import Machine

__all__ = ["BuiltModule", "Translation", "build_module", "link_module", "rebuild_module", "translate_module"]

_EXTERNAL, _INTERNAL = "external", "internal"
#: Words of code whose meaning is read off what LLVM prints, since who writes assembly is free to write it in other ways.
_READ_AS_PRINTED = ("dso_local", "thread_local", "hidden", "protected", "PIE Level", " alias ", " ifunc ", "linkonce", "weak", "common", "module asm", "__st")
#: What the names begin with under which a module has its own definitions of merged variables.
_OWN = "compcache.own."
_LEVELS = (0, 1, 2, 3)


class BuiltModule(NamedTuple):
    """A compiled module, ready to be published or loaded from memory.

    `sections` are image, records, graph, bitcode and notes; `functions` are (func_name, record offset,
    requirement). `header`,
    `signatures` (one for each function) and `imports` (func_names) repeat what the records say, for who lists modules.
    `others` are the same code for the other targets of the source.
    """

    sections: tuple[bytes, bytes, bytes, bytes, bytes]
    functions: tuple[tuple[str, int, str], ...]
    target: bytes
    flags: int
    key: bytes
    seconds: float
    header: ModuleRecord
    signatures: tuple[str, ...]
    imports: tuple[str, ...]
    code: str  # the digest of what it was made of (compcache.content.names)
    others: tuple[BuiltModule, ...] = ()


class _Request(NamedTuple):
    """A snapshot of the source."""

    ir: Any
    exports: tuple[Export, ...] | None
    requests: Requests
    level: int
    machine: Machine
    keep_bitcode: bool
    identity: Any
    target: str  # as the source names it, where it names several
    portable: bool  # the source says for which hosts it is: all of it is kept as it was before it was optimized
    untrusted: bool
    digests: dict[str, str]
    by_linker: bool  # entry points are an object of their own, and what the cache provides are symbols that the linker leaves places for, and not slots
    is_cached: Callable[[str], bool] = bool
    assumed: dict[str, bool] | None = None  # gets what nothing provides yet (compcache.build.slots)


class _Checked(NamedTuple):
    """What is known of a module that can be compiled here."""

    text: str
    printed: str  # the same as LLVM prints it, ready for a shared object: what patterns are searched for in
    attributes: dict[str, str]  # of each function that says for which CPU it is
    data: dict[str, bytes]  # values of large variables, by section (compcache.build.large_data)


class _Prepared(NamedTuple):
    """A module before optimization, as read off its source; `globals` are (name, kind, encoded value)."""

    exports: tuple[Export, ...]
    aliases: dict[str, Alias]
    resolution: Resolution
    globals: tuple[tuple[str, str, bytes], ...]
    needs: dict[str, frozenset[str]]
    code: bytes  # before it is optimized, where it is to be kept
    data: Mapping[str, bytes] = {}  # values of large variables, by section (compcache.build.large_data)


class _Translated(NamedTuple):
    """The result of compiling a module for one machine. It holds no LLVM object."""

    machine: Machine
    requires: str
    prepared: _Prepared
    definitions: dict[str, Definition]
    constructors: Constructors
    startup: tuple[str, ...]
    entries: Entries
    slots: tuple[str, ...]
    key: bytes
    bitcode: bytes
    level: int
    object: bytes
    entry_object: EntryObject
    digests: dict[str, str]
    seconds: float = 0.0


class Translation(NamedTuple):
    """A module that was compiled and not linked yet: the requests, one for each target, and what LLVM made of each."""

    machine: Host
    parts: tuple[tuple[_Request, _Translated], ...]

    @property
    def functions(self) -> frozenset[str]:
        """The func_names that it exports."""
        return frozenset([export.name for _, translated in self.parts for export in translated.prepared.exports])


def build_module(
    source: ModuleSource,
    *,
    machine: Host,
    is_cached: Callable[[str], bool],
    linker_for: LinkerFor = first_linker,
    maker: str = "",
) -> BuiltModule:
    """Compile and link a module, once for each of its targets; the result is the one for this host.

    Args:
        source: the code and what it exports, imports and uses.
        machine: this host.
        is_cached: whether the cache holds a function of this name.
        linker_for: gives the linker for an object, or None.
        maker: a digest of the program that gave the source, to be kept beside that of the source.

    Raises:
        CompileError, LinkError, SignatureError, InvalidNameError, GlobalValidationError: what is wrong with
            the source; each message names the culprit.
    """
    return link_module(translate_module(source, machine=machine, is_cached=is_cached, maker=maker), linker_for)


def translate_module(
    source: ModuleSource,
    *,
    machine: Host,
    is_cached: Callable[[str], bool],
    maker: str = "",
    assumed: dict[str, bool] | None = None,
) -> Translation:
    """The part of `build_module` that LLVM does.

    `assumed`, if given, gets the symbols that nothing provides, and whether each is a function: they become imports.
    """
    if not isinstance(source, ModuleSource):
        raise CompileError(f"expected a compcache.ModuleSource, not {type(source).__name__}")
    requests = [r._replace(is_cached=is_cached, assumed=assumed) for r in _snapshot(frozen(source), machine, maker)]
    return Translation(machine, tuple([(request, _translate_for(request, is_cached)) for request in requests]))


def link_module(translation: Translation, linker_for: LinkerFor = first_linker) -> BuiltModule:
    """The rest of `build_module`, for any thread: LLVM is needed only if the linker fails."""
    machine, parts = translation
    built = [_link_for(request, translated, linker_for) for request, translated in parts]
    best = max(built, key=lambda module: machine.rank(module.header.requirement()))
    return best._replace(others=tuple([module for module in built if module is not best]))


def rebuild_module(
    recipe: Recipe, notes: Mapping[str, Any], machine: Host, linker_for: LinkerFor = first_linker
) -> BuiltModule:
    """Make the image of a stored module again, for this host.

    Args:
        recipe: what it is made of.
        notes: those of the stored module, whose identity and digests of the source hold for this one as well.
        machine: this host.
        linker_for: gives the linker for an object, or None.

    Raises:
        CompileError: the code cannot be translated for it, or might use what it does not have.
        LinkError, ...: as of `build_module`.
    """
    target = machine_for(None, None, machine, host.platform_name())
    digests = {name: str(notes[name]) for name in SOURCE_DIGESTS if name in notes}

    def rebuild(*, by_linker: bool) -> BuiltModule:
        started = time.perf_counter()
        translated = codegen.run(lambda context: _translate_again(context, recipe, target, by_linker=by_linker))
        translated = translated._replace(digests=digests, seconds=time.perf_counter() - started)
        return _finish(translated, notes.get("identity"), linker_for)

    try:
        with suppress(LinkerError):
            return rebuild(by_linker=find_linker() is not None)
        return rebuild(by_linker=False)
    except LinkerError as error:
        raise CompileError(f"the code imports what only a linker can leave places for: {error}") from error


def _translate_for(request: _Request, is_cached: Callable[[str], bool]) -> _Translated:
    started = time.perf_counter()
    with _naming_target(request):
        if request.untrusted:
            for code in _raw(request.ir):
                try_in_child(code, request.machine, request.level, UNTRUSTED)
        translated = codegen.run(lambda context: _translate(context, request, is_cached))
    return translated._replace(seconds=time.perf_counter() - started)


def _link_for(request: _Request, translated: _Translated, linker_for: LinkerFor) -> BuiltModule:
    with _naming_target(request):
        try:
            return _finish(translated, request.identity, linker_for)
        except LinkerError as error:
            warnings.warn(f"{error}; the module is stored as an object, which loads more slowly", CacheWarning, stacklevel=2)
            plain = _translate_for(request._replace(by_linker=False), request.is_cached)
            return _finish(plain, request.identity, linker_for)


@contextmanager
def _naming_target(request: _Request) -> Iterator[None]:
    """Let errors say for which of several targets they are."""
    try:
        yield
    except CompileError as error:
        if request.target and type(error) is CompileError:
            raise CompileError(f"for the target {request.target!r}: {error}") from error
        raise


def _finish(translated: _Translated, identity: Any, linker_for: LinkerFor) -> BuiltModule:
    """Link the object, and write the sections of the module's file."""
    started = time.perf_counter()
    resolution = translated.prepared.resolution
    image, kind, places = link_image(
        translated.object,
        entries=translated.entry_object,
        export=TABLE_SYMBOL,
        weak=[name for name, definition in translated.definitions.items() if is_weak(definition)] + _bounds(translated.definitions),
        imports=resolution.imports,
        needs_linker=_needs_linker(translated),
        libraries=resolution.libraries,
        linker_for=linker_for,
    )
    return _assemble(translated, identity, image, kind, places, started - translated.seconds)


# ------------------------------------------------------------ in LLVM's thread


def _translate(context: Any, request: _Request, is_cached: Callable[[str], bool]) -> _Translated:
    """From source to object."""
    if isinstance(request.ir, str):
        _refuse_extremes(request.ir)
    module = codegen.parse(request.ir, context)
    codegen.check_triple(module)
    attributes = target_attributes(module, request.ir)
    check_attributes(attributes, host.platform_name())
    known = without_unknown_features(module, attributes, host.platform_name())
    if known is not None:
        module = codegen.parse(known, context)
        attributes = target_attributes(module, known)
    request = request._replace(machine=_safe_machine(request.machine, attributes))
    _try_if_suspicious(module, request, attributes)
    data = set_data_aside(module, context, _size(request.ir), _refuse_extremes)
    text = request.ir if isinstance(request.ir, str) and not data else str(module)
    if text is not request.ir:
        _refuse_extremes(text)
    printed = str(module) if text is request.ir and any(word in text for word in _READ_AS_PRINTED) else text
    changed = for_shared_object(printed)
    if changed is not None:
        module, printed = codegen.parse(changed, context), changed
    changed, request = _with_thread_locals(printed, request, is_cached)
    if changed is not None:
        module, printed = codegen.parse(changed, context), changed
    with codegen.borrowed_machine(request.machine.cpu, request.machine.features, request.level) as target:
        return _compile(context, module, _Checked(text, printed, attributes, data), request, target, is_cached)


def _with_thread_locals(printed: str, request: _Request, is_cached: Callable[[str], bool]) -> tuple[str | None, _Request]:
    """The module's text in which thread-local variables are shared with other modules, if it has any, and the request for it."""
    declared, defined = shared_thread_locals(lines_of_variables(printed))
    if not request.by_linker or not (declared or defined):
        return None, request
    requests = request.requests
    imported = codegen.in_caller(imported_thread_locals, declared, requests, is_cached)
    asked = defined if request.exports is None else defined.intersection([export.symbol for export in request.exports])
    imports = {ADDRESS_OF + name if name in imported else name: ADDRESS_OF + of if name in imported else of for name, of in requests.imports.items()}
    return with_addresses(printed, sorted(imported), sorted(asked)), request._replace(requests=requests._replace(imports=imports))


def _compile(
    context: Any, module: Any, source: _Checked, request: _Request, target: Any, is_cached: Callable[[str], bool]
) -> _Translated:
    """From a module that can be compiled here to its object."""
    text, printed = source.text, source.printed
    module.data_layout = str(target.target_data)
    variables = lines_of_variables(printed)
    names, local = aliases(variables), thread_locals(variables)
    merged = merged_variables(variables) if request.by_linker else {}
    assembly, bounds = read_assembly(printed), section_bounds(printed)
    exports = choose_exports(module, request.exports, names, local, merged, assembly.defined)
    resolution = resolve_declarations(
        module,
        target.target_data,
        request.requests,
        lambda names: codegen.in_caller(_chosen, names, is_cached),
        by_linker=request.by_linker,
        thread_locals=local,
        defined=assembly.defined | bounds,
        assumed=request.assumed,
    )
    resolution = _with_merged(resolution, exports)
    needs = exported_requirements(_aliased(exports, names), source.attributes, request.machine, host.platform_name(), text)
    encoded = _encoded_globals(resolution)
    # What static libraries call back must have a symbol.
    hides = request.exports is not None and not any(isinstance(library, Archive) for library in resolution.libraries)
    _prepare(module, exports, resolution, context, hide_others=hides, kept=assembly.mentioned)
    # Code with assembly is never compiled for another CPU, and the writer of bitcode aborts over assembly that is not valid.
    keeps = request.keep_bitcode and request.level and not has_assembly(text)
    code = module.as_bitcode() if keeps else b""
    codegen.optimize(module, target, request.level)
    optimized = str(module)
    if not request.portable and not is_vectorized(optimized):
        code = b""
    prepared = _Prepared(exports, names, resolution, encoded, needs, code, source.data)
    return _emit(module, optimized, context, target, request, prepared)


def _translate_again(context: Any, recipe: Recipe, machine: Machine, *, by_linker: bool) -> _Translated:
    """From kept code to an object for another machine."""
    module = codegen.parse(recipe.code, context)
    text = str(module)
    _require_portable(module, text, machine)
    attributes = target_attributes(module, None)
    machine = _safe_machine(machine, attributes)
    intrinsics = [f.name for f in module.functions if f.name.startswith(("llvm.x86.", "llvm.aarch64."))]
    if intrinsics or codegen.is_suspicious([p for t in attributes.values() for p in TARGET_ATTRIBUTE.findall(t)]):
        codegen.in_caller(try_in_child, recipe.code, machine, 0 if recipe.optimized else recipe.level)
    names = aliases(text)
    request = _Request(
        recipe.code, recipe.exports, read_requests(ModuleSource("")), recipe.level, machine, True, None, "", True, False, {},
        by_linker,
    )
    with codegen.borrowed_machine(machine.cpu, machine.features, recipe.level) as emitter:
        if not recipe.optimized:
            codegen.optimize(module, emitter, recipe.level)
        needs = exported_requirements(_aliased(recipe.exports, names), attributes, machine, host.platform_name(), text)
        resolution = restore_resolution(module, recipe.slots, recipe.storage, recipe.libraries)
        encoded = codegen.in_caller(_encode_all, resolution)
        code = b"" if recipe.optimized else recipe.code
        prepared = _Prepared(recipe.exports, names, resolution, encoded, needs, code, recipe.data)
        return _emit(module, str(module), context, emitter, request, prepared)


def _require_portable(module: Any, text: str, machine: Machine) -> None:
    intrinsics = [f.name for f in module.functions if f.name.startswith("llvm.x86.")]
    if uses_beyond(intrinsics, machine.requires):
        raise CompileError("the code uses intrinsics of features that this host does not have")
    if has_assembly(text):
        raise CompileError("the code has inline assembly, which may use any feature")
    if passes_vectors(text):
        raise CompileError("the code exchanges vectors with other modules, for which each CPU has its own calling convention")


def _raw(ir: Any) -> Iterable[str | bytes]:
    """The code in pieces that a child process reads, none of which has been parsed here."""
    if isinstance(ir, tuple):
        return ir
    return [ir if isinstance(ir, (str, bytes)) else in_llvm_thread(lambda: str(ir))]


def _size(ir: Any) -> int:
    """The length of a source's code."""
    return sum(map(len, ir)) if isinstance(ir, tuple) else len(ir)


def _refuse_extremes(text: str) -> None:
    reason = extreme_of(abridged(text))
    if reason is not None:
        raise CompileError(f"the code has {reason}")


def _snapshot(source: ModuleSource, machine: Host, maker: str) -> list[_Request]:
    """One request for each target that the source names."""
    if source.optimize not in _LEVELS:
        raise CompileError(f"optimize must be 0, 1, 2 or 3, not {source.optimize!r}")
    targets = requested_targets(source)
    ir, exports, requests = codegen.plain_source(source.ir), read_exports(source), read_requests(source)
    digests = {"maker": maker}
    if isinstance(source.ir, (str, bytes)):
        digests |= dict(zip(("code", "source"), [part.hex() for part in source_digests(source)], strict=True))
    return [
        _Request(
            ir, exports, requests, source.optimize, machine_for(cpu, features, machine, host.platform_name()),
            source.keep_bitcode, source.identity, (cpu or "") if len(targets) > 1 else "",
            len(targets) > 1 or cpu not in (None, NATIVE),
            source.untrusted,
            digests,
            find_linker() is not None,
        )
        for cpu, features in targets
    ]  # fmt: skip


def _safe_machine(machine: Machine, attributes: Mapping[str, str]) -> Machine:
    """The machine, named so that no function gets features that the machine lacks.

    To LLVM a function's own features take the place of the machine's, which are what takes away the features that the host's CPU has
    by its name alone.
    """
    bare = any('"target-features"' in text and '"target-cpu"' not in text for text in attributes.values())
    return machine.by_features(host.platform_name()) if bare else machine


def _try_if_suspicious(module: Any, request: _Request, attributes: Mapping[str, str]) -> None:
    machine = request.machine
    pairs = {("target-cpu", machine.cpu), ("target-features", machine.features)}
    pairs |= {pair for text in set(attributes.values()) for pair in TARGET_ATTRIBUTE.findall(text)}
    intrinsics = [f.name for f in module.functions if f.name.startswith("llvm.x86.")]
    if codegen.is_suspicious(pairs) or uses_beyond(intrinsics, machine.requires):
        codegen.in_caller(try_in_child, str(module), machine, request.level)


def _aliased(exports: Iterable[Export], names: Mapping[str, Alias]) -> dict[str, str]:
    """The symbol that each exported one is an alias of, or itself."""
    return {e.symbol: names[e.symbol].target if e.symbol in names else e.symbol for e in exports}


def _chosen(names: list[str], condition: Callable[[str], bool]) -> list[str]:
    return list(filter(condition, names))


def _encoded_globals(resolution: Resolution) -> tuple[tuple[str, str, bytes], ...]:
    """The stored forms of the global variables: (name, kind, encoded value)."""
    return codegen.in_caller(_encode_globals, resolution) if resolution.storage else ()


def _encode_globals(resolution: Resolution) -> tuple[tuple[str, str, bytes], ...]:
    """Load every definition once, now: a global that fails here would fail every later load."""
    for name, (definition, storage) in resolution.storage.items():
        shown = name.removeprefix(SLOT_PREFIX)
        try:
            definition.load(storage, _DryRun())
        except GlobalValidationError as error:
            message = f"global {shown!r} cannot be used: {error.reason or error}"
            raise type(error)(message, global_name=shown, reason=error.reason) from error
    return _encode_all(resolution)


def _encode_all(resolution: Resolution) -> tuple[tuple[str, str, bytes], ...]:
    definitions = {name: definition for name, (definition, _) in resolution.storage.items()}
    return tuple(sorted([(name, value.kind, encode_definition(value, name)) for name, value in definitions.items()]))


class _DryRun:
    """A load context that checks what can be checked without an image."""

    allow_pickle = True
    request: object = None

    def address_of(self, buffer: object) -> int:
        """Any address: only whether the value fits is checked."""
        return id(buffer)

    def find_symbol(self, name: str, library: str | None) -> int:
        """Whether the symbol is there: its address."""
        import ctypes

        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            return 0


def _prepare(
    module: Any,
    exports: Iterable[Export],
    resolution: Resolution,
    context: Any,
    *,
    hide_others: bool,
    kept: Collection[str],
) -> None:
    """Link the support code in, and give every definition the linkage that it has inside an image.

    Those in `kept` can be used by what LLVM does not see.
    """
    if resolution.support:
        module.link_in(codegen.parse(resolution.support, context))
    exported = {export.symbol for export in exports}
    for name in resolution.thunks:
        module.get_function(name).linkage = _INTERNAL
    ready = {*resolution.slots, *resolution.storage}
    for value in [*module.functions, *module.global_variables]:
        if value.is_declaration:
            continue
        name = value.name
        if name in ready or name.startswith("llvm."):
            continue
        if name in resolution.imports:
            value.linkage = "weak_odr" if "_odr" in value.linkage.name else "weak_any"
            value.visibility = "default"
        elif name in exported:
            value.linkage = _EXTERNAL
            value.visibility = "hidden"
        elif value.linkage.name in VISIBLE_LINKAGES:
            _privatize(value, internal=hide_others and name not in kept)


def _privatize(value: Any, *, internal: bool) -> None:
    if internal:
        value.visibility = "default"
        value.linkage = _INTERNAL
    else:
        value.visibility = "hidden"


def _emit(module: Any, text: str, context: Any, target: Any, request: _Request, prepared: _Prepared) -> _Translated:
    """From the optimized module, and what it is as text, to its object."""
    definitions = with_image_symbols(read_module(text), text)
    constructors = find_constructors(text)
    if _must_wait(constructors, definitions, prepared.resolution, by_linker=request.by_linker):
        module = codegen.parse(with_deferred_start(text, constructors), context)
        text = str(module)
        definitions, constructors = with_image_symbols(read_module(text), text), Constructors((), ())
    startup = run_by_mapping(definitions, constructors)
    _check_startup(startup, definitions, prepared.resolution)
    startup += (INITIALIZE, TERMINATE) if INITIALIZE in definitions else ()
    doubtful = assembly_parts(text)
    if doubtful is not None:
        codegen.in_caller(try_in_child, doubtful, request.machine, 0)
    bitcode = b""
    if request.keep_bitcode:
        bitcode, module = _kept(module, context)
    if constructors.functions():
        module = codegen.parse(with_init_arrays(text, constructors), context)
    entries = make_entries(prepared.exports, definitions, prepared.aliases)
    slots = tuple([name for name in (*prepared.resolution.slots, *prepared.resolution.storage) if name in definitions])
    key = _key(text, request, prepared)
    symbols = _table_symbols(prepared, definitions)
    variables = {export.symbol for export in prepared.exports if definitions[export.symbol].kind == "variable"}
    shared = sorted(variables.difference(prepared.aliases))
    own = {name: _OWN + name for name in shared if name in prepared.resolution.imports}
    named = [own.get(name, name) for name in symbols]
    shared = [own.get(name, name) for name in shared]
    apart = request.by_linker
    module.link_in(codegen.parse(table_text(key, named, entries.points, slots, shared, with_entries=not apart), context))
    obj = with_data(codegen.emit_object(module, target), prepared.data)
    if own:
        obj = set_aside(obj, own)
    entry_object = _entry_object(entries.points, request.machine[:2], request.level) if apart else EntryObject()
    machine = request.machine
    requires = machine.required_by(text)
    return _Translated(
        machine, requires, prepared._replace(data={}), definitions, constructors, startup, entries, slots, key, bitcode, request.level, obj,
        entry_object, request.digests,
    )


@lru_cache(maxsize=64)
def _entry_object(points: tuple[EntryPoint, ...], machine: tuple[str, str], level: int) -> EntryObject:
    """The object of entry points, which most modules of a program have in common: a third of what a tiny module takes LLVM."""
    if not points:
        return EntryObject()
    with codegen.new_context() as context:
        module = codegen.parse(entries_text(points), context)
        codegen.check_triple(module)
        with codegen.borrowed_machine(*machine, level) as target:
            module.data_layout = str(target.target_data)
            return EntryObject(codegen.emit_object(module, target), tuple(symbols_of_entries(points)))


def _with_merged(resolution: Resolution, exports: Iterable[Export]) -> Resolution:
    """Merged variables are imported by the module that defines them as well."""
    merged = {export.symbol: export.name for export in exports if export.link_only == MERGED}
    return resolution._replace(imports={**resolution.imports, **merged}) if merged else resolution


def _table_symbols(prepared: _Prepared, definitions: Mapping[str, Definition]) -> list[str]:
    """The symbols that come first in the table of a module."""
    return [*(export.symbol for export in prepared.exports), *([INITIALIZE, TERMINATE] if INITIALIZE in definitions else [])]


def _must_wait(
    found: Constructors, definitions: Mapping[str, Definition], resolution: Resolution, *, by_linker: bool
) -> bool:
    """Whether the runtime has to run constructors and destructors, in place of the dynamic linker.

    Those that use what is bound only after the image is mapped, and those that call anything outside of the module: that may want
    the GIL, or start a thread that does, while another thread has it and waits for the dynamic linker's lock to import an extension
    module. Destructors that register when they are needed may use anything.
    """
    if not by_linker or not found.functions():
        return False
    if FINALIZE in definitions and resolution.imports:
        return True
    reached = DependencyGraph({name: d.references for name, d in definitions.items()}).closure(found.functions())
    bound = {*resolution.imported(), *resolution.storage}
    return any(name in bound or _is_outside(name, definitions) for name in reached)


def _is_outside(name: str, definitions: Mapping[str, Definition]) -> bool:
    return not name.startswith("llvm.") and (name not in definitions or definitions[name].kind == "declaration")


def _kept(module: Any, context: Any) -> tuple[bytes, Any]:
    """The code to keep, and the module that reading it gives, of which the image is made.

    Bitcode does not say in which order a value is used, and some of the machine code follows that order: whoever
    translates the kept code (`compcache.build.kept_code`) gets what is in the image only if that was made of it, too.
    """
    code = module.as_bitcode()
    return zlib.compress(code, 1), codegen.read_back(code, context)


def _key(text: str, request: _Request, prepared: _Prepared) -> bytes:
    """A digest of everything that decides the image; image and manifest must agree on it."""
    libraries = [(library.name, getattr(library, "digest", "")) for library in prepared.resolution.libraries]
    settings = (
        prepared.exports, request.machine[:2], request.level, prepared.resolution.imported(), list(prepared.globals), libraries
    )  # fmt: skip
    parts = [*prepared.data.values(), text.encode("utf-8", "surrogateescape"), repr(settings).encode(), codegen.llvm_version().encode()]
    return digest(parts, size=KEY_SIZE)


def _check_startup(startup: tuple[str, ...], definitions: Mapping[str, Definition], resolution: Resolution) -> None:
    """Refuse constructors that use imports or globals: they run while the image is mapped, before slots are filled."""
    if not startup:
        return
    graph = DependencyGraph({name: definition.references for name, definition in definitions.items()})
    reached = graph.closure(startup)
    imported = resolution.imported()
    needed = [imported[name] for name in reached if name in imported]
    needed += [name.removeprefix(SLOT_PREFIX) for name in reached if name in resolution.storage]
    if needed:
        raise CompileError(
            f"{', '.join(startup)}, which runs while the module is mapped, uses {', '.join(map(repr, needed))}, which can only be bound "
            "afterwards: let a function do it that is called first"
        )


# ---------------------------------------------------------- in the caller's thread


def _bounds(definitions: Mapping[str, Definition]) -> list[str]:
    """The bounds of sections that a linker defines: written as declarations, counted among the module's own."""
    return [
        name
        for name, definition in definitions.items()
        if name.startswith(("__start_", "__stop_")) and definition.kind == "variable" and " external " in definition.head
    ]


def _needs_linker(translated: _Translated) -> list[str]:
    """Features of the module that need the dynamic linker, in words; a plain object cannot be loaded with them."""
    reasons = [f"the constructor or destructor {name!r}" for name in translated.constructors.functions()]
    reasons += ["constructors or destructors"] if INITIALIZE in translated.definitions else []
    external = [name for name, definition in translated.definitions.items() if definition.kind == "external"]
    imports = translated.prepared.resolution.imports
    reasons += [f"the bound {name!r} of a section" for name in _bounds(translated.definitions)]
    reasons += [f"the imported variable {name!r}" for name in external if name in imports]
    reasons += [
        f"the thread-local variable {name!r}"
        for name, definition in translated.definitions.items()
        if " thread_local" in definition.head
    ]
    aliases_of = translated.prepared.aliases
    return reasons + [f"the ifunc {name!r}" for name, alias in aliases_of.items() if alias.is_ifunc]


def _assemble(
    translated: _Translated, identity: Any, image: bytes, kind: str, places: Mapping[str, bytes], started: float
) -> BuiltModule:
    """The sections of the module's file."""
    prepared, entries, key = translated.prepared, translated.entries, translated.key
    platform = codegen.host_platform()
    machine, requires = translated.machine, translated.requires
    libc = libc_requirement(image)
    header = ModuleRecord(
        key, kind, platform, machine.cpu, requires, libc, machine.features, codegen.llvm_version(), host.ABI_VERSION
    )
    extra = {name: as_text(needs - host.required(requires)) for name, needs in prepared.needs.items()}
    symbols = _table_symbols(prepared, translated.definitions)
    first_slot = len(symbols) + len(entries.points)
    numbers = {name: first_slot + i for i, name in enumerate(translated.slots)}
    if INITIALIZE in translated.definitions:
        numbers[INITIALIZE] = len(prepared.exports)
    writer = RecordBuilder(
        header, translated.definitions, prepared.resolution, numbers, translated.startup,
        {name: payload for name, _, payload in prepared.globals}, places,
    )  # fmt: skip
    functions = []
    for number, export in enumerate(prepared.exports):
        entry = entries.numbers[number]
        place = NO_ENTRY if entry is None else len(symbols) + entry
        features = extra.get(export.symbol, "")
        offset = writer.add_function(export, entries.signatures[number], number, place, features)
        functions.append((export.name, offset, header.requirement(features)))
    signatures = dict(zip([export.symbol for export in prepared.exports], entries.signatures, strict=True))
    names = {export.symbol: export.name for export in prepared.exports}
    graph = encode_graph(symbol_nodes(translated.definitions, names, prepared.resolution, signatures))
    bitcode = translated.bitcode
    resolution = prepared.resolution
    if bitcode and not any(definition.is_machine_code for definition, _ in resolution.storage.values()):
        storage = {name: offset for name, offset in writer.globals.items() if name in resolution.storage}
        libraries = [library.name for library in resolution.libraries]
        bitcode += write_recipe(translated.level, prepared.exports, resolution.imported(), storage, libraries, prepared.code)
    seconds = time.perf_counter() - started
    notes = encode_notes(seconds, identity, translated.digests)
    sections = image, writer.records.content(), graph, bitcode, notes
    own = {name for name, *_ in functions}
    return BuiltModule(
        sections, tuple(functions), host.target_id(header.requirement()), image_flag(kind), key, seconds, header,
        tuple(entries.signatures), tuple([name for name in writer.imports if name not in own]),
        translated.digests.get("code", ""),
    )  # fmt: skip
