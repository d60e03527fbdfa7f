"""Makes shared objects from relocatable objects, with or without a linker, and finds their requirements."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompileError, FormatError, UndefinedSymbolError
from compcache.images import platform_symbols
from compcache.images.archives import Archive, compiler_archives, is_archive
from compcache.images.elf.exported import shared_library
from compcache.images.elf.parts import is_elf
from compcache.images.elf.patching import extract_places, protect_dynamic, rename_undefined
from compcache.images.elf.reading import dynamic_required, dynamic_undefined, has_fixed_code, needed_libraries, needed_versions
from compcache.images.libraries import Library, open_libraries, unusual_directories
from compcache.images.linkers.link import link_shared
from compcache.images.writer.write import Provider, write_shared
from compcache.interrupts import reraise_interrupt
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from compcache.images.elf.objects import DistanceTable
    from compcache.images.linkers.find import Linker

__all__ = ["KIND", "LOADED", "NoSharedObjectError", "SharedObject", "is_comparable", "make", "requires", "write"]

#: The kind's name in module records.
KIND = "shared"
LOADED = "shared objects through dlopen"
_GLIBC_VERSION = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)*")
_MOST_SHOWN = 20


class NoSharedObjectError(CompileError):
    """Raised when this host cannot make a shared object without a linker, or when the image exceeds the process's limit on file sizes."""


class SharedObject(NamedTuple):
    """A shared object, the places of its imports by symbol (`extract_places`), and the C library that it needs (`MakeSide.requires`)."""

    image: bytes
    places: dict[str, bytes]
    libc: str


def write(
    objects: Sequence[bytes],
    *,
    export: str,
    optional: Collection[str],
    platform: Collection[str],
    named: Mapping[str, str],
    imports: Collection[str],
    table: DistanceTable | None = None,
) -> SharedObject:
    """Write a shared object without a linker.

    Args:
        objects: the object of the module, then the objects of its entry points.
        export: the one symbol that the image exports.
        optional: the symbols of other images that may be missing.
        platform: the symbols that the platform's libraries define.
        named: the symbols that libraries named by the source define, and the paths of these libraries.
        imports: the symbols whose addresses are filled in when code is loaded.
        table: the module's table.

    Raises:
        FormatError: only a linker can make this shared object.
        NoSharedObjectError: this process cannot map an image of this size.
        LibraryError: a library of the platform cannot be opened.
    """
    providers = {symbol: _provider_of(symbol, path) for symbol, path in named.items()}
    for symbol in platform:
        path = platform_symbols.platform_path(platform_symbols.platform_library(symbol) or "")
        if path is not None:
            providers[symbol] = _provider_of(symbol, path)
    known_providers = {symbol: provider for symbol, provider in providers.items() if provider is not None}
    run_paths = unusual_directories(dict.fromkeys(named.values()))
    image, places, needed = write_shared(
        objects, export=export, optional=optional, imports=imports, providers=known_providers, run_paths=run_paths, table=table
    )
    _require_loadable(len(image))
    libraries = {symbol.library for symbol in needed if not symbol.is_weak}
    versions = [symbol.version for symbol in needed if symbol.library in libraries]
    return SharedObject(image, places, _libc_requirement(versions, [symbol.name for symbol in needed]))


