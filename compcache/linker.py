"""Turns a module's source into the sections of a module file.

`compcache.translation` compiles the source to an object, in LLVM's thread. This file lets `compcache.images.making` make the image, and
assembles the sections. It does not know the cache directory: it calls `is_cached` to learn whether the cache has a function, and returns a
`BuiltModule`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.arch.known import architecture
from compcache.build import codegen
from compcache.build.inlining.imported import NOTHING_INLINED, offer_nothing
from compcache.build.pic import ADDRESS_OF, INITIALIZE
from compcache.build.recipe import write_recipe
from compcache.build.records import RecordBuilder, may_be_undefined
from compcache.build.source import ModuleSource
from compcache.build.trial import UNTRUSTED, try_in_child
from compcache.content.functions import exported_content
from compcache.content.names import freeze
from compcache.digest import is_content_name
from compcache.errors import CompileError
from compcache.formats import host
from compcache.formats.bodies import encode_bodies
from compcache.formats.built_module import BuiltModule, Sections
from compcache.formats.entry import STUB, EntryRecord, encode_entry, encode_stub, index_name
from compcache.formats.graph import SOURCE_DIGESTS, decode_notes, encode_notes, pack_notes
from compcache.formats.makers import PACKAGE, Maker, encode_makers, makers_text
from compcache.formats.manifest import NO_ENTRY
from compcache.formats.manifest_writer import image_flag
from compcache.formats.module_table import TABLE_SYMBOL
from compcache.formats.order import inherit_order
from compcache.formats.records import ModuleRecord
from compcache.images import making
from compcache.images.linkers.version import NAMES as LINKERS
from compcache.images.linkers.version import version_of
from compcache.images.llvm_thread import time_spent
from compcache.images.shared.make import NoSharedObjectError
from compcache.targets.cpu_table import basic_features
from compcache.targets.machine import machine_for
from compcache.targets.processor_words import requirement_of, words_of
from compcache.translation.emission import table_symbols
from compcache.translation.requests import code_pieces, requests_of
from compcache.translation.translate import translate, translate_again, translate_member
from compcache.warning import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from compcache.build.inlining.imported import Inlined, Provided
    from compcache.build.ir_text import Definition
    from compcache.build.recipe import Recipe
    from compcache.formats.bodies import Body
    from compcache.images.linkers.find import Linker
    from compcache.images.making import ModuleImage
    from compcache.targets.host_probe import Host
    from compcache.translation.emission import Translated
    from compcache.translation.members import Member
    from compcache.translation.requests import Request

__all__ = [
    "BuiltModule", "Translation", "build_module", "link_module", "link_translated", "optimize_member", "rebuild_module", "translate_module",
    "translate_requests",
]  # fmt: skip


class Translation(NamedTuple):
    """A compiled module before linking: for each target, the request and LLVM's result."""

    machine: Host
    parts: tuple[tuple[Request, Translated], ...]

    @property
    def functions(self) -> frozenset[str]:
        """The func_names that the module exports."""
        return frozenset([export.name for _, translated in self.parts for export in translated.prepared.exports])


def build_module(
    source: ModuleSource,
    *,
    machine: Host,
    is_cached: Callable[[str], bool],
    provided: Callable[[tuple[str, ...]], Mapping[str, Provided]] = offer_nothing,
) -> BuiltModule:
    """Compile and link a module for each of its targets.

    Args:
        source: the code and its options.
        machine: this host.
        is_cached: returns whether the cache has a function or variable with this name.
        provided: returns the bodies that the cache offers for inlining, by name.

    Returns:
        The module that fits this host best. Its field `others` has the modules for the other targets.

    Raises:
        CompileError, LinkError, SignatureError, InvalidNameError, GlobalValidationError: the source cannot be compiled. The message names
            the function, symbol or global.
    """
    return link_module(translate_module(source, machine=machine, is_cached=is_cached, provided=provided))


