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

from compcache.clang.bitcode import link_text, symbols_of
from compcache.files import reraise_interrupt
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

__all__ = ["with_runtime"]

_SECONDS = 60.0
#: Libraries of the platform, with which every module is linked.
_ALWAYS = frozenset(("c", "m", "gcc", "gcc_s", "gcc_eh", "pthread", "dl", "rt"))
_SHARED = re.compile(r"\.so(\.\d+)*$")
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


def with_runtime(unit: Unit, code: bytes, given: Mapping[str, Any], symbols: Symbols | None = None) -> tuple[bytes, dict[str, Any]]:
    """Return the code of a unit and the options of its `ModuleSource`, with the compiler's libraries if the code uses their symbols.

    Args:
        unit: the unit.
        code: the unit's bitcode.
        given: the caller's options. Their libraries come first, and symbols in their `imports` and `globals` need no library.
        symbols: the symbols of the code; None reads them from the code.

    Raises:
        CompileError: LLVM rejects the code.
    """
    symbols = symbols or symbols_of(code)
    provided = {*STATIC_RUNTIME, *_as_list(given.get("imports")), *(given.get("globals") or ())}
    if all(name in provided or name.startswith("llvm.") or is_platform_symbol(name) for name in symbols.declared):
        return code, dict(given)
    found = _runtime_of_rust(unit, symbols.defined) if unit.compiler.language == "rust" else _runtime_of_driver(unit)
    own = {"libraries": found.libraries, "archives": found.archives}
    options = {**given, **{name: [*_as_list(given.get(name)), *value] for name, value in own.items() if value}}
    return (link_text(code, found.code) if found.code else code), options


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, os.PathLike)) else list(value or ())


# ---------------------------------------------------------------- clang and flang


def _runtime_of_driver(unit: Unit) -> _Runtime:
    flags = [flag for flag in unit.flags if not flag.startswith("-fsanitize")]
    command = [unit.compiler.path, "-###", "-shared", *flags, "-x", _LANGUAGE[unit.compiler.language], os.devnull, "-o", os.devnull]
    lines = _capture_output(unit, command, errors=True).splitlines()
    words = next((found for line in reversed(lines) if "-shared" in (found := _split_line(line))), [])
    places, found = [], []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-L"):
            places.append(word[2:] or following)
        elif word.startswith("-l") and word[2:] not in _ALWAYS:
            found.append(word[2:])
        elif word.endswith(".a") or _SHARED.search(word):
            found.append(os.path.join(unit.directory, word))
    absolute = [os.path.join(unit.directory, place) for place in places]
    files = [path for path in (_find_library(name, absolute) for name in dict.fromkeys(found)) if path]
    archives = tuple([path for path in files if path.endswith(".a")])
    return _Runtime(tuple([path for path in files if path not in archives]), archives)


def _split_line(line: str) -> list[str]:
    with suppress(ValueError):
        return shlex.split(line)
    return []


def _find_library(name: str, places: Iterable[str]) -> str | None:
    """Return a library in the form of `ModuleSource`: its name if the system finds the library by name, otherwise its path; None if the
    library does not exist.
    """
    if "/" in name:
        return name if os.path.exists(name) else None
    is_file = name.startswith(":")  # -l:name
    if not is_file and ctypes.util.find_library(name):
        return name
    names = [name[1:]] if is_file else [f"lib{name}.so", f"lib{name}.a"]
    paths = [os.path.join(place, each) for place in places for each in names]
    return next((path for path in paths if _is_elf(path) or (path.endswith(".a") and os.path.exists(path))), None)


def _is_elf(path: str) -> bool:
    """Return whether a file is an ELF file. Files with the suffix of a library may be linker scripts."""
    try:
        with open(path, "rb") as file:
            return is_elf(file.read(len(ELF_MAGIC)))
    except OSError as error:
        reraise_interrupt(error)
        return False