def _require_loadable(size: int) -> None:
    """Raise `NoSharedObjectError` if this process may not write a file of this size in bytes, and therefore cannot map the image."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size > limit != resource.RLIM_INFINITY:
        raise NoSharedObjectError(
            f"the module's image has {size} bytes, but this process may write files of at most {limit} bytes: raise the limit (`ulimit -f`)"
        )


def _provider_of(symbol: str, path: str) -> Provider | None:
    """Return the library at a path as the provider of a symbol, or None if the library itself does not define the symbol for new objects.

    Raise `FormatError` if the file is an archive, or is not readable as a shared library.
    """
    if is_archive(path):
        raise FormatError(f"the archive {path} defines {symbol!r}, and only a linker can use archives")
    try:
        library = shared_library(path)
    except OSError as error:
        reraise_interrupt(error)
        raise FormatError(f"the library {path} cannot be read: {error.strerror or error}") from error
    only = platform_symbols.only_version(symbol)
    version = library.version_of(symbol) if only is None else only
    return None if version is None else Provider(library.soname or os.path.basename(path), version)


def make(
    objects: Sequence[bytes],
    linker: Linker,
    *,
    export: str,
    platform: Collection[str],
    named: Mapping[str, str],
    libraries: Sequence[Library | Archive],
    imports: Collection[str],
    may_be_missing: Collection[str],
) -> tuple[bytes, dict[str, bytes]]:
    """Run a linker, and return the shared object and the places of its imports by symbol (`extract_places`).

    Args:
        objects: the object of the module, whose references are weak where possible, then those of its table and entry points.
        linker: the linker to use.
        export: the one symbol that the image exports.
        platform: the symbols that the platform's libraries define.
        named: the symbols that libraries named by the source define, and the paths of these libraries.
        libraries: all libraries that the source names.
        imports: the symbols whose addresses are filled in when code is loaded.
        may_be_missing: further symbols that may be missing.

    Raises:
        LinkerError: the linker fails.
        UndefinedSymbolError: members of archives use symbols that no library provides.
        LibraryError: a library that the image needs cannot be opened.
        FormatError: the object or the linker's output is malformed.
        CompileError: the code uses an import in a way that leaves no place for its address.
    """
    versions = {symbol: version for symbol in platform if (version := platform_symbols.versioned_name(symbol))}
    shared = [path for path in dict.fromkeys(named.values()) if not is_archive(path)]
    archives = [library.name for library in libraries if isinstance(library, Archive)] if len(shared) < len({*named.values()}) else []
    paths = [*platform_symbols.platform_paths(platform), *shared]
    if archives:  # the members of archives may use each other, and every library that a linker adds
        named_files = [library.file() for library in libraries if isinstance(library, Library)]
        paths = [*archives, *compiler_archives(), *shared, *filter(None, named_files), *platform_symbols.all_paths()]
    code = [rename_undefined(objects[0], versions), *objects[1:]]
    image = link_shared(linker, code, libraries=paths, run_paths=unusual_directories(shared), export=[export])
    if archives:
        _check_archives(image, {*imports, *may_be_missing})
    return _detach_imports(protect_dynamic(image), imports, export)


def _check_archives(image: bytes, may_be_missing: Collection[str]) -> None:
    """Raise `UndefinedSymbolError` if members of archives use symbols that no library defines, except those in `may_be_missing`.

    Weak references, such as Rust's to functions of later C libraries, may stay undefined.

    Raise `LibraryError` if a library that the image needs cannot be opened.
    """
    missing = [
        symbol for symbol in dynamic_required(image) if symbol and symbol not in may_be_missing and not platform_symbols.is_defined(symbol)
    ]
    provided = set(needed_libraries(image)) if missing else set()
    missing = [symbol for symbol in missing if not any(_library_defines(name, symbol) for name in provided)]
    if missing:
        raise UndefinedSymbolError(
            f"no library defines {join_first(map(repr, sorted(missing)), _MOST_SHOWN)}, used by members of the archives: name the archives "
            "or shared libraries that define these symbols in archives= or libraries=",
            symbols=sorted(missing),
        )


def _library_defines(library: str, symbol: str) -> bool:
    """Return whether a shared library defines a symbol. Raise `LibraryError` if it cannot be opened."""
    found = open_libraries((library,))[0]
    return found.path_of(symbol) is not None


def _detach_imports(image: bytes, imports: Collection[str], table: str) -> tuple[bytes, dict[str, bytes]]:
    """Return an image without relocations for its imports, and the places of each import. Raise `CompileError` for an unsupported use."""
    if not imports:
        return image, {}
    try:
        return extract_places(image, imports, table)
    except FormatError as error:
        raise CompileError(f"the code cannot be bound to its imports: {error}") from error


def requires(image: bytes) -> str:
    """Return the C library that a shared object needs, from the versions of its symbols (`MakeSide.requires`)."""
    return _libc_requirement([name for names in needed_versions(image).values() for name in names], dynamic_undefined(image))


def _libc_requirement(versions: Iterable[str], undefined: Iterable[str]) -> str:
    """Return the latest version of glibc in `versions`, like ``glibc 2.14``. If there is none, return the result of `needed_libc`."""
    numbers = [tuple(map(int, match.groups())) for match in map(_GLIBC_VERSION.fullmatch, versions) if match]
    return "glibc {}.{}".format(*max(numbers)) if numbers else platform_symbols.needed_libc(undefined)


def is_comparable(obj: bytes) -> bool:
    """Return whether a shared object contains the object's machine code unchanged (`MakeSide.is_comparable`).

    Linkers move code on some architectures.
    """
    return is_elf(obj) and has_fixed_code(obj)
