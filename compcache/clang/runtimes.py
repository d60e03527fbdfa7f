"""Finds the libraries with which a compiler links programs: the runtime libraries of the language, and the libraries in the flags.

clang and flang print the linker's command if the flag ``-###`` is set. Rust's libraries are archives below ``rustc --print sysroot``.
rustc adds the functions that choose the allocator (`rustc_codegen_ssa`, "allocator shim").
"""

from __future__ import annotations

import ctypes.util
import glob
import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from compcache.clang.bitcode import link_assembly, read_symbols
from compcache.images.archives import open_archive
from compcache.images.elf.parts import ELF_MAGIC, is_elf
from compcache.images.platform_symbols import is_platform_symbol
from compcache.images.static_runtime import STATIC_RUNTIME
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    from compcache.clang.bitcode import Symbols
    from compcache.clang.units import Unit

__all__ = ["add_runtime_libraries"]

#: The most seconds that a question to a compiler's driver may take.
_SECONDS = 60.0
#: Libraries of the platform, with which every module is linked.
_PLATFORM_LIBRARIES = frozenset(("c", "m", "gcc", "gcc_s", "gcc_eh", "pthread", "dl", "rt"))
_SHARED_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_LANGUAGE = {"c": "c", "c++": "c++", "fortran": "f95"}
#: The name of a function that chooses Rust's allocator. New compilers write the name in mangling v0, with a prefix for their version.
_RUST_ALLOCATOR = re.compile(r"(?:(?P<before>_R\w*?7___rustc)\d+_)?__rdl_alloc")
_RUST_FUNCTIONS = {
    "alloc": ("ptr", "i64, i64"),
    "dealloc": ("void", "ptr, i64, i64"),
    "realloc": ("ptr", "ptr, i64, i64, i64"),
    "alloc_zeroed": ("ptr", "i64, i64"),
    "alloc_error_handler": ("void", "i64, i64"),
}
_RUST_MARKS = ("__rust_no_alloc_shim_is_unstable_v2", "__rust_alloc_error_handler_should_panic_v2")
_OLD_RUST_MARKS = ("__rust_no_alloc_shim_is_unstable", "__rust_alloc_error_handler_should_panic")


class _Runtime(NamedTuple):
    """The libraries with which a module is linked, in the form of `ModuleSource`, and code to add to the module."""

    libraries: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    code: str = ""


def add_runtime_libraries(
    unit: Unit, code: bytes, options: Mapping[str, Any], symbols: Symbols | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Add the compiler's runtime libraries to a module if its code uses their symbols.

    Args:
        unit: the compiled unit.
        code: the unit's bitcode.
        options: the options of `ModuleSource`. Their libraries come first. Symbols in their `imports` and `globals` need no library.
        symbols: the symbols of the code; None reads them from the code.

    Returns:
        The code and the options of `ModuleSource`; both unchanged if the code needs no runtime library.

    Raises:
        CompileError: LLVM rejects the code.
        LibraryError: the archive of Rust's standard library cannot be read.
    """
    symbols = symbols or read_symbols(code)
    provided = {*STATIC_RUNTIME, *_as_list(options.get("imports")), *(options.get("globals") or ())}
    if all(name in provided or name.startswith("llvm.") or is_platform_symbol(name) for name in symbols.declared):
        return code, dict(options)
    runtime = _find_rust_runtime(unit, symbols.defined) if unit.compiler.language == "rust" else _query_driver_runtime(unit)
    additions = {"libraries": runtime.libraries, "archives": runtime.archives}
    merged_options = {**options, **{name: [*_as_list(options.get(name)), *value] for name, value in additions.items() if value}}
    return (link_assembly(code, runtime.code) if runtime.code else code), merged_options


def _as_list(value: Any) -> list[Any]:
    """Return one or several names or paths, or None, as a list."""
    return [value] if isinstance(value, (str, os.PathLike)) else list(value or ())


def _query_driver_runtime(unit: Unit) -> _Runtime:
    """Return the libraries and archives that the compiler's driver would link with a unit, or none if the driver does not say."""
    flags = [flag for flag in unit.flags if not flag.startswith("-fsanitize")]
    command = [unit.compiler.path, "-###", "-shared", *flags, "-x", _LANGUAGE[unit.compiler.language], os.devnull, "-o", os.devnull]
    lines = _capture_output(unit, command, stderr=True).splitlines()
    words = next((libraries for line in reversed(lines) if "-shared" in (libraries := _split_line(line))), [])
    directories, libraries = [], []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-L"):
            directories.append(word[2:] or following)
        elif word.startswith("-l") and word[2:] not in _PLATFORM_LIBRARIES:
            libraries.append(word[2:])
        elif word.endswith(".a") or _SHARED_LIBRARY.search(word):
            libraries.append(os.path.join(unit.directory, word))
    absolute = [os.path.join(unit.directory, directory) for directory in directories]
    files = list(filter(None, [_find_library(name, absolute) for name in dict.fromkeys(libraries)]))
    archives = tuple([path for path in files if path.endswith(".a")])
    return _Runtime(tuple([path for path in files if path not in archives]), archives)


def _split_line(line: str) -> list[str]:
    """Return the words of a command line, or no words if a quote or an escape in it is not complete."""
    with suppress(ValueError):
        return shlex.split(line)
    return []


def _find_library(name: str, directories: Iterable[str]) -> str | None:
    """Return the name of a library if the system finds it by name, otherwise its path; None if the library does not exist.

    `name` may also be a path, or a colon and a file name. Linker scripts are not libraries.
    """
    if "/" in name:
        return name if os.path.exists(name) else None
    is_file = name.startswith(":")  # -l:name
    if not is_file and ctypes.util.find_library(name):
        return name
    names = [name[1:]] if is_file else [f"lib{name}.so", f"lib{name}.a"]
    paths = [os.path.join(directory, file_name) for directory in directories for file_name in names]
    return next((path for path in paths if _is_elf(path) or (path.endswith(".a") and os.path.exists(path))), None)


def _is_elf(path: str) -> bool:
    """Return whether a file can be read and is an ELF file. A file with the suffix of a library may be a linker script."""
    with suppress(OSError), open(path, "rb") as file:
        return is_elf(file.read(len(ELF_MAGIC)))
    return False


def _capture_output(unit: Unit, command: list[str], *, stderr: bool = False) -> str:
    """Return what a command prints, or no text if the command cannot be started or takes too long. `stderr` selects standard error."""
    with suppress(OSError, subprocess.TimeoutExpired):
        cwd = unit.directory or None
        completed = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False, cwd=cwd)
        return (completed.stderr if stderr else completed.stdout).decode("utf-8", "surrogateescape")
    return ""


