"""Shared libraries that a module names (`ModuleSource(libraries=...)`): finds them, opens them privately, looks up symbols.

A name is a linker's name (``stdc++`` for ``libstdc++.so``), a soname (``libstdc++.so.6``) or a path. An image records the soname. The
dynamic linker finds the library by its soname when the image is mapped.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError, LibraryError
from compcache.images.archives import Archive, is_archive, open_archive
from compcache.images.elf.reading import dynamic_defined, needed_libraries
from compcache.images.platform_symbols import absolute_library_path, library_path
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Library", "advice_on_runtime_library", "demangle", "library_with", "loaded_libraries", "open_libraries", "unusual_directories"]

#: The crates that belong to Rust's compiler, as mangling v0 writes them behind a disambiguator (RFC 2603).
_RUST_CRATES = ("_3std", "_4core", "_5alloc", "_7___rustc")
#: Prefixes of Rust's symbols in the mangling before v0.
_RUST_NAMES = ("_ZN3std", "_ZN4core", "_ZN5alloc", "__rust_", "rust_eh_personality", "rust_begin_unwind")
#: Run-time libraries of compilers, by the prefixes of their symbols.
_RUNTIME_LIBRARIES = (
    (
        ("_ZS", "_ZNS", "_ZNKS", "_ZTIS", "_ZTINS", "_ZTVS", "_ZTVNS", "_ZTVN10__cxxabiv", "_ZTIN10__cxxabiv", "__cxa_", "__gxx_", "_Zn",
         "_Zd"), "stdc++",
    ),
    (("_gfortran_",), "gfortran"),
    (("__kmpc_", "omp_"), "omp"),
    (("GOMP_",), "gomp"),
    (("objc_",), "objc"),
    (("__ubsan_handle_",), "ubsan"),
    (("_D4core", "_D2rt", "_D6object", "_D6Object", "_D9Exception", "_D9invariant", "_d_", "rt_"), "druntime-ldc-shared"),
    (("_D3std",), "phobos2-ldc-shared"),
    (("$s", "swift_"), "swiftCore"),
)  # fmt: skip
#: The prefixes of clang's sanitizers, without underscores.
_SANITIZERS = ("asan", "dfsan", "hwasan", "lsan", "memprof", "msan", "nsan", "rtsan", "safestack", "sanitizer", "tsan", "tysan")
#: Advice about symbols that no shared library defines, by the prefixes of these symbols.
_ADVICE = (
    (("_FortranA", "_QQ"), "pass archives=['libflang_rt.runtime.a'], or compile with compcache.clang"),
    (
        _RUST_NAMES,
        (
            "pass the .rs file to `compcache add` or compcache.clang.compile, which add Rust's library, or also compile the crate with "
            "--crate-type=staticlib and pass that .a file in archives="
        ),
    ),
    (
        ("NRT_", "numba_"),
        (
            "this code comes from Numba (inspect_llvm()) and needs Numba's runtime: use compcache.numba.njit, which caches the function "
            "when it is called, or compcache.numba.export"
        ),
    ),
    (("__zig_",), "compile with zig's option -fcompiler-rt, or pass the libcompiler_rt.a of zig's cache in archives="),
    (("__morestack",), "pass archives=['libgcc.a'] (`gcc --print-libgcc-file-name`)"),
    (
        tuple([f"__{name}_" for name in _SANITIZERS]),
        "compile without -fsanitize, because a program can load a sanitizer's runtime library only when it starts",
    ),
    (
        ("llvm_gcda_", "llvm_gcov_", "__gcov_"),
        "compile without --coverage, or with -fprofile-instr-generate, which needs no runtime library",
    ),
)

_SYSTEM_DIRECTORIES = frozenset(("/lib", "/lib64", "/usr/lib", "/usr/lib64"))


class _Info(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p))


class Library(NamedTuple):
    """An open library: its name as given, and its handle."""

    name: str
    handle: ctypes.CDLL

    def file(self) -> str | None:
        """Return the path of the library, or None if it is unknown."""
        return library_path(self.handle)

    def path_of(self, symbol: str) -> str | None:
        """Return the path of the library that defines a symbol, this library or a dependency, or None if there is no such library."""
        with suppress(ValueError):
            address = ctypes.addressof(ctypes.c_char.in_dll(self.handle, symbol))
            info = _Info()
            is_found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
            return os.fsdecode(info.path) if is_found and info.path else self._path_without_address(symbol)
        return None

    def _path_without_address(self, symbol: str) -> str | None:
        """Return the path of the library that defines a symbol without an address (a thread-local variable); None if none does."""
        with suppress(OSError, FormatError):
            own_path = self.file() or ""
            needed = filter(None, map(_open_if_loaded, needed_libraries(_read_file(own_path))))
            for path in filter(None, [own_path, *[library.file() for library in needed]]):
                if symbol in _defined_symbols(path):
                    return path
        return None


@functools.cache
def _defined_symbols(path: str) -> frozenset[str]:
    """Return the symbols that a shared library defines. Raise `OSError` or `FormatError` if the library cannot be read."""
    return frozenset(dynamic_defined(_read_file(path)))


def _read_file(path: str) -> bytes:
    """Return the content of a file. Raise `OSError` if it cannot be read."""
    with open(path, "rb") as file:
        return file.read()


def open_libraries(names: tuple[str, ...]) -> tuple[Library | Archive, ...]:
    """Open libraries without adding their symbols to the global scope. Shared libraries stay open until the process ends.

    Raise `LibraryError` if a library is not found, or cannot be opened.
    """
    return tuple([open_archive(name) if is_archive(name) else Library(name, _open_library(name)) for name in names])


@functools.cache
def _open_library(name: str) -> ctypes.CDLL:
    """Open a shared library by its name, soname or path. Raise `LibraryError` if that fails."""
    tried = []
    for candidate in _names_to_try(name):
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            reraise_interrupt(error)
            tried.append(str(error))
    reason = "; ".join(tried) or "the system has no library of this name"
    raise LibraryError(
        f"the shared library {name!r} cannot be opened: {reason}; install it, or pass its soname or path in libraries=", library=name
    )


def _names_to_try(name: str) -> list[str]:
    """Return the paths and sonames that a name may stand for, none if the system has no such library."""
    if "/" in name or ".so" in name:
        return [name]
    library = ctypes.util.find_library(name)
    return [library] if library else []


def loaded_libraries() -> tuple[Library, ...]:
    """Return the libraries in the system's directories that this process has loaded."""
    return tuple([library for path in _mapped_libraries() if (library := _open_if_loaded(path)) is not None])