def _capture_output(unit: Unit, command: list[str], *, errors: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False, cwd=unit.directory)
    except (OSError, subprocess.TimeoutExpired) as error:
        reraise_interrupt(error)
        return ""
    return (done.stderr if errors else done.stdout).decode("utf-8", "surrogateescape")


# ----------------------------------------------------------------------- Rust


def _runtime_of_rust(unit: Unit, defined: Collection[str]) -> _Runtime:
    flags = [flag for flag in unit.flags if flag.startswith(("--target", "--sysroot"))]
    directory = _capture_output(unit, [unit.compiler.path, *flags, "--print", "target-libdir"]).strip()
    aborts = any("panic=abort" in flag for flag in unit.flags)
    left_out = ("libtest-", "libproc_macro-", "libprofiler_builtins-", "librustc-", "libpanic_unwind-" if aborts else "libpanic_abort-")
    found = sorted(glob.glob(os.path.join(glob.escape(directory), "*.rlib"))) if directory else []
    paths = tuple(dict.fromkeys([*_find_crates(unit), *(path for path in found if not os.path.basename(path).startswith(left_out))]))
    standard = next((path for path in paths if os.path.basename(path).startswith("libstd-")), None)
    code = "" if standard is None else _rust_allocator_text(open_archive(standard).symbols, defined)
    return _Runtime((), paths, code)


def _find_crates(unit: Unit) -> list[str]:
    """Return the Rust libraries in the flags ``--extern name=path`` of a unit, and in the directories of the flags ``-L kind=path``."""
    found: list[str] = []
    for word, following in zip(unit.flags, (*unit.flags[1:], ""), strict=True):
        value = following if word in ("--extern", "-L") else word.removeprefix("--extern=").removeprefix("-L")
        path = os.path.join(unit.directory, value.rpartition("=")[2])
        if word.startswith("--extern") and path.endswith(".rlib"):
            found.append(os.path.realpath(path))
        elif word.startswith("-L"):
            found += [os.path.realpath(name) for name in sorted(glob.glob(os.path.join(glob.escape(path), "*.rlib")))]
    return found


def _rust_allocator_text(symbols: Collection[str], defined: Collection[str]) -> str:
    """Return the functions with which Rust's libraries call the default allocator, except those that the code itself defines.

    The linkage of the functions lets linkers merge them, so that each file of a group may define them.
    """
    match = next(filter(None, map(_RUST_ALLOCATOR.fullmatch, symbols)), None)
    if match is None:
        return ""
    before = match["before"] or ""
    lines = []
    for name, (result, parameters) in _RUST_FUNCTIONS.items():
        public, default = _mangle_rust_name(before, f"__rust_{name}"), _mangle_rust_name(before, f"__rdl_{name}")
        if default in symbols and public not in symbols and public not in defined:
            arguments = ", ".join(f"{kind} %{number}" for number, kind in enumerate(parameters.split(", ")))
            call, back = (f"call {result}", "ret void") if result == "void" else (f"%result = call {result}", f"ret {result} %result")
            lines += [f"declare {result} @{default}({parameters})"]
            body = [f"  {call} @{default}({arguments})", f"  {back}", "}"]
            lines += [f"define weak_odr hidden {result} @{public}({arguments}) {{", *body]
    for name in _RUST_MARKS if before else ():
        if (mark := _mangle_rust_name(before, name)) not in {*symbols, *defined}:
            result, value = ("i8", "i8 0") if "should_panic" in name else ("void", "void")
            lines += [f"define weak_odr hidden {result} @{mark}() {{", f"  ret {value}", "}"]
    lines += [
        f"@{name} = weak_odr hidden constant i8 0" for name in (() if before else _OLD_RUST_MARKS) if name not in {*symbols, *defined}
    ]
    return "\n".join([*lines, ""])


def _mangle_rust_name(before: str, name: str) -> str:
    """Return the name of a function in the compiler's own crate, in mangling v0 if there is a prefix.

    Mangling v0 writes the length before a name, and a separating underscore before a name that begins with an underscore.
    """
    return f"{before}{len(name)}_{name}" if before else name
