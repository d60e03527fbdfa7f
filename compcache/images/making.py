"""Turns a relocatable object into the image of a module. Each platform has one kind of images: shared objects on ELF platforms.

A shared object is written without a linker if the writer (`compcache.images.writer`) supports all objects; otherwise a linker makes it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.errors import FormatError, LinkerError, UndefinedSymbolError
from compcache.formats.host import platform_name
from compcache.images import platform_symbols
from compcache.images.elf import patching, reading
from compcache.images.elf.objects import table_object
from compcache.images.elf.parts import is_elf
from compcache.images.libraries import advice_on_runtime_library
from compcache.images.linkers.find import find_linker, find_linkers, is_named
from compcache.images.object import make as objects
from compcache.images.shared import make as shared
from compcache.warning import warn
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from compcache.images.archives import Archive
    from compcache.images.elf.objects import DistanceTable
    from compcache.images.libraries import Library
    from compcache.images.linkers.find import Linker

__all__ = ["EntryObjects", "ModuleImage", "make_image", "makes_shared_objects", "usual_kind"]

_OWN_RUNTIME_ADVICE = "pass the static runtime library of the compiler in archives= (`clang --print-libgcc-file-name`)"
_ASSEMBLY_ADVICE = "pass a function that only assembly names as an operand, or add its source to the same group (group=)"


class EntryObjects(NamedTuple):
    """The objects of a module's entry points, their symbols, and the module's table; empty if the module's own object contains these."""

    codes: tuple[bytes, ...] = ()
    symbols: tuple[str, ...] = ()
    table: DistanceTable | None = None


class ModuleImage(NamedTuple):
    """The image of a module, and facts about it.

    `kind` is the name of the image's kind. `places` has the places of imports by symbol (`elf.patching.extract_places`). `libc` is the C
    library that the image needs (`MakeSide.requires`). `linker` is None if no linker made the image.
    """

    image: bytes
    kind: str
    places: dict[str, bytes]
    libc: str
    linker: Linker | None


def makes_shared_objects() -> bool:
    """Return whether this process makes shared objects: on ELF platforms with a linker, or with an architecture that the writer knows.

    Raise `LinkerError` if `COMPCACHE_LINKER` names a linker that cannot be run.
    """
    platform = platform_name()
    return bool(find_linkers()) or (platform.endswith("-elf") and architecture(platform).linking is not None)


def make_image(
    obj: bytes,
    *,
    entries: EntryObjects,
    export: str,
    weak: Collection[str],
    imports: Collection[str],
    needs_linker: Sequence[str],
    libraries: Sequence[Library | Archive],
    shared_object: bool,
) -> ModuleImage:
    """Create an image from an object. Issue a `CacheWarning` if the named linker fails and the image is written without it.

    Args:
        obj: the object of a module.
        entries: the objects of its entry points, their symbols, and the module's table. Only a shared object can have them.
        export: the one symbol that the image exports.
        weak: the symbols that may stay undefined.
        imports: the symbols whose addresses are filled in when code is loaded. Only a shared object can have them.
        needs_linker: descriptions of the module's parts that only a shared object can have, for a message.
        libraries: the libraries that the source names, in addition to the platform's.
        shared_object: whether the code was compiled for a shared object (`makes_shared_objects`). If not, the image is the object itself.

    Raises:
        NoSharedObjectError: the shared object requires a linker, but none is installed; or this process cannot map an image of this
            size.
        UndefinedSymbolError: the code refers to symbols that neither the platform nor this process provides.
        CompileError: the image is an object, and the module has parts that need a shared object.
        LinkerError: the linker fails, and the writer cannot make the shared object.
        LibraryError: a library of the platform, or one that the image needs, cannot be opened.
        FormatError: the object is malformed.
    """
    if not is_elf(obj):
        return _make_object_image(obj, needs_linker)
    references = _resolve_references(obj, entries, weak, imports, libraries)
    if not shared_object:
        from_libraries = [f"{symbol!r} of {os.path.basename(path)}" for symbol, path in references.named.items()]
        plain, _ = patching.rename_versioned(patching.weaken_undefined(obj, keep=references.always), imports)
        return _make_object_image(plain, [*needs_linker, *from_libraries])
    write = partial(_write_shared, obj, entries, references, export=export, imports=imports)
    link = partial(_link_shared, obj, entries, references, export=export, imports=imports, libraries=libraries, weak=weak)
    return _link_or_write(write, link) if is_named() else _write_or_link(write, link)


class _References(NamedTuple):
    """The undefined symbols of an object, apart from those that its entry points define.

    `platform` are the symbols of the platform's libraries. `named` has the paths of the libraries that define other symbols, by symbol.
    `always` are the symbols that every process with these libraries has.
    """

    undefined: list[str]
    platform: list[str]
    named: dict[str, str]
    always: list[str]


