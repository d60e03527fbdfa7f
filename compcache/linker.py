"""The miss path: from a module's source to the sections of a module file.

Parse, provide for declarations (`compcache.build.slots`), optimize, read the dependency graph off the result, add entry
points and the module table (`compcache.build.entry_points`), emit an object and link it into a shared object
(`compcache.images.system_linker`). The linker knows no directory: it asks `is_cached` whether the cache holds a function, and
hands back a `BuiltModule`.
"""

from __future__ import annotations

import os
import time
import warnings
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.entry_points import table_text
from compcache.build.exports import VISIBLE_LINKAGES, Export, choose_exports, make_entries, read_exports
from compcache.build.ir_text import Definition, read_module
from compcache.build.pic import (
    Alias,
    Constructors,
    aliases,
    find_constructors,
    for_shared_object,
    run_by_mapping,
    with_init_arrays,
)
from compcache.build.recipe import write_recipe
from compcache.build.records import RecordBuilder, is_weak, symbol_nodes
from compcache.build.slots import (
    SLOT_PREFIX,
    Requests,
    Resolution,
    read_requests,
    resolve_declarations,
    restore_resolution,
)
from compcache.build.source import ModuleSource
from compcache.content.names import code_digest, content_digest, frozen
from compcache.depgraph import DependencyGraph
from compcache.digest import KEY_SIZE, digest
from compcache.errors import (
    CacheWarning,
    CompileError,
    GlobalValidationError,
    LinkerError,
    UndefinedSymbolError,
)
from compcache.formats import host
from compcache.formats.graph import encode_graph, encode_notes
from compcache.formats.manifest import NO_ENTRY, ModuleRecord, image_flag
from compcache.formats.module_table import TABLE_SYMBOL
from compcache.images import elf, platform_symbols, system_linker
from compcache.targets.libc import libc_requirement
from compcache.targets.machine import (
    NATIVE,
    TARGET_ATTRIBUTE,
    as_text,
    check_attributes,
    function_requirements,
    machine_for,
    requested_targets,
    uses_beyond,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from compcache.build.recipe import Recipe
    from compcache.formats.host import Host
    from compcache.targets.machine import Machine

__all__ = ["BuiltModule", "build_module", "rebuild_module"]

_EXTERNAL, _INTERNAL = "external", "internal"
_LEVELS = (0, 1, 2, 3)
#: What entry points and generated code refer to; always there, hence never weak.
_ALWAYS_THERE = ("Py", "_Py", "_GLOBAL_OFFSET_TABLE_")


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
    """A snapshot of all that the source says besides its code."""

    exports: tuple[Export, ...] | None
    requests: Requests
    level: int
    machine: Machine
    keep_bitcode: bool
    identity: Any
    target: str  # as the source names it, where it names several
    portable: bool  # the source says for which hosts it is: others may want it, too
    digests: dict[str, str]


class _Prepared(NamedTuple):
    """What is known of a module before it is optimized."""

    exports: tuple[Export, ...]
    aliases: dict[str, Alias]
    resolution: Resolution
    needs: dict[str, frozenset[str]]
    code: bytes  # before it is optimized, where it is to be kept


def build_module(
    source: ModuleSource, *, machine: Host, is_cached: Callable[[str], bool], maker: str = ""
) -> BuiltModule:
    """Compile and link a module, once for each of its targets; the result is the one for this host.

    Args:
        source: the code and what it exports, imports and uses.
        machine: this host.
        is_cached: whether the cache holds a function of this name.
        maker: a digest of the program that gave the source, to be kept beside that of the source.

    Raises:
        CompileError, LinkError, SignatureError, InvalidNameError, GlobalValidationError: what is wrong with
            the source; each message names the culprit.
    """
    if not isinstance(source, ModuleSource):
        raise CompileError(f"expected a compcache.ModuleSource, not {type(source).__name__}")
    source = frozen(source)
    built = [_build_for(source.ir, request, is_cached) for request in _snapshot(source, machine, maker)]
    best = max(built, key=lambda module: machine.rank(module.header.requirement()))
    return best._replace(others=tuple([module for module in built if module is not best]))


def _build_for(ir: Any, request: _Request, is_cached: Callable[[str], bool]) -> BuiltModule:
    started = time.perf_counter()
    try:
        with codegen.new_context() as context:
            return _build(ir, context, request, is_cached, started)
    except CompileError as error:
        if request.target and type(error) is CompileError:
            raise CompileError(f"for the target {request.target!r}: {error}") from error
        raise


def _build(
    ir: Any, context: Any, request: _Request, is_cached: Callable[[str], bool], started: float
) -> BuiltModule:
    module = codegen.parse(ir, context)
    codegen.check_triple(module)
    attributes = _target_attributes(module, ir)
    check_attributes(attributes, host.platform_name())
    request = request._replace(machine=_safe_machine(request.machine, attributes))
    _try_if_suspicious(module, request, attributes)
    text = ir if isinstance(ir, str) else str(module)
    if "dso_local" in text or "thread_local(" in text:
        changed = for_shared_object(str(module))  # as LLVM prints it, which is what the rewriting reads
        module = codegen.parse(changed, context) if changed is not None else module
    target = codegen.target_machine(request.machine.cpu, request.machine.features, request.level)
    module.data_layout = str(target.target_data)
    names = aliases(str(module)) if " alias " in text or " ifunc " in text else {}
    exports = choose_exports(module, request.exports, names)
    resolution = resolve_declarations(module, target.target_data, request.requests, is_cached)
    _check_globals(resolution)
    _prepare(module, exports, resolution, context, hide_others=request.exports is not None)
    code = module.as_bitcode() if request.portable and request.keep_bitcode else b""
    codegen.optimize(module, target, request.level)
    needs = _own_requirements(exports, names, attributes, request.machine)
    return _finish(module, context, target, request, _Prepared(exports, names, resolution, needs, code), started)


def rebuild_module(recipe: Recipe, identity: Any, machine: Host) -> BuiltModule:
    """Make the image of a stored module again, for this host.

    Raises:
        CompileError: the code cannot be translated for it, or might use what it does not have.
        LinkError, ...: as of `build_module`.
    """
    started = time.perf_counter()
    target = machine_for(None, None, machine, host.platform_name())
    with codegen.new_context() as context:
        module = codegen.parse(recipe.code, context)
        text = str(module)
        _require_portable(module, text, target)
        attributes = _target_attributes(module, None)
        target = _safe_machine(target, attributes)
        intrinsics = [f.name for f in module.functions if f.name.startswith(("llvm.x86.", "llvm.aarch64."))]
        if intrinsics or codegen.is_suspicious([p for t in attributes.values() for p in TARGET_ATTRIBUTE.findall(t)]):
            codegen.try_in_child(module, target.cpu, target.features, 0 if recipe.optimized else recipe.level)
        names = aliases(text)
        emitter = codegen.target_machine(target.cpu, target.features, recipe.level)
        resolution = restore_resolution(module, recipe.slots, recipe.storage, recipe.libraries)
        request = _Request(recipe.exports, read_requests(ModuleSource("")), recipe.level, target, True, identity, "", True, {})
        if not recipe.optimized:
            codegen.optimize(module, emitter, recipe.level)
        needs = _own_requirements(recipe.exports, names, attributes, target)
        code = b"" if recipe.optimized else recipe.code
        return _finish(module, context, emitter, request, _Prepared(recipe.exports, names, resolution, needs, code), started)


def _require_portable(module: Any, text: str, machine: Machine) -> None:
    intrinsics = [f.name for f in module.functions if f.name.startswith("llvm.x86.")]
    if uses_beyond(intrinsics, machine.requires):
        raise CompileError("the code uses intrinsics of features that this host does not have")
    if _has_assembly(text):
        raise CompileError("the code has inline assembly, which may use any feature")


def _snapshot(source: ModuleSource, machine: Host, maker: str) -> list[_Request]:
    """What the source says, once for each of its targets."""
    if source.optimize not in _LEVELS:
        raise CompileError(f"optimize must be 0, 1, 2 or 3, not {source.optimize!r}")
    targets = requested_targets(source)
    exports, requests = read_exports(source), read_requests(source)
    digests = {"maker": maker}
    if isinstance(source.ir, (str, bytes)):
        digests |= {"code": code_digest(source).hex(), "source": content_digest(source).hex()}
    return [
        _Request(
            exports, requests, source.optimize, machine_for(cpu, features, machine, host.platform_name()),
            source.keep_bitcode, source.identity, (cpu or "") if len(targets) > 1 else "",
            len(targets) > 1 or cpu not in (None, NATIVE), digests,
        )
        for cpu, features in targets
    ]  # fmt: skip


def _target_attributes(module: Any, ir: Any) -> dict[str, str]:
    """The attributes of each function that says for which CPU it is."""
    if isinstance(ir, str) and '"target-' not in ir and '"tune-cpu' not in ir:
        return {}
    found = {f.name: b" ".join(map(bytes, f.attributes)).decode("utf-8", "replace") for f in module.functions}
    return {name: text for name, text in found.items() if '"target-' in text or '"tune-cpu' in text}


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
        codegen.try_in_child(module, machine.cpu, machine.features, request.level)


def _own_requirements(
    exports: Iterable[Export], names: Mapping[str, Alias], attributes: Mapping[str, str], machine: Machine
) -> dict[str, frozenset[str]]:
    """What exported functions need of a host beside what the whole module needs, by symbol.

    What they call counts nothing: a call from code without a feature to code with it is chosen at run time.
    """
    found = {}
    for export in exports:
        name = names[export.symbol].target if export.symbol in names else export.symbol
        text = attributes.get(name, "")
        if text:
            found[export.symbol] = function_requirements(text, machine, host.platform_name())
    return found


def _check_globals(resolution: Resolution) -> None:
    """Every definition must load here and now: a stored global that never worked helps nobody."""
    for name, (definition, storage) in resolution.storage.items():
        shown = name.removeprefix(SLOT_PREFIX)
        try:
            definition.load(storage, _DryRun())
        except GlobalValidationError as error:
            message = f"global {shown!r} cannot be used: {error.reason or error}"
            raise type(error)(message, global_name=shown, reason=error.reason) from error


class _DryRun:
    """A load context that checks what can be checked without an image."""

    allow_pickle = True

    def address_of(self, buffer: object) -> int:
        """Any address: only the fit of the value is of interest."""
        return id(buffer)

    def find_symbol(self, name: str, library: str | None) -> int:
        """Whether the symbol is there: its address."""
        import ctypes

        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            return 0


def _prepare(
    module: Any, exports: Iterable[Export], resolution: Resolution, context: Any, *, hide_others: bool
) -> None:
    """Link the support code in, and give every definition the linkage that it has inside an image."""
    if resolution.support:
        module.link_in(codegen.parse(resolution.support, context))
    exported = {export.symbol for export in exports}
    for name in resolution.thunks:
        module.get_function(name).linkage = _INTERNAL
    kept = {*resolution.slots, *resolution.storage}
    for value in [*module.functions, *module.global_variables]:
        name = value.name
        if value.is_declaration or name in kept or name.startswith("llvm."):
            continue
        if name in exported and value.is_function:
            value.linkage = _EXTERNAL
            value.visibility = "hidden"
        elif value.linkage.name in VISIBLE_LINKAGES:
            _privatize(value, internal=hide_others or not value.is_function or value.visibility.name == "hidden")


def _privatize(value: Any, *, internal: bool) -> None:
    if internal:
        value.visibility = "default"
        value.linkage = _INTERNAL
    else:
        value.visibility = "hidden"


def _finish(
    module: Any, context: Any, target: Any, request: _Request, prepared: _Prepared, started: float
) -> BuiltModule:
    """From the optimized module to the sections of its file."""
    exports, resolution = prepared.exports, prepared.resolution
    text = str(module)
    definitions = read_module(text)
    constructors = find_constructors(text)
    startup = run_by_mapping(definitions, constructors)
    _check_startup(startup, definitions, resolution)
    if _has_assembly(text):
        codegen.try_in_child(module, request.machine.cpu, request.machine.features, 0)
    bitcode = b""
    if request.keep_bitcode:
        bitcode, module = _kept(module, context)
    if constructors.functions():
        module = codegen.parse(with_init_arrays(text, constructors), context)
    entries = make_entries(exports, definitions, prepared.aliases)
    slots = [name for name in (*resolution.slots, *resolution.storage) if name in definitions]
    symbols = [export.symbol for export in exports]
    key = _key(text, request, prepared)
    module.link_in(codegen.parse(table_text(key, symbols, entries.points, slots), context))
    image, kind = _link(codegen.emit_object(module, target), definitions, constructors, prepared)
    platform = codegen.host_platform()
    machine = request.machine
    requires = machine.required_by(text)
    libc = libc_requirement(image)
    header = ModuleRecord(
        key, kind, platform, machine.cpu, requires, libc, machine.features, codegen.llvm_version(), host.ABI_VERSION
    )
    extra = {name: as_text(needs - host.required(requires)) for name, needs in prepared.needs.items()}
    first_slot = len(symbols) + len(entries.points)
    numbers = {name: first_slot + i for i, name in enumerate(slots)}
    writer = RecordBuilder(header, definitions, resolution, numbers, startup)
    functions = []
    for number, export in enumerate(exports):
        entry = entries.numbers[number]
        place = NO_ENTRY if entry is None else len(symbols) + entry
        features = extra.get(export.symbol, "")
        offset = writer.add_function(export, entries.signatures[number], number, place, features)
        functions.append((export.name, offset, header.requirement(features)))
    signatures = dict(zip(symbols, entries.signatures, strict=True))
    graph = encode_graph(symbol_nodes(definitions, {e.symbol: e.name for e in exports}, resolution, signatures))
    if bitcode:
        storage = {name: offset for name, offset in writer.globals.items() if name in resolution.storage}
        bitcode += write_recipe(
            request.level, exports, resolution.slots, storage, [library.name for library in resolution.libraries], prepared.code
        )
    seconds = time.perf_counter() - started
    sections = image, writer.records.content(), graph, bitcode, encode_notes(seconds, request.identity, request.digests)
    own = {name for name, *_ in functions}
    return BuiltModule(
        sections, tuple(functions), host.target_id(header.requirement()), image_flag(kind), key, seconds, header,
        tuple(entries.signatures), tuple([name for name in writer.imports if name not in own]), request.digests.get("code", ""),
    )  # fmt: skip


def _kept(module: Any, context: Any) -> tuple[bytes, Any]:
    """The code to keep, and the module that reading it gives, of which the image is made.

    Bitcode does not say in which order a value is used, and some of the machine code follows that order: whoever
    translates the kept code (`compcache.build.kept_code`) gets what is in the image only if that was made of it, too.
    """
    code = module.as_bitcode()
    return zlib.compress(code, 1), codegen.read_back(code, context)


def _key(text: str, request: _Request, prepared: _Prepared) -> bytes:
    """What image and manifest must agree on: a digest of all that decides the image."""
    definitions = sorted((name, pair[0].kind, pair[0].encode()) for name, pair in prepared.resolution.storage.items())
    resolution = prepared.resolution
    libraries = [library.name for library in resolution.libraries]
    settings = (prepared.exports, request.machine[:2], request.level, resolution.slots, definitions, libraries)
    parts = [text.encode("utf-8", "surrogateescape"), repr(settings).encode(), codegen.llvm_version().encode()]
    return digest(parts, size=KEY_SIZE)


def _check_startup(startup: tuple[str, ...], definitions: Mapping[str, Definition], resolution: Resolution) -> None:
    """What runs while an image is mapped runs before any slot of it can be filled."""
    if not startup:
        return
    graph = DependencyGraph({name: definition.references for name, definition in definitions.items()})
    reached = graph.closure(startup)
    needed = [resolution.slots.get(name, name) for name in reached if name in resolution.slots]
    needed += [name.removeprefix(SLOT_PREFIX) for name in reached if name in resolution.storage]
    if needed:
        raise CompileError(
            f"the module's constructors, destructors or ifuncs ({', '.join(startup)}) use "
            f"{', '.join(map(repr, needed))}, which can only be bound after they have run: let a function do it that is "
            "called first"
        )


def _has_assembly(text: str) -> bool:
    return " asm " in text or text.startswith("module asm") or "\nmodule asm" in text


def _link(
    obj: bytes, definitions: Mapping[str, Definition], constructors: Constructors, prepared: _Prepared
) -> tuple[bytes, str]:
    """The image of an object: a shared object where there is a linker, else the object itself."""
    linker = system_linker.find_linker() if elf.is_elf(obj) else None
    undefined = elf.undefined_symbols(obj) if elf.is_elf(obj) else ()
    platform = [symbol for symbol in undefined if platform_symbols.is_platform_symbol(symbol)]
    named = _from_libraries(undefined, platform, prepared.resolution)
    _check_undefined([symbol for symbol in undefined if symbol not in named], definitions)
    always = [s for s in undefined if s.startswith(_ALWAYS_THERE) or s in platform or s in named]
    weakened = elf.weaken_undefined(obj, keep=always) if elf.is_elf(obj) else obj
    if linker is None:
        if elf.is_elf(obj) and not system_linker.is_chosen():
            _warn_of_no_linker()
        _require_plain(definitions, constructors, prepared, named, "there is no linker")
        return weakened, "object"
    try:
        image = system_linker.link_shared(
            linker,
            [weakened],
            soname="compcache-module.so",
            libraries=[*platform_symbols.platform_paths(platform), *dict.fromkeys(named.values())],
            export=[TABLE_SYMBOL],
        )
    except LinkerError as error:
        _require_plain(definitions, constructors, prepared, named, str(error))
        warnings.warn(f"{error}; the module is stored as an object, which loads more slowly", CacheWarning, stacklevel=2)
        return weakened, "object"
    return image, "shared"


def _from_libraries(
    undefined: Iterable[str], platform: Iterable[str], resolution: Resolution
) -> dict[str, str]:
    """The symbols that the libraries which the source names define, and the files in which they do."""
    found = {}
    for symbol in set(undefined).difference(platform) if resolution.libraries else ():
        paths = filter(None, (library.path_of(symbol) for library in resolution.libraries))
        path = next(paths, None)
        if path is not None:
            found[symbol] = path
    return dict(sorted(found.items()))


@cache
def _warn_of_no_linker() -> None:
    """Tell once per process what the lack of a linker costs; who chose to have none knows."""
    warnings.warn(
        "there is no linker: modules are stored as objects, which a hit loads through LLVM (some 200 ms in a fresh process instead "
        "of one): install one (pip install 'compcache[linker]', or the package lld, mold or binutils of your system)",
        CacheWarning,
        stacklevel=2,
    )


def _require_plain(
    definitions: Mapping[str, Definition],
    constructors: Constructors,
    prepared: _Prepared,
    named: Mapping[str, str],
    why: str,
) -> None:
    """Refuse what an object that is loaded without the dynamic linker cannot have.

    Raises:
        CompileError: the module has such a thing; the message names it.
    """
    reasons = [f"the constructor or destructor {name!r}" for name in constructors.functions()]
    reasons += [f"the thread-local variable {name!r}" for name, d in definitions.items() if " thread_local" in d.head]
    reasons += [f"the ifunc {name!r}" for name, alias in prepared.aliases.items() if alias.is_ifunc]
    reasons += [f"{symbol!r} of {os.path.basename(path)}" for symbol, path in named.items()]
    if reasons:
        raise CompileError(
            f"the module has {', '.join(reasons[:5])}, which needs a shared object, but {why}: install a linker "
            "(pip install 'compcache[linker]', or ld, lld or mold)"
        )


def _check_undefined(undefined: Iterable[str], definitions: Mapping[str, Definition]) -> None:
    """What code generation itself calls (compiler-rt routines) must be there as well."""
    missing = [
        symbol
        for symbol in undefined
        if not symbol.startswith(_ALWAYS_THERE)
        and not platform_symbols.is_platform_symbol(symbol)
        and not platform_symbols.in_process(symbol)
        and not is_weak(definitions.get(symbol))
    ]
    if missing:
        raise UndefinedSymbolError(
            f"the compiled code refers to {', '.join(map(repr, sorted(missing)))}, which neither the platform's "
            "libraries nor this process provide",
            symbols=sorted(missing),
        )


