"""The miss path: from a module's source to the sections of a module file.

Parse, provide for declarations (`compcache.imports`), optimize, read the dependency graph off the result, add entry
points and the module table (`compcache.entrypoints`), emit an object and link it into a shared object
(`compcache.toolchain`). The linker knows no directory: it asks `is_cached` whether the cache holds a function, and
hands back a `BuiltModule`.
"""

from __future__ import annotations

import time
import warnings
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import codegen, elf, host, natives, toolchain
from compcache.depgraph import DependencyGraph
from compcache.digest import KEY_SIZE, digest
from compcache.entrypoints import TABLE_SYMBOL, EntryPoint, entry_point, read_head, read_signature, table_text
from compcache.errors import CacheWarning, CompileError, LinkerError, SignatureError, UndefinedSymbolError
from compcache.graphsection import encode_graph, encode_notes
from compcache.imports import SLOT_PREFIX, Requests, Resolution, read_requests, resolve_declarations
from compcache.irtext import Definition, read_module
from compcache.manifest import (
    IMAGE_OBJECT,
    IMAGE_SHARED,
    NO_ENTRY,
    FunctionRecord,
    GlobalRecord,
    ManifestWriter,
    ModuleRecord,
    NeedsRecord,
    encode_function,
    encode_global,
    encode_module,
    encode_needs,
)
from compcache.module import Function, ModuleSource, check_name
from compcache.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from compcache.depgraph import Need
    from compcache.globals import GlobalDefinition, Storage
    from compcache.host import Host

__all__ = ["BuiltModule", "build_module"]

_EXTERNAL, _INTERNAL = "external", "internal"
_VISIBLE_LINKAGES = frozenset(
    ("external", "linkonce_any", "linkonce_odr", "linkonce_odr_auto_hide", "weak_any", "weak_odr", "common")
)
_LEVELS = (0, 1, 2, 3)
#: What entry points and generated code refer to; always there, hence never weak.
_ALWAYS_THERE = ("Py", "_Py", "_GLOBAL_OFFSET_TABLE_")


class BuiltModule(NamedTuple):
    """A compiled module, ready to be published or loaded from memory.

    `sections` are image, records, graph, bitcode and notes; `functions` are (func_name, record offset).
    """

    sections: tuple[bytes, bytes, bytes, bytes, bytes]
    functions: tuple[tuple[str, int], ...]
    target: bytes
    flags: int
    key: bytes
    seconds: float


class _Export(NamedTuple):
    """One function to export: its names, its signature if the caller gave one, and how it runs."""

    name: str
    symbol: str
    signature: Signature | None
    nogil: bool


class _Request(NamedTuple):
    """A snapshot of all that the source says besides its code."""

    exports: tuple[_Export, ...] | None
    requests: Requests
    level: int
    cpu: str
    features: str
    keep_bitcode: bool
    identity: Any


def build_module(source: ModuleSource, *, machine: Host, is_cached: Callable[[str], bool]) -> BuiltModule:
    """Compile and link a module.

    Args:
        source: the code and what it exports, imports and uses.
        machine: the host to compile for where the source names no CPU.
        is_cached: whether the cache holds a function of this name.

    Raises:
        CompileError, LinkError, SignatureError, InvalidNameError, GlobalValidationError: what is wrong with
            the source; each message names the culprit.
    """
    started = time.perf_counter()
    request = _snapshot(source, machine)
    with codegen.new_context() as context:
        return _build(source.ir, context, request, is_cached, started)


def _build(
    ir: Any, context: Any, request: _Request, is_cached: Callable[[str], bool], started: float
) -> BuiltModule:
    module = codegen.parse(ir, context)
    codegen.check_triple(module)
    _try_if_suspicious(module, ir, request)
    target = codegen.target_machine(request.cpu, request.features, request.level)
    module.data_layout = str(target.target_data)
    _drop_dso_local(module)
    exports = _choose_exports(module, request.exports)
    resolution = resolve_declarations(module, target.target_data, request.requests, is_cached)
    _check_globals(resolution)
    _prepare(module, exports, resolution, context, hide_others=request.exports is not None)
    codegen.optimize(module, target, request.level)
    return _finish(module, context, target, request, exports, resolution, started)