def _resolve_references(
    obj: bytes, entries: EntryObjects, weak: Collection[str], imports: Collection[str], libraries: Sequence[Library | Archive]
) -> _References:
    """Find the providers of an object's undefined symbols. Raise `UndefinedSymbolError` if a symbol outside of `weak` has none."""
    undefined = [symbol for symbol in reading.undefined_symbols(obj) if symbol not in entries.symbols]
    required = [symbol for symbol in undefined if symbol not in imports]
    platform = list(filter(platform_symbols.is_platform_symbol, required))
    named = _paths_of_providers(required, platform, libraries)
    _check_undefined([symbol for symbol in required if symbol not in named], weak)
    always = [name for name in required if name.startswith(platform_symbols.ALWAYS_THERE) or name in platform or name in named]
    return _References(undefined, platform, named, always)


def _write_shared(obj: bytes, entries: EntryObjects, references: _References, *, export: str, imports: Collection[str]) -> ModuleImage:
    """Return the image that the package itself writes, without a linker. See `shared.write` for the exceptions."""
    _, platform, named, always = references
    image, places, libc = shared.write(
        [obj, *entries.codes], export=export, optional={*references.undefined}.difference(always), platform=platform, named=named,
        imports=imports, table=entries.table,
    )  # fmt: skip
    return ModuleImage(image, shared.KIND, places, libc, None)


def _link_shared(
    obj: bytes, entries: EntryObjects, references: _References, linker: Linker, *,
    export: str, imports: Collection[str], libraries: Sequence[Library | Archive], weak: Collection[str],
) -> ModuleImage:  # fmt: skip
    """Return the image that a linker makes. See `shared.make` for the exceptions."""
    _, platform, named, always = references
    plain, names = patching.rename_versioned(patching.weaken_undefined(obj, keep=[*always, *entries.symbols]), imports)
    tables = [patching.rename_undefined(table_object(entries.table), names)] if entries.table else []
    image, places = shared.make(
        [plain, *tables, *entries.codes], linker, export=export, platform=platform, named=named, libraries=libraries,
        imports=[names.get(symbol, symbol) for symbol in imports], may_be_missing=weak,
    )  # fmt: skip
    former = {new: symbol for symbol, new in names.items()}
    return ModuleImage(
        image, shared.KIND, {former.get(name, name): place for name, place in places.items()}, shared.requires(image), linker
    )


def _write_or_link(write: Callable[[], ModuleImage], link: Callable[[Linker], ModuleImage]) -> ModuleImage:
    """Write an image without a linker, or link it if the writer cannot. Raise `NoSharedObjectError` if there is no linker then."""
    try:
        return write()
    except FormatError as error:  # a linker may support more than the writer
        refusal = error
    linker = find_linker()
    if linker is None:
        raise shared.NoSharedObjectError(
            f"the module requires a linker ({refusal}), but none is installed: run `pip install 'compcache[linker]'`, or install the "
            "package binutils, mold or lld of your system"
        )
    return link(linker)


def _link_or_write(write: Callable[[], ModuleImage], link: Callable[[Linker], ModuleImage]) -> ModuleImage:
    """Link an image, or write it with a warning if the linker fails. Raise the linker's error if the writer does not support the module."""
    linker = find_linker()
    assert linker is not None
    try:
        return link(linker)
    except LinkerError as error:
        try:
            image = write()
        except FormatError:
            raise error from None
        warn(f"the module's image was written without the linker that COMPCACHE_LINKER names: {error}")
        return image


def _make_object_image(obj: bytes, needs_linker: Sequence[str]) -> ModuleImage:
    """Return the image that is the object itself. Raise `CompileError` if the module has parts that need a linker."""
    objects.require_no_linker(needs_linker)
    return ModuleImage(obj, objects.KIND, {}, objects.requires(obj), None)


def usual_kind() -> str:
    """Return the name of the image kind that this process creates. See `makes_shared_objects` for the exceptions."""
    return shared.KIND if makes_shared_objects() else objects.KIND


def _paths_of_providers(undefined: Iterable[str], platform: Iterable[str], libraries: Sequence[Library | Archive]) -> dict[str, str]:
    """Return the paths of the libraries that define undefined symbols, by symbol. The platform's symbols are left out."""
    if not libraries:
        return {}
    paths = {}
    for symbol in set(undefined).difference(platform):
        path = next(filter(None, (library.path_of(symbol) for library in libraries)), None)
        if path is not None:
            paths[symbol] = path
    return dict(sorted(paths.items()))


def _check_undefined(undefined: Iterable[str], weak: Collection[str]) -> None:
    """Raise `UndefinedSymbolError` for symbols, such as helper routines of compiler-rt, that no library of this process defines.

    The symbols in `weak` may stay undefined.
    """
    missing = sorted(symbol for symbol in undefined if symbol not in weak and not platform_symbols.is_defined(symbol))
    if missing:
        others = [_OWN_RUNTIME_ADVICE if symbol.startswith("_") else _ASSEMBLY_ADVICE for symbol in missing]
        advice = dict.fromkeys([advice_on_runtime_library(symbol) or other for symbol, other in zip(missing, others, strict=True)])
        raise UndefinedSymbolError(
            f"the compiled code refers to {join_first(map(repr, missing), 20)}, but neither the platform's "
            f"libraries nor this process defines {'this symbol' if len(missing) == 1 else 'these symbols'}: {'; '.join(advice)}",
            symbols=missing,
        )
