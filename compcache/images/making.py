"""Turns a relocatable object into the image of a module, of its platform's only kind: a shared object if files are ELF files.

A shared object is written here if everything in the objects is known exactly (`compcache.images.writer`); a linker makes the others.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.errors import CacheWarning, FormatError, LinkerError, UndefinedSymbolError
from compcache.formats.host import platform_name
from compcache.images import platform_symbols
from compcache.images.elf import patching, reading
from compcache.images.elf.parts import is_elf
from compcache.images.libraries import advice_on_run_time
from compcache.images.linkers.find import find_linker, find_linkers, is_named
from compcache.images.object import make as objects
from compcache.images.shared import make as shared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from compcache.images.archives import Archive
    from compcache.images.libraries import Library
    from compcache.images.linkers.find import Linker

__all__ = ["EntryObjects", "ModuleImage", "make_image", "makes_shared_objects", "usual_kind"]

_OWN_RUN_TIME = "name the static library of the compiler's run time in archives= (`clang --print-libgcc-file-name`)"


class EntryObjects(NamedTuple):
    """The objects of a module's entry points, and their symbols; empty if they are in the module's own object."""

    codes: tuple[bytes, ...] = ()
    symbols: tuple[str, ...] = ()


class ModuleImage(NamedTuple):
    """An image, the name of its kind, by symbol the places of its imports (`elf.patching.take_places`), the C library that it needs
    (`MakeSide.requires`), and the linker that made it.
    """

    image: bytes
    kind: str
    places: dict[str, bytes]
    libc: str
    linker: Linker | None


def makes_shared_objects() -> bool:
    """Return whether images made here are shared objects: on platforms with ELF files, where they are written or linked.

    Raises:
        LinkerError: the environment names a linker that cannot be run.
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
    """Return the image of an object.

    Args:
        obj: the object of a module.
        entries: the objects of its entry points, and their symbols; only a shared object can have them.
        export: the one symbol that the image lets others see.
        weak: the symbols that may stay without a provider.
        imports: the symbols whose addresses are filled in when code is loaded, which only a shared object can have.
        needs_linker: the parts of the module that only a shared object can have, in words.
        libraries: the libraries that the source names, in addition to the platform's.
        shared_object: whether the code was compiled for a shared object (`makes_shared_objects`); else the image is the object itself.

    Raises:
        NoSharedObjectError: a linker has to make the shared object, and none is installed; or this process cannot map one of its size.
        UndefinedSymbolError: the code refers to symbols that neither the platform nor this process provides.
        CompileError: an object cannot have what the module has.
        LinkerError: the linker fails, and the shared object is not written without one.
    """
    if not is_elf(obj):
        return _as_object(obj, needs_linker)
    undefined = [symbol for symbol in reading.undefined_symbols(obj) if symbol not in entries.symbols]
    platform = [s for s in undefined if s not in imports and platform_symbols.is_platform_symbol(s)]
    named = _from_libraries([symbol for symbol in undefined if symbol not in imports], platform, libraries)
    _check_undefined([symbol for symbol in undefined if symbol not in named and symbol not in imports], weak)
    needs_linker = [*needs_linker, *(f"{symbol!r} of {os.path.basename(path)}" for symbol, path in named.items())]
    always = [s for s in undefined if (s.startswith(platform_symbols.ALWAYS_THERE) or s in platform or s in named) and s not in imports]
    if not shared_object:
        return _as_object(patching.rename_versioned(patching.weaken_undefined(obj, keep=always)), needs_linker)

    def write() -> ModuleImage:
        optional = {*undefined}.difference(always)
        image, places, libc = shared.write(
            [obj, *entries.codes], export=export, optional=optional, platform=platform, named=named, imports=imports
        )
        return ModuleImage(image, shared.KIND, places, libc, None)

    def link(linker: Linker) -> ModuleImage:
        plain = patching.rename_versioned(patching.weaken_undefined(obj, keep=[*always, *entries.symbols]))
        image, places = shared.make(
            [plain, *entries.codes], linker, export=export, platform=platform, named=named, libraries=libraries, imports=imports, known=weak
        )
        return ModuleImage(image, shared.KIND, places, shared.requires(image), linker)

    return _by_named_linker(write, link) if is_named() else _written_or_linked(write, link)


def _written_or_linked(write: Callable[[], ModuleImage], link: Callable[[Linker], ModuleImage]) -> ModuleImage:
    try:
        return write()
    except FormatError as error:  # a linker may know what is not known here
        refusal = error
    linker = find_linker()
    if linker is None:
        raise shared.NoSharedObjectError(
            f"the module needs a linker, and there is none ({refusal}): install one (pip install 'compcache[linker]', or the package "
            "binutils, mold or lld of your system)"
        )
    return link(linker)


def _by_named_linker(write: Callable[[], ModuleImage], link: Callable[[Linker], ModuleImage]) -> ModuleImage:
    linker = find_linker()
    assert linker is not None
    try:
        return link(linker)
    except LinkerError as error:
        try:
            made = write()
        except FormatError:
            raise error from None
        warnings.warn(f"{error}; the image is written without it", CacheWarning, stacklevel=2)
        return made


def _as_object(obj: bytes, needs_linker: Sequence[str]) -> ModuleImage:
    objects.require_possible(needs_linker)
    return ModuleImage(obj, objects.KIND, {}, objects.requires(obj), None)


def usual_kind() -> str:
    """Return the kind of the images that are made here."""
    return shared.KIND if makes_shared_objects() else objects.KIND


def _from_libraries(undefined: Iterable[str], platform: Iterable[str], libraries: Sequence[Library | Archive]) -> dict[str, str]:
    """Return the symbols that the source's libraries define, and the files that define them."""
    found = {}
    for symbol in set(undefined).difference(platform) if libraries else ():
        path = next(filter(None, (library.path_of(symbol) for library in libraries)), None)
        if path is not None:
            found[symbol] = path
    return dict(sorted(found.items()))


def _check_undefined(undefined: Iterable[str], weak: Collection[str]) -> None:
    """Refuse code if its own helper routines (compiler-rt) are not available in the process."""
    missing = [
        symbol
        for symbol in undefined
        if not symbol.startswith(platform_symbols.ALWAYS_THERE)
        and not platform_symbols.is_platform_symbol(symbol)
        and not platform_symbols.in_process(symbol)
        and symbol not in weak
    ]
    if missing:
        missing.sort()
        advice = dict.fromkeys([advice_on_run_time(symbol) or _OWN_RUN_TIME for symbol in missing])
        raise UndefinedSymbolError(
            f"the compiled code refers to {', '.join(map(repr, missing))}, which neither the platform's "
            f"libraries nor this process provide: {'; '.join(advice)}",
            symbols=missing,
        )
