"""From a relocatable object to the image of a module: a shared object where a linker is installed, else the object itself."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CacheWarning, CompileError, FormatError, LinkerError, UndefinedSymbolError
from compcache.images import platform_symbols
from compcache.images.archives import Archive, is_archive
from compcache.images.elf import patching, reading
from compcache.images.elf.parts import is_elf
from compcache.images.libraries import Library, advice_on_run_time, open_libraries, unusual_directories
from compcache.images.linkers.find import find_linker, is_chosen
from compcache.images.linkers.link import link_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from compcache.images.linkers.find import Linker

    #: Gives the linker for an object; None where there is none.
    LinkerFor = Callable[[bytes], Linker | None]

__all__ = ["EntryObjects", "first_linker", "link_image"]

_SONAME = "compcache-module.so"
#: What entry points and generated code refer to; always there, hence never weak.
_ALWAYS_THERE = ("Py", "_Py", "_GLOBAL_OFFSET_TABLE_")
_OWN_RUN_TIME = "name the static library of the compiler's run time in archives= (`clang --print-libgcc-file-name`)"
_SHOWN = 5
_MOST_SHOWN = 20


class EntryObjects(NamedTuple):
    """The objects of a module's entry points, and the symbols that they define; empty where they are in the module's own object."""

    codes: tuple[bytes, ...] = ()
    symbols: tuple[str, ...] = ()


def first_linker(_: bytes) -> Linker | None:
    """The preferred linker of the system, for any object."""
    return find_linker()


def link_image(
    obj: bytes,
    *,
    entries: EntryObjects,
    export: str,
    weak: Collection[str],
    imports: Collection[str],
    needs_linker: Sequence[str],
    libraries: Sequence[Library | Archive],
    linker_for: LinkerFor,
) -> tuple[bytes, str, dict[str, bytes]]:
    """The image of an object, its kind, "shared" or "object", and by symbol the places of its imports (`elf.patching.take_places`).

    Args:
        obj: the object of a module.
        entries: the objects of its entry points, and their symbols; only a linker can put them together.
        export: the one symbol that the image lets others see.
        weak: the symbols that may stay without a provider.
        imports: those whose addresses are filled in when code is loaded, which only a shared object can have.
        needs_linker: what the module has that only a shared object can have, in words.
        libraries: those that the source names, beside the platform's.
        linker_for: gives the linker for an object, or None.

    Raises:
        UndefinedSymbolError: the code refers to what neither the platform nor this process provides.
        CompileError: no linker is installed, or it fails, and the module needs one.
        LinkerError: there is none or it fails, and nothing but the imports and the entry points needs one.
    """
    if not is_elf(obj):
        _require_plain(needs_linker, "there is no linker")
        return obj, "object", {}
    undefined = [symbol for symbol in reading.undefined_symbols(obj) if symbol not in entries.symbols]
    platform = [s for s in undefined if s not in imports and platform_symbols.is_platform_symbol(s)]
    named = _from_libraries([symbol for symbol in undefined if symbol not in imports], platform, libraries)
    _check_undefined([symbol for symbol in undefined if symbol not in named and symbol not in imports], weak)
    needs_linker = [*needs_linker, *(f"{symbol!r} of {os.path.basename(path)}" for symbol, path in named.items())]
    always = [s for s in undefined if (s.startswith(_ALWAYS_THERE) or s in platform or s in named) and s not in imports]
    weakened = patching.rename_versioned(patching.weaken_undefined(obj, keep=[*always, *entries.symbols]))
    linker = linker_for(obj)
    if linker is not None:
        versions = {symbol: platform_symbols.versioned_name(symbol) for symbol in platform}
        plain, weakened = weakened, patching.rename_undefined(weakened, {name: version for name, version in versions.items() if version})
    if linker is None:
        if not is_chosen():
            _warn_of_no_linker()
        _require_plain(needs_linker, "there is no linker")
        if entries.symbols:
            raise LinkerError("there is no linker any more")
        return weakened, "object", {}
    try:
        shared = [path for path in dict.fromkeys(named.values()) if not is_archive(path)]
        archives = [library.name for library in libraries if isinstance(library, Archive)] if len(shared) < len({*named.values()}) else []
        paths = [*archives, *platform_symbols.platform_paths(platform), *shared]
        if archives:  # whose members may use all that a linker has by itself, and one another
            given = [library.file() for library in libraries if isinstance(library, Library)]
            paths = [*archives, *shared, *filter(None, given), *platform_symbols.all_paths()]
        image = link_shared(linker, [weakened, *entries.codes], soname=_SONAME, libraries=paths, run_paths=unusual_directories(shared), export=[export])
    except LinkerError as error:
        _require_plain(needs_linker, str(error))
        if imports or entries.symbols:
            raise
        warnings.warn(f"{error}; the module is stored as an object, which loads more slowly", CacheWarning, stacklevel=2)
        return plain, "object", {}
    if archives:
        _check_archives(image, {*imports, *weak})
    return _take_places(patching.protect_dynamic(image), imports, export)


def _check_archives(image: bytes, known: Collection[str]) -> None:
    """What the members of static libraries use must be there as well, unless they refer to it weakly, as Rust's to functions of later libcs."""
    missing = [
        symbol
        for symbol in reading.dynamic_required(image)
        if symbol and symbol not in known and not symbol.startswith(_ALWAYS_THERE)
        and not platform_symbols.is_platform_symbol(symbol) and not platform_symbols.in_process(symbol)
    ]  # fmt: skip
    provided = set(reading.needed_libraries(image)) if missing else set()
    missing = [symbol for symbol in missing if not any(_defines(name, symbol) for name in provided)]
    if missing:
        raise UndefinedSymbolError(
            f"the archives use {', '.join(map(repr, sorted(missing)[:_MOST_SHOWN]))}, which nothing provides: name the archives or shared "
            "libraries that have them in archives= or libraries=",
            symbols=sorted(missing),
        )