def translate_module(
    source: ModuleSource,
    *,
    machine: Host,
    is_cached: Callable[[str], bool],
    provided: Callable[[tuple[str, ...]], Mapping[str, Provided]] = offer_nothing,
    assumed: dict[str, bool] | None = None,
    is_overridden: Callable[[str], bool] = frozenset().__contains__,
    is_beside: Callable[[str], bool] = frozenset().__contains__,
) -> Translation:
    """Compile a module for each of its targets: the part of `build_module` that runs LLVM. Raise the errors of `build_module`.

    Args:
        source, machine, is_cached, provided: see `build_module`.
        assumed: collects the symbols that nothing defines, and whether each is a function. They become imports. None: they are errors.
        is_overridden: returns whether another source overrides a weak definition. Those of a source without `functions` become imports.
        is_beside: returns whether another source that is added together with this source defines a name.
    """
    if not isinstance(source, ModuleSource):
        raise CompileError(
            f"the source must be a compcache.ModuleSource, not {type(source).__name__}: pass ModuleSource(code) for LLVM code"
        )
    requests = [
        request._replace(is_cached=is_cached, provided=provided, assumed=assumed, is_overridden=is_overridden, is_beside=is_beside)
        for request in requests_of(freeze(source), machine)
    ]
    return translate_requests(machine, requests)


def translate_requests(machine: Host, requests: Iterable[Request]) -> Translation:
    """Compile the requests for a module, one for each target. Raise the errors of `build_module`."""
    return Translation(machine, tuple([(request, _translate_for(request)) for request in requests]))


def optimize_member(request: Request, label: str) -> Member:
    """Compile the source of a group's member for one target. `label` is a digest of the source.

    Raises:
        CompileError, LinkError, ...: the source cannot be compiled.
    """
    with _naming_target(request):
        _try_untrusted(request)
        return codegen.run(lambda context: translate_member(context, request, label))


def link_module(translation: Translation) -> BuiltModule:
    """Link a compiled module: the part of `build_module` after LLVM. It may run in any thread.

    LLVM runs again only if a shared object cannot be made. Raise the errors of `make_image`.
    """
    machine, parts = translation
    built = [_link_for(request, translated) for request, translated in parts]
    if len(built) == 1:
        return built[0]
    rank = machine.processor.rank
    best = max(built, key=lambda module: min([rank(text) for _, _, text in module.functions], default=host.UNUSABLE))
    return best._replace(others=tuple([module for module in built if module is not best]))


def rebuild_module(
    recipe: Recipe,
    notes: Mapping[str, Any],
    entries: Mapping[tuple[str, str], bytes],
    machine: Host,
    *,
    makers: Iterable[Maker] = (),
    inlined: Inlined = NOTHING_INLINED,
    bodies: Iterable[Body] = (),
) -> BuiltModule:
    """Build a stored module again for this host.

    Args:
        recipe: the code and options of the module.
        notes: the notes of the stored module. The new module keeps the identity, the digests of the source and the order of addition.
        entries: the entries of the stored module, by kind and name.
        machine: this host.
        makers: the makers of the stored module. They are also makers of the new module, except its linker.
        inlined: the functions inlined into the stored module (`compcache.build.inlining.edges.inlined_of`).
        bodies: the bodies that the module offers.

    Raises:
        CompileError: the code cannot be compiled for this host, or may use features that the host lacks.
        LinkError, ...: see `build_module`.
    """
    target = machine_for(None, None, machine, host.platform_name())
    digests = {name: str(notes[name]) for name in SOURCE_DIGESTS if name in notes}
    makers_before = makers_text([maker for maker in makers if maker.name not in LINKERS and maker != Maker(PACKAGE, "")])

    def build(*, shared: bool) -> BuiltModule:
        """Compile the stored code, and add the properties of the stored module that are not in the code.

        The result is a shared object if `shared` is true, otherwise an object.
        """
        started = time_spent()
        translated = codegen.run(
            lambda context: translate_again(context, recipe, target, shared=shared, inlined=inlined, bodies=tuple(bodies))
        )
        translated = translated._replace(digests=digests, seconds=time_spent() - started, makers=makers_before)
        return _make_module(translated, notes.get("identity"), entries, shared=shared)

    built = _build_shared_or_object(build, shared=making.makes_shared_objects())
    return built.with_notes(pack_notes(inherit_order(decode_notes(built.sections.notes), notes)))


def _translate_for(request: Request) -> Translated:
    """Return the translated code of a request, and measure the time. Untrusted code is first translated in another process.

    Raise `CompileError` if the code cannot be compiled.
    """
    started = time_spent()
    with _naming_target(request):
        _try_untrusted(request)
        translated = codegen.run(lambda context: translate(context, request))
    return translated._replace(seconds=time_spent() - started)