def _find_rust_runtime(unit: Unit, defined: Collection[str]) -> _Runtime:
    """Return the archives of Rust's standard library and of the named crates, and the code of the allocator that they require.

    Raise `LibraryError` if an archive cannot be read.
    """
    flags = [flag for flag in unit.flags if flag.startswith(("--target", "--sysroot"))]
    directory = _capture_output(unit, [unit.compiler.path, *flags, "--print", "target-libdir"]).strip()
    aborts = any("panic=abort" in flag for flag in unit.flags)
    excluded = ("libtest-", "libproc_macro-", "libprofiler_builtins-", "librustc-", "libpanic_unwind-" if aborts else "libpanic_abort-")
    archives = sorted(glob.glob(os.path.join(glob.escape(directory), "*.rlib"))) if directory else []
    paths = tuple(dict.fromkeys([*_find_crates(unit), *(path for path in archives if not os.path.basename(path).startswith(excluded))]))
    standard = next((path for path in paths if os.path.basename(path).startswith("libstd-")), None)
    code = "" if standard is None else _rust_allocator_text(open_archive(standard).symbols, defined)
    return _Runtime((), paths, code)


def _find_crates(unit: Unit) -> list[str]:
    """Return the Rust libraries in the flags ``--extern name=path`` of a unit, and in the directories of the flags ``-L kind=path``."""
    paths: list[str] = []
    for word, following in zip(unit.flags, (*unit.flags[1:], ""), strict=False):
        value = following if word in ("--extern", "-L") else word.removeprefix("--extern=").removeprefix("-L")
        path = os.path.join(unit.directory, value.rpartition("=")[2])
        if word.startswith("--extern") and path.endswith(".rlib"):
            paths.append(os.path.realpath(path))
        elif word.startswith("-L"):
            paths += [os.path.realpath(name) for name in sorted(glob.glob(os.path.join(glob.escape(path), "*.rlib")))]
    return paths


def _rust_allocator_text(symbols: Collection[str], defined: Collection[str]) -> str:
    """Return LLVM assembly of the functions by which Rust's libraries call the default allocator; "" if no symbol requires them.

    Functions in `symbols`, those of the standard library, or in `defined` are left out. The linkage is ``weak_odr``, so several files of a
    group may define the same function.
    """
    match = next(filter(None, map(_RUST_ALLOCATOR.fullmatch, symbols)), None)
    if match is None:
        return ""
    prefix = match["before"] or ""
    defined_symbols = {*symbols, *defined}
    lines = []
    for name, (result, parameters) in _RUST_FUNCTIONS.items():
        public, default = _mangle_rust_name(prefix, f"__rust_{name}"), _mangle_rust_name(prefix, f"__rdl_{name}")
        if default in symbols and public not in defined_symbols:
            lines += _forwarding_function(public, default, result, parameters)
    if not prefix:  # marks of old compilers are variables, those of new compilers are functions
        lines += [f"@{name} = weak_odr hidden constant i8 0" for name in _OLD_RUST_MARKS if name not in defined_symbols]
    else:
        for name in _RUST_MARKS:
            marker = _mangle_rust_name(prefix, name)
            if marker not in defined_symbols:
                result, value = ("i8", "i8 0") if "should_panic" in name else ("void", "void")
                lines += [f"define weak_odr hidden {result} @{marker}() {{", f"  ret {value}", "}"]
    return "\n".join([*lines, ""])


def _forwarding_function(name: str, callee: str, result: str, parameters: str) -> list[str]:
    """Return LLVM assembly of a function that passes its arguments to another function. `result` and `parameters` are LLVM types."""
    arguments = ", ".join(f"{llvm_type} %{number}" for number, llvm_type in enumerate(parameters.split(", ")))
    returns_nothing = result == "void"
    return [
        f"declare {result} @{callee}({parameters})",
        f"define weak_odr hidden {result} @{name}({arguments}) {{",
        f"  {'' if returns_nothing else '%result = '}call {result} @{callee}({arguments})",
        f"  {'ret void' if returns_nothing else f'ret {result} %result'}",
        "}",
    ]


def _mangle_rust_name(prefix: str, name: str) -> str:
    """Return the symbol of a function in the compiler's own crate, in mangling v0 if `prefix` is not empty.

    Mangling v0 puts the length in front of a name, and an underscore between the length and a name that begins with an underscore.
    """
    return f"{prefix}{len(name)}_{name}" if prefix else name