def _snapshot(source: ModuleSource, machine: Host) -> _Request:
    if not isinstance(source, ModuleSource):
        raise CompileError(f"expected a compcache.ModuleSource, not {type(source).__name__}")
    if source.optimize not in _LEVELS:
        raise CompileError(f"optimize must be 0, 1, 2 or 3, not {source.optimize!r}")
    native = source.cpu is None
    features = source.features if source.features is not None else machine.features if native else ""
    exports = None if source.functions is None else tuple([_export(*pair) for pair in source.functions.items()])
    return _Request(
        exports, read_requests(source), source.optimize, machine.cpu if native else str(source.cpu), features,
        source.keep_bitcode, source.identity,
    )  # fmt: skip


def _export(name: str, value: Any) -> _Export:
    check_name(name, "func_name")
    function = value if isinstance(value, Function) else Function(value)
    symbol = check_name(function.symbol or name, "symbol")
    signature = None if function.signature is None else Signature.parse(function.signature)
    return _Export(name, symbol, signature, function.nogil)


def _try_if_suspicious(module: Any, ir: Any, request: _Request) -> None:
    attributes: set[str] = set()
    if not isinstance(ir, str) or '"target-' in ir or '"tune-cpu' in ir:
        attributes = {bytes(text).decode("utf-8", "replace") for f in module.functions for text in f.attributes}
    if codegen.is_suspicious(request.cpu, request.features, attributes):
        codegen.try_in_child(module, request.cpu, request.features, request.level)


def _drop_dso_local(module: Any) -> None:
    """External variables of non-PIC code may be anywhere once the code is in a shared object."""
    for variable in module.global_variables:
        if variable.is_declaration and variable.visibility.name == "default":
            variable.linkage = "external"  # setting a linkage makes LLVM forget a dso_local that it implied


def _choose_exports(module: Any, wanted: tuple[_Export, ...] | None) -> tuple[_Export, ...]:
    defined = {f.name: f for f in module.functions if not f.is_declaration}
    if wanted is None:
        return tuple([
            _Export(check_name(name, "func_name"), name, None, False)
            for name, function in defined.items()
            if function.linkage.name in _VISIBLE_LINKAGES and function.visibility.name != "hidden"
        ])  # fmt: skip
    missing = [export.symbol for export in wanted if export.symbol not in defined]
    if missing:
        known = ", ".join(sorted(defined)[:20]) or "nothing"
        raise UndefinedSymbolError(
            f"functions names {', '.join(map(repr, missing))}, which the module does not define; it defines {known}",
            symbols=missing,
        )
    return wanted


def _check_globals(resolution: Resolution) -> None:
    """Every definition must load here and now: a stored global that never worked helps nobody."""
    from compcache.errors import GlobalValidationError

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
    module: Any, exports: Iterable[_Export], resolution: Resolution, context: Any, *, hide_others: bool
) -> None:
    """Link the support code in, and give every definition the linkage that it has inside an image."""
    if resolution.thunks or resolution.storage:
        module.link_in(codegen.parse(resolution.support, context))
    exported = {export.symbol for export in exports}
    for name in resolution.thunks:
        module.get_function(name).linkage = _INTERNAL
    kept = {*resolution.slots, *resolution.storage}
    for value in [*module.functions, *module.global_variables]:
        if value.is_declaration or value.name in kept or value.name.startswith("llvm."):
            continue
        if value.name in exported and value.is_function:
            value.linkage = _EXTERNAL
            value.visibility = "hidden"
        elif value.linkage.name in _VISIBLE_LINKAGES:
            _privatize(value, internal=hide_others or not value.is_function or value.visibility.name == "hidden")


def _privatize(value: Any, *, internal: bool) -> None:
    if internal:
        value.visibility = "default"
        value.linkage = _INTERNAL
    else:
        value.visibility = "hidden"