def _defines(library: str, symbol: str) -> bool:
    found = open_libraries((library,))[0]
    return found.path_of(symbol) is not None


def _take_places(image: bytes, imports: Collection[str], table: str) -> tuple[bytes, str, dict[str, bytes]]:
    if not imports:
        return image, "shared", {}
    try:
        image, places = patching.take_places(image, imports, table)
    except FormatError as error:
        raise CompileError(f"the code cannot be bound to what it imports: {error}") from error
    return image, "shared", places


@cache
def _warn_of_no_linker() -> None:
    """Warn once per process what a missing linker costs, unless the user chose to have none."""
    warnings.warn(
        "there is no linker: modules are stored as objects, which a hit loads through LLVM (some 200 ms in a fresh process instead "
        "of one): install one (pip install 'compcache[linker]', or the package lld, mold or binutils of your system)",
        CacheWarning,
        stacklevel=2,
    )


def _from_libraries(
    undefined: Iterable[str], platform: Iterable[str], libraries: Sequence[Library | Archive]
) -> dict[str, str]:
    """The symbols that the libraries which the source names define, and the files in which they do."""
    found = {}
    for symbol in set(undefined).difference(platform) if libraries else ():
        path = next(filter(None, (library.path_of(symbol) for library in libraries)), None)
        if path is not None:
            found[symbol] = path
    return dict(sorted(found.items()))


def _require_plain(needs_linker: Sequence[str], why: str) -> None:
    """Refuse features that need the dynamic linker in an object that is loaded without it."""
    if needs_linker:
        raise CompileError(
            f"the module has {', '.join(needs_linker[:_SHOWN])}, which needs a shared object, but {why}: install a linker "
            "(pip install 'compcache[linker]', or ld, lld or mold)"
        )


def _check_undefined(undefined: Iterable[str], weak: Collection[str]) -> None:
    """Refuse code whose own helper routines (compiler-rt) are not available in the process."""
    missing = [
        symbol
        for symbol in undefined
        if not symbol.startswith(_ALWAYS_THERE)
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