def _try_untrusted(request: Request) -> None:
    """Translate the code of an untrusted source in another process first. Raise `CompileError` if that fails."""
    if request.untrusted:
        for code in code_pieces(request.ir):
            try_in_child(code, request.machine, request.level, UNTRUSTED)


def _link_for(request: Request, translated: Translated) -> BuiltModule:
    """Return the module for a request, as a shared image if possible, else as an object. See `build_module` for the exceptions."""

    def build(*, shared: bool) -> BuiltModule:
        """Return the module as a shared object if `shared` is true, otherwise as an object.

        Code that was compiled for the other form is compiled again.
        """
        code = translated if shared == request.shared else _translate_for(request._replace(shared=shared))
        return _make_module(code, request.identity, _entries_of(request, code), shared=shared)

    with _naming_target(request):
        return _build_shared_or_object(build, shared=request.shared)


def _build_shared_or_object(build: Callable[..., BuiltModule], *, shared: bool) -> BuiltModule:
    """Build a module with `build`: a shared object if `shared` is true and one can be made, otherwise an object.

    No shared object can be made if it requires a linker and none is installed, or if it would exceed this process's limit on file sizes.
    If an object replaces the shared object, warn.

    Raises:
        NoSharedObjectError: no shared object can be made, and an object cannot contain all parts of the module.
        CompileError: `build` cannot build the module.
    """
    try:
        return build(shared=shared)
    except NoSharedObjectError as error:
        try:
            built = build(shared=False)
        except CompileError:
            raise error from None
        warn(f"{error}; the module was stored as an object, which loads more slowly")
        return built


def _entries_of(request: Request, translated: Translated) -> dict[tuple[str, str], bytes]:
    """Return the entries of data of a source and of its functions, by kind and name."""
    entries = dict(request.named_entries)
    for export in translated.prepared.exports:
        entries |= {(kind, export.name): data for kind, data in request.entries.items()}
    return entries


@contextmanager
def _naming_target(request: Request) -> Iterator[None]:
    """Raise a `CompileError` of the context again with the name of the target, if the source has several targets."""
    try:
        yield
    except CompileError as error:
        if request.target and type(error) is CompileError:
            raise CompileError(f"for the target {request.target!r}: {error}") from error
        raise


def link_translated(translated: Translated, entries: Iterable[EntryRecord]) -> BuiltModule:
    """Return the module for code that was linked from other modules (`compcache.closures`), with these entries of data.

    Raise the errors of `make_image`.
    """
    return _make_module(translated, None, {}, entries, shared=making.makes_shared_objects())


def _make_module(
    translated: Translated, identity: Any, entries: Mapping[tuple[str, str], bytes], added: Iterable[EntryRecord] = (), *, shared: bool
) -> BuiltModule:
    """Make the image of a module, and assemble the sections of its file.

    Args:
        translated: the compiled code.
        identity: the identity of the module, or None.
        entries: the entries of data, by kind and name.
        added: further complete entries.
        shared: whether the code was compiled for a shared object.

    Raises:
        NoSharedObjectError, ...: see `make_image`.
    """
    started = time_spent()
    resolution = translated.prepared.resolution
    image = making.make_image(
        translated.object,
        entries=translated.entry_objects,
        export=TABLE_SYMBOL,
        weak=[name for name, definition in translated.definitions.items() if may_be_undefined(definition)]
        + _section_bounds(translated.definitions),
        imports=resolution.imports,
        needs_linker=_linker_features(translated),
        libraries=resolution.libraries,
        shared_object=shared,
    )
    return _assemble_module(translated, identity, entries, added, image, started - translated.seconds)


def _section_bounds(definitions: Mapping[str, Definition]) -> list[str]:
    """Return the symbols for section bounds, which a linker defines. The code declares them, but they are definitions of the module."""
    return [
        name
        for name, definition in definitions.items()
        if name.startswith(("__start_", "__stop_")) and definition.kind == "variable" and " external " in definition.head
    ]