def _finish(
    module: Any,
    context: Any,
    target: Any,
    request: _Request,
    exports: tuple[_Export, ...],
    resolution: Resolution,
    started: float,
) -> BuiltModule:
    text = str(module)
    definitions = read_module(text)
    bitcode = zlib.compress(module.as_bitcode(), 1) if request.keep_bitcode else b""
    entries, numbers, signatures = _entries(exports, definitions)
    slots = [name for name in (*resolution.slots, *resolution.storage) if name in definitions]
    definitions_digest = [repr(sorted((name, pair[0].encode()) for name, pair in resolution.storage.items())).encode()]
    key = digest(
        [text.encode("utf-8", "surrogateescape"), repr((exports, request.cpu, request.features, request.level, resolution.slots)).encode(),
         codegen.llvm_version().encode(), *definitions_digest],
        size=KEY_SIZE,
    )  # fmt: skip
    symbols = [export.symbol for export in exports]
    module.link_in(codegen.parse(table_text(key, symbols, entries, slots), context))
    if _has_assembly(text):
        codegen.try_in_child(module, request.cpu, request.features, 0)
    image, kind = _link(codegen.emit_object(module, target), definitions)
    platform = codegen.host_platform()
    header = ModuleRecord(key, kind, platform, request.cpu, request.features, codegen.llvm_version(), host.ABI_VERSION)
    first_slot = len(symbols) + len(entries)
    writer = _ManifestBuilder(header, definitions, resolution, {name: first_slot + i for i, name in enumerate(slots)})
    offsets = []
    for number, (export, entry, signature) in enumerate(zip(exports, numbers, signatures, strict=True)):
        place = NO_ENTRY if entry is None else len(symbols) + entry
        offsets.append(writer.add_function(export, signature, number, place))
    graph = encode_graph(definitions, {e.symbol: e.name for e in exports}, resolution, dict(zip(symbols, signatures, strict=True)))
    seconds = time.perf_counter() - started
    notes = encode_notes(seconds, request.identity)
    flags = IMAGE_OBJECT if kind == "object" else IMAGE_SHARED
    sections = image, writer.records.content(), graph, bitcode, notes
    functions = tuple([(export.name, offset) for export, offset in zip(exports, offsets, strict=True)])
    return BuiltModule(sections, functions, host.target_id(platform, request.features), flags, key, seconds)


def _entries(
    exports: Sequence[_Export], definitions: Mapping[str, Definition]
) -> tuple[list[EntryPoint], list[int | None], list[str]]:
    """The distinct entry points, each export's number among them, and its signature or why it has none."""
    distinct: dict[EntryPoint, int] = {}
    numbers: list[int | None] = []
    texts = []
    for export in exports:
        head = read_head(definitions[export.symbol].head)
        try:
            signature = export.signature or read_signature(head)
        except SignatureError as error:
            numbers.append(None)
            texts.append(f"! {error}")
            continue
        entry = entry_point(export.name, head, signature, nogil=export.nogil)
        numbers.append(distinct.setdefault(entry, len(distinct)))
        texts.append(("nogil " if export.nogil else "") + signature.text())
    return list(distinct), numbers, texts


def _has_assembly(text: str) -> bool:
    return " asm " in text or text.startswith("module asm") or "\nmodule asm" in text


def _link(obj: bytes, definitions: Mapping[str, Definition]) -> tuple[bytes, str]:
    """The image of an object: a shared object where there is a linker, else the object itself."""
    if not elf.is_elf(obj):
        return obj, "object"
    undefined = elf.undefined_symbols(obj)
    _check_undefined(undefined, definitions)
    platform = [symbol for symbol in undefined if natives.is_platform_symbol(symbol)]
    always = [symbol for symbol in undefined if symbol.startswith(_ALWAYS_THERE) or symbol in platform]
    linker = toolchain.find_linker()
    if linker is None:
        return elf.weaken_undefined(obj, keep=always), "object"
    weakened = elf.weaken_undefined(obj, keep=always)
    try:
        image = toolchain.link_shared(
            linker,
            [weakened],
            soname="compcache-module.so",
            libraries=natives.platform_paths(platform),
            export=[TABLE_SYMBOL],
        )
    except LinkerError as error:
        warnings.warn(f"{error}; the module is stored as an object, which loads more slowly", CacheWarning, stacklevel=2)
        return weakened, "object"
    return image, "shared"


