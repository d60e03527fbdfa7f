"""Native symbols that code may use without defining them: the platform's symbols and the process's symbols.

Platform libraries (libc, libm, libgcc_s) are linked by name, so that their symbols get the version that a C compiler would bind. All other
symbols of the process (libpython, libraries loaded with RTLD_GLOBAL) may be missing in another process. References to these symbols are
made weak and recorded with the functions that reach them. A load of such a function checks its references.

Functions that look for symbols or paths of the platform raise `LibraryError` if its libraries cannot be opened at the moment.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.errors import LibraryError
from compcache.files import UNANSWERED
from compcache.formats.host import platform_name, this_libc
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "ALWAYS_THERE", "absolute_library_path", "address_of", "all_paths", "in_process", "is_defined", "is_platform_symbol", "library_path",
    "needed_libc", "only_version", "platform_library", "platform_path", "platform_paths", "provider_of",
    "versioned_name",
]  # fmt: skip

_LIBRARIES = ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2")
#: The prefixes of symbols that every process has: the interpreter's functions and symbols that linkers create. References to them are never
#: weak, and no C library defines them.
ALWAYS_THERE = ("Py", "_Py", "_GLOBAL_OFFSET_TABLE_")
#: Symbols for queries of CPU features, with the only library and version that define them: a look-up without a version does not find them.
_VERSIONED = dict.fromkeys(("__cpu_model", "__cpu_indicator_init"), ("libgcc_s.so.1", "GCC_4.8.0"))
_LINK_MAP = 2  # RTLD_DI_LINKMAP of dlinfo(3)


@functools.cache
def _open_platform() -> tuple[tuple[str, ctypes.CDLL], ...]:
    """Return the platform's libraries with their names. Libraries that this host does not have are left out.

    Raise `LibraryError` if a library cannot be opened because of a shortage: code would be linked without it.
    """
    libraries = []
    for name in filter(None, (*_LIBRARIES, architecture(platform_name()).dynamic_linker)):
        try:
            libraries.append((name, ctypes.CDLL(name)))
        except OSError as error:  # it has no errno
            reraise_interrupt(error)
            if any(os.strerror(code) in str(error) for code in UNANSWERED):
                raise LibraryError(
                    f"the platform's library {name} cannot be opened at the moment ({error}): try again", library=name
                ) from error
    return tuple(libraries)


@functools.cache
def platform_library(symbol: str) -> str | None:
    """Return the soname of the platform library that defines a symbol, or None if it is not a symbol of the platform."""
    for name, library in _open_platform():
        if _has_symbol(library, symbol):
            return name
    return _VERSIONED[symbol][0] if versioned_name(symbol) else None


def versioned_name(symbol: str) -> str | None:
    """Return ``SYMBOL@VERSION`` for a platform symbol that a look-up without a version does not find; None for other symbols."""
    version = only_version(symbol)
    return None if version is None else f"{symbol}@{version}"


def only_version(symbol: str) -> str | None:
    """Return the version of a platform symbol that a look-up without a version does not find; None for other symbols."""
    return _VERSIONED[symbol][1] if symbol in _VERSIONED and _versioned_address(symbol) else None


@functools.cache
def _versioned_address(symbol: str) -> int:
    """Return the address of a symbol of `_VERSIONED`, or 0 if the platform does not have it in this version."""
    name, version = _VERSIONED[symbol]
    library = dict(_open_platform()).get(name)
    if library is None:
        return 0
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    return find(ctypes.c_void_p(library._handle), symbol.encode(), version.encode()) or 0


def address_of(symbol: str) -> int:
    """Return the address of a symbol of the platform or the process; 0 if neither defines it."""
    if versioned_name(symbol):
        return _versioned_address(symbol)
    library = platform_library(symbol)
    with suppress(ValueError, UnicodeEncodeError):
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(library), symbol))
    return 0


def is_platform_symbol(symbol: str) -> bool:
    """Return whether every process on this platform has the symbol."""
    return platform_library(symbol) is not None


def in_process(symbol: str) -> bool:
    """Return whether this process has the symbol in its global scope."""
    return _has_symbol(_open_process(), symbol)


def provider_of(symbol: str) -> str:
    """Return the provider of a native symbol.

    Args:
        symbol: the name of the symbol in C.

    Returns:
        "platform" if every process on this platform has the symbol, "process" if this process has it, otherwise "".
    """
    if is_platform_symbol(symbol):
        return "platform"
    return "process" if in_process(symbol) else ""


def is_defined(symbol: str) -> bool:
    """Return whether the interpreter, a linker, the platform or this process provides a symbol, so that code need not define it."""
    return symbol.startswith(ALWAYS_THERE) or is_platform_symbol(symbol) or in_process(symbol)


@functools.cache
def _open_process() -> ctypes.CDLL:
    """Return the process's global scope. It also finds symbols of libraries that are loaded later.

    The object is kept, because creating it costs more than a look-up.
    """
    return ctypes.CDLL(None)


def _has_symbol(library: ctypes.CDLL, symbol: str) -> bool:
    """Return whether a library, or a library that it needs, defines a symbol."""
    # Not `in_dll`: most symbols are in no library, and an exception for each library takes longer than the look-up.
    return "\0" not in symbol and _finder()(library._handle, symbol.encode("utf-8", "replace")) is not None


@functools.cache
def _finder() -> Callable[[int, bytes], int | None]:
    """Return the system's `dlsym`, which returns None for a symbol that is not defined."""
    find = _open_process().dlsym
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p
    return find


def library_path(library: ctypes.CDLL) -> str | None:
    """Return the absolute path from which a library was loaded, or None if dlinfo(3) does not tell it. No file is read."""
    link_map = ctypes.POINTER(ctypes.c_char_p)()  # the second field of link_map is the path
    ask = getattr(_open_process(), "dlinfo", None)
    if ask is None or ask(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(link_map)):
        return None
    return absolute_library_path(os.fsdecode(link_map[1]))  # it is relative if LD_LIBRARY_PATH is


def absolute_library_path(path: str) -> str:
    """Return the absolute form of a file's path. A symbolic link before ``..`` is followed, as the dynamic linker does."""
    directory, name = os.path.split(path)
    absolute, real = os.path.abspath(directory), os.path.realpath(directory)
    return os.path.join(absolute if os.path.realpath(absolute) == real else real, name)


@functools.cache
def platform_path(name: str) -> str | None:
    """Return the path of the platform library with a soname, or None if it is unknown."""
    library = dict(_open_platform()).get(name)
    return None if library is None else library_path(library)


def platform_paths(symbols: Iterable[str]) -> list[str]:
    """Return the paths of the platform libraries that define any of these symbols, without duplicates."""
    names = dict.fromkeys(filter(None, map(platform_library, symbols)))
    return list(filter(None, map(platform_path, names)))


def all_paths() -> list[str]:
    """Return the paths of all platform libraries."""
    return list(filter(None, [platform_path(name) for name, _ in _open_platform()]))


def needed_libc(undefined: Iterable[str]) -> str:
    """Return the kind of C library that code with these undefined symbols needs, for example ``glibc``; empty if it needs none.

    The kind is always the kind of this process, because the code uses its structures and calling conventions.
    """
    kind, _, _ = this_libc().partition(" ")
    return kind if any(not name.startswith(ALWAYS_THERE) for name in undefined) else ""