def _linker_features(translated: Translated) -> list[str]:
    """Return descriptions of the parts of a module that need the dynamic linker, and that an object therefore cannot have."""
    reasons = [f"the constructor or destructor {name!r}" for name in translated.constructors.functions()]
    reasons += ["constructors or destructors"] if INITIALIZE in translated.definitions else []
    external = [name for name, definition in translated.definitions.items() if definition.kind == "external"]
    imports = translated.prepared.resolution.imports
    reasons += [f"the bound {name!r} of a section" for name in _section_bounds(translated.definitions)]
    reasons += [f"the imported variable {name!r}" for name in external if name in imports]
    reasons += [
        f"the thread-local variable {name!r}" for name, definition in translated.definitions.items() if " thread_local" in definition.head
    ]
    aliases_of = translated.prepared.aliases
    return reasons + [f"the ifunc {name!r}" for name, alias in aliases_of.items() if alias.is_ifunc]


def _assemble_module(
    translated: Translated,
    identity: Any,
    entries: Mapping[tuple[str, str], bytes],
    added: Iterable[EntryRecord],
    image: ModuleImage,
    started: float,
) -> BuiltModule:
    """Return the module with the sections of its file. `started` is a time of `time_spent`; see `_make_module` for the other arguments."""
    prepared, resolution = translated.prepared, translated.prepared.resolution
    platform = host.platform_name()
    basic = basic_features(platform)
    features = {
        symbol: requirement_of(names, basic, platform, translated.machine.processor) for symbol, names in translated.requires.items()
    }
    header = _make_header(translated, image, platform, basic, tuple(dict.fromkeys(features.values())))
    symbols = len(table_symbols(prepared, translated.definitions, translated.stubs))
    writer = RecordBuilder(
        header, translated.needs, resolution, _number_slots(translated, symbols),
        {name: payload for name, _, payload in prepared.globals}, image.places, translated.types,
    )  # fmt: skip
    makers = _makers_text_of(translated, image.linker)
    writer.records.add(encode_makers(makers))
    functions = _add_functions(writer, header, translated, symbols, features)
    # The stubs of the stored code refer to symbols of its former image.
    contents = {key: content for key, content in entries.items() if key[0] != STUB} | _encode_stubs(translated, symbols, basic, platform)
    records = [*[EntryRecord(kind, name, 0, (), content, gone=False) for (kind, name), content in contents.items()], *added]
    needed = header.requirement()
    indexed = [(index_name(record.kind, record.name), writer.records.add(encode_entry(record)), needed) for record in records]
    bitcode = _complete_bitcode(translated, writer.globals)
    seconds = time_spent() - started
    own_names = {name for name, *_ in functions}
    return BuiltModule(
        sections=Sections(image.image, writer.records.content(), translated.graph, bitcode, _encode_notes(translated, identity, seconds)),
        indexed=(*functions, *indexed),
        target=host.target_id(needed),
        flags=image_flag(image.kind),
        key=translated.key,
        seconds=seconds,
        header=header,
        signatures=tuple(translated.entries.signatures),
        imports=tuple([name for name in writer.imports if name not in own_names]),
        code=translated.digests.get("code", ""),
        entries=tuple(records),
        defined=_defined_types(translated),
        used=_used_types(translated),
        null=resolution.null,
        makers=makers,
    )


def _complete_bitcode(translated: Translated, globals_: Mapping[str, int]) -> bytes:
    """Return the bitcode section: the bitcode, the recipe and the offered bodies; empty if the module keeps no bitcode.

    `globals_` has the offset of each global's record.
    """
    if not translated.bitcode:
        return b""
    prepared, resolution = translated.prepared, translated.prepared.resolution
    storage = {name: offset for name, offset in globals_.items() if name in resolution.storage}
    libraries = [library.name for library in resolution.libraries]
    recipe = write_recipe(translated.level, prepared.exports, resolution.imported(), storage, libraries, prepared.code)
    return translated.bitcode + recipe + encode_bodies(translated.bodies)


def _make_header(
    translated: Translated, image: ModuleImage, platform: str, basic: frozenset[str], requirements: tuple[str, ...]
) -> ModuleRecord:
    """Return the header of the module's records. `requirements` has the requirements of its functions.

    `basic` has the features that every processor of the platform has.
    """
    machine = translated.machine
    made_for, _ = words_of(machine.requires - basic - architecture(platform).system_features.keys(), platform.partition("-")[0])
    return ModuleRecord(
        translated.key, image.kind, platform, machine.cpu, requirements or ("",), image.libc, machine.features, codegen.llvm_version(),
        made_for, machine.processor if machine.is_exact else "", host.ABI_VERSION,
    )  # fmt: skip