def _open_if_loaded(name: str) -> Library | None:
    """Return a library that the process has already loaded, or None. Nothing is loaded."""
    with suppress(OSError):
        return Library(name, ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_LOCAL))
    return None


def library_with(symbol: str, libraries: Iterable[Library]) -> Library | None:
    """Return the first library that itself defines a symbol, opened by its soname, or None if no library defines the symbol.

    Libraries that the dynamic linker cannot find by soname are ignored.
    """
    for library in libraries:
        defined_in = library.path_of(symbol)
        if defined_in is not None and os.path.realpath(defined_in) == library.name:
            opened = _open_if_loaded(os.path.basename(defined_in))  # succeeds if the file's name is the library's soname
            if opened is not None:
                return opened
    return None


def _mapped_libraries() -> list[str]:
    """Return the sorted paths of the mapped files ``lib*`` in the system's directories. The list is empty without /proc."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {"/" + line.rstrip("\n").partition("/")[2] for line in maps if ".so" in line}
        libraries = [path for path in paths if os.path.basename(path).startswith("lib")]
        return sorted(path for path in libraries if _is_system_directory(os.path.dirname(path)))
    return []


def unusual_directories(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the directories of the libraries at `paths` that the dynamic linker does not search by default."""
    directories = dict.fromkeys([os.path.dirname(absolute_library_path(path)) for path in paths])
    return tuple([directory for directory in directories if not _is_system_directory(directory)])


def _is_system_directory(directory: str) -> bool:
    """Return whether the dynamic linker searches a directory by default.

    Source: https://man7.org/linux/man-pages/man8/ld.so.8.html, and Debian's subdirectories for architectures.
    """
    parent, name = os.path.split(directory)
    return directory in _SYSTEM_DIRECTORIES or (parent in _SYSTEM_DIRECTORIES and "-linux-" in name)


def advice_on_runtime_library(symbol: str) -> str | None:
    """Return advice for a message about a missing symbol of a compiler's runtime library, or None for other symbols."""
    if symbol.startswith("_R") and any(crate in symbol for crate in _RUST_CRATES):
        symbol = _RUST_NAMES[0]  # all of Rust's symbols get the same advice
    if symbol.startswith("__ubsan_handle_") and symbol.endswith(("_minimal", "_minimal_abort")):
        return (
            "pass the libclang_rt.ubsan_minimal.a (or ..._minimal-ARCHITECTURE.a) of `clang -print-runtime-dir` in archives=, or compile "
            "without -fsanitize-minimal-runtime"
        )
    library = next((library for prefixes, library in _RUNTIME_LIBRARIES if symbol.startswith(prefixes)), None)
    if library is None:
        return next((advice for prefixes, advice in _ADVICE if symbol.startswith(prefixes)), None)
    return f"pass libraries=[{library!r}]" + ("" if _is_installed(library) else ", after installing this library")


@functools.cache
def _is_installed(name: str) -> bool:
    """Return whether the system finds a library by its name without ``lib`` and suffix."""
    return ctypes.util.find_library(name) is not None


#: Programs that demangle a symbol given as an argument: rustfilt, LLVM's and GNU binutils'.
_FILTERS = ("rustfilt", "llvm-cxxfilt", "c++filt")
_FILTER_SECONDS = 5.0


@functools.cache
def _load_demangler() -> ctypes.CDLL | None:
    """Return the C++ library that demangles names, or None if this host does not have it."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        return library
    return None


def demangle(symbol: str) -> str:
    """Demangle a symbol of C++ (Itanium C++ ABI, with `__cxa_demangle`) or of Rust (v0, with an installed program).

    Other symbols are returned unchanged, and so are symbols for which no demangler is installed.
    """
    if symbol.startswith("_R"):
        return _demangle_with_program(symbol)
    library = _load_demangler() if symbol.startswith("_Z") else None
    if library is None:
        return symbol
    status = ctypes.c_int()
    result = library.__cxa_demangle(symbol.encode("utf-8", "surrogateescape"), None, None, ctypes.byref(status))
    if not result:
        return symbol
    try:
        return ctypes.string_at(result).decode("utf-8", "replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(result))


def _demangle_with_program(symbol: str) -> str:
    """Demangle a symbol with the first installed demangling program, because no system library demangles Rust names.

    The symbol is returned unchanged if no program is installed, or if the program fails.
    """
    path = next(filter(None, map(shutil.which, _FILTERS)), None)
    if path is None:
        return symbol
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        completed = subprocess.run([path, symbol], capture_output=True, stdin=subprocess.DEVNULL, timeout=_FILTER_SECONDS, check=False)
        return completed.stdout.decode("utf-8", "replace").strip() or symbol
    return symbol