def _check_undefined(undefined: Iterable[str], definitions: Mapping[str, Definition]) -> None:
    """What code generation itself calls (compiler-rt routines) must be there as well."""
    missing = [
        symbol
        for symbol in undefined
        if not symbol.startswith(_ALWAYS_THERE)
        and not natives.is_platform_symbol(symbol)
        and not natives.in_process(symbol)
        and not _is_weak(definitions.get(symbol))
    ]
    if missing:
        raise UndefinedSymbolError(
            f"the compiled code refers to {', '.join(map(repr, sorted(missing)))}, which neither the platform's "
            "libraries nor this process provide",
            symbols=sorted(missing),
        )


def _is_weak(definition: Definition | None) -> bool:
    return definition is not None and "extern_weak" in definition.head.split(" ")


class _ManifestBuilder:
    """Writes the records of a module, sharing what several functions need."""

    def __init__(
        self,
        header: ModuleRecord,
        definitions: Mapping[str, Definition],
        resolution: Resolution,
        slots: Mapping[str, int],
    ) -> None:
        self.records = ManifestWriter()
        self.records.add(encode_module(header))
        self._resolution = resolution
        self._slots = slots
        self._natives = _foreign_natives(definitions)
        self._globals: dict[str, int] = {}
        self._shared: dict[bytes, int] = {}
        self._offsets: dict[int, int] = {}
        leaves = {*slots, *self._natives}
        edges = {name: definition.references for name, definition in definitions.items()}
        self._needs = DependencyGraph(edges).needs(leaves)

    def add_function(self, export: _Export, signature: str, function: int, entry: int) -> int:
        """Write the record of a function and what it needs; its offset."""
        need = self._needs.get(export.symbol)
        offset = self._add_need(need) if need is not None else 0
        record = FunctionRecord(export.name, export.symbol, signature, function, entry, offset)
        return self.records.add(encode_function(record))

    def _add_need(self, root: Need) -> int:
        stack = [root]
        while stack:
            need = stack[-1]
            if id(need) in self._offsets:
                stack.pop()
                continue
            waiting = [child for child in need.children if id(child) not in self._offsets]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            self._offsets[id(need)] = self._write_need(need)
        return self._offsets[id(root)]

    def _write_need(self, need: Need) -> int:
        slots = self._resolution.slots
        record = NeedsRecord(
            tuple([(self._slots[leaf], slots[leaf]) for leaf in need.leaves if leaf in slots]),
            tuple([self._add_global(leaf) for leaf in need.leaves if leaf in self._resolution.storage]),
            tuple([leaf for leaf in need.leaves if leaf in self._natives]),
            tuple([self._offsets[id(child)] for child in need.children]),
        )
        payload = encode_needs(record)
        if payload not in self._shared:
            self._shared[payload] = self.records.add(payload)
        return self._shared[payload]

    def _add_global(self, name: str) -> int:
        if name not in self._globals:
            definition, storage = self._resolution.storage[name]
            shown = name.removeprefix(SLOT_PREFIX)
            record = GlobalRecord(
                shown, self._slots[name], storage.form, storage.size, definition.kind, _encoded(definition, shown)
            )
            self._globals[name] = self.records.add(encode_global(record))
        return self._globals[name]


def _encoded(definition: GlobalDefinition, name: str) -> bytes:
    from compcache.errors import GlobalValidationError

    try:
        return definition.encode()
    except GlobalValidationError as error:
        raise GlobalValidationError(f"global {name!r}: {error}", global_name=name, reason=error.reason) from error


def _foreign_natives(definitions: Mapping[str, Definition]) -> frozenset[str]:
    """Native symbols that another process may not have."""
    return frozenset([
        name
        for name, definition in definitions.items()
        if definition.kind in ("declaration", "external")
        and not name.startswith("llvm.")
        and not _is_weak(definition)
        and not natives.is_platform_symbol(name)
    ])  # fmt: skip