def _number_slots(translated: Translated, symbols: int) -> dict[str, int]:
    """Return the numbers of the slots and the start function in the table of `symbols` symbols, then entry points, then slots."""
    first_slot = symbols + len(translated.entries.points)
    numbers = {name: number for number, name in enumerate(translated.slots, first_slot)}
    if INITIALIZE in translated.definitions:
        numbers[INITIALIZE] = len(translated.prepared.exports)
    return numbers


def _add_functions(
    writer: RecordBuilder, header: ModuleRecord, translated: Translated, symbols: int, features: Mapping[str, str]
) -> list[tuple[str, int, str]]:
    """Add the records of the exports. Return their (name, record offset, requirement)."""
    entries, functions = translated.entries, []
    for number, export in enumerate(translated.prepared.exports):
        entry = entries.numbers[number]
        place = NO_ENTRY if entry is None else symbols + entry
        needed = header.requirement(features[export.symbol])
        offset = writer.add_function(export, entries.signatures[number], number, place, host.target_id(needed))
        functions.append((export.name, offset, needed))
    return functions


def _encode_stubs(translated: Translated, symbols: int, basic: frozenset[str], platform: str) -> dict[tuple[str, str], bytes]:
    """Return the entries of the stubs, which are the last symbols of the table's first part."""
    numbers = {symbol: number for number, symbol in enumerate(translated.stubs, symbols - len(translated.stubs))}
    return {
        (STUB, export.name): encode_stub(numbers[export.symbol], _stub_requirement(translated, export.symbol, basic, platform))
        for export in translated.prepared.exports
        if export.symbol in numbers
    }


def _encode_notes(translated: Translated, identity: Any, seconds: float) -> bytes:
    """Return the encoded notes of the module, with the content digests of its exports if any is known.

    The digest of the source stands for unknown digests of symbols, such as those of groups, because loaded code precedes the same code that
    is compiled for another CPU meanwhile.
    """
    known, source = translated.contents, bytes.fromhex(translated.digests.get("source", ""))
    contents = [
        exported_content(
            translated.beside_code,
            known.get(export.symbol.removeprefix(ADDRESS_OF)) or (None if is_content_name(export.name) else source or None),
            f"{signature} {export.nogil}",
        )
        for export, signature in zip(translated.prepared.exports, translated.entries.signatures, strict=True)
    ]
    return encode_notes(seconds, identity, translated.digests, b"".join(contents) if any(map(any, contents)) else b"")


def _makers_text_of(translated: Translated, linker: Linker | None) -> str:
    """Return the text for the record of makers: programs that made the source's and the inlined code, this package, and the linker."""
    makers = [Maker(*line.partition(" ")[::2]) for line in translated.makers.splitlines()]  # "NAME VERSION"
    makers += [*translated.prepared.inlined.makers, *codegen.own_makers()]
    if linker is not None:
        makers.append(Maker(*version_of(linker)))
    return makers_text(makers)


def _stub_requirement(translated: Translated, symbol: str, basic: frozenset[str], platform: str) -> str:
    """Return the requirement of the stub of an exported symbol. `basic` has the features that every processor of the platform has.

    Importers are bound to the stub on processors that lack features which only the function's own attributes allow.
    """
    machine = translated.machine
    return requirement_of(translated.requires[symbol] & machine.requires, basic, platform, machine.processor)


def _defined_types(translated: Translated) -> dict[str, str]:
    """Return the link types of the exports, by func_name."""
    types = translated.types.definitions
    return {export.name: types[export.symbol] for export in translated.prepared.exports if export.symbol in types}


def _used_types(translated: Translated) -> dict[str, dict[str, str]]:
    """Return the link types of imports, by func_name; each type is mapped to a function that uses the import with this type."""
    imported, used_types = translated.prepared.resolution.imported(), dict[str, dict[str, str]]()
    for symbol, types in translated.types.uses.items():
        if symbol in imported:
            used_types[imported[symbol]] = {**types, **used_types.get(imported[symbol], {})}
    return used_types
