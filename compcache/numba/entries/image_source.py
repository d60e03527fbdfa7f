"""Converts the LLVM module of a compiled Numba function to a module that can be linked as a shared object.

Numba registers Python's exception classes under the names of CPython's *pointers* to them. LLVM knows the addresses of Numba's C helpers,
but the dynamic linker does not. A load assigns the environments to their slots.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import frontend
from compcache.numba.entries.helper_symbols import HelperSymbol, helper_address
from compcache.numba.entries.named_addresses import NAMED, PREFIX, functions_named
from compcache.numba.entries.recursion import UNRESOLVED, resolve_recursion

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

__all__ = ["ADDRESS", "CannotLink", "ImageSource", "address_function", "load_exception_classes", "prepare_image"]

ADDRESS = "compcache.numba.address"


_NATIVE_VARIABLES = frozenset(("_Py_NoneStruct",))


#: The name in a function's declaration or definition. It is quoted if it contains special characters.
_NAME = r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)\('
_DECLARED = re.compile(rf"^declare [^@\n]*{_NAME}", re.MULTILINE)
_DECLARATION = re.compile(rf"^declare [^@\n]*{_NAME}[^\n]*\n", re.MULTILINE)
_DEFINED = re.compile(rf"^define [^@\n]*{_NAME}", re.MULTILINE)
#: The name of a global variable, and the words between the name and the type.
_VARIABLE = re.compile(rf"^{_NAME[:-2]} = ([^@\n]*?)\b(?:global|constant) ", re.MULTILINE)
_EXTERNAL = frozenset(("external", "extern_weak"))
_DECLARATION_AND_USE = 2
_ENV_PREFIX = "_ZN08NumbaEnv"


_EXCEPTION = re.compile(r"@(PyExc_\w+)\b")


_DECLARED_EXCEPTION = re.compile(r"^@(PyExc_\w+) = external (?:\w+ )*global i8\b.*$", re.MULTILINE)


class CannotLink(Exception):  # noqa: N818 - a result, not a failure
    """Raised if a module cannot be linked as a shared object. The message says why."""


class ImageSource(NamedTuple):
    """The code of a shared object.

    Attributes:
        text: the assembly.
        symbols: the symbols whose addresses the address function returns, by number.
        environments: the names of environment slots.
        globals: the definitions of imports, by name.
    """

    text: str
    symbols: tuple[str, ...]
    environments: tuple[str, ...]
    globals: dict[str, Any]


def prepare_image(text: str, wanted: Iterable[str]) -> ImageSource:
    """Convert the printed code of a finished Numba library for a shared object.

    Args:
        text: the assembly.
        wanted: the functions that the shared object provides, as far as the code defines them.

    Raises:
        CannotLink: the code refers to a symbol that only Numba's own linker can provide.
    """
    if f"@{PREFIX}" in text or f'@"{PREFIX}' in text:
        raise CannotLink("the code contains an address that is valid only in this process")
    counts = frontend.symbol_counts(text)
    # Read from the text: LLVM would need half of the storing time to return the names of hundreds of declarations.
    declared = [frontend.unquote_name(name) for name in _DECLARED.findall(text)]
    unused = {name for name in declared if counts.get(name, 0) < _DECLARATION_AND_USE}
    text = _DECLARATION.sub(lambda line: "" if frontend.unquote_name(line[1]) in unused else line[0], text)
    defined = {frontend.unquote_name(name) for name in _DEFINED.findall(text)}
    environments = _find_environment_slots(text, defined)
    text = load_exception_classes(resolve_recursion(text, defined))
    used = [name for name in declared if name not in unused and not name.startswith("llvm.")]
    symbols = (*[name for name in wanted if name in defined], *environments)
    text += address_function(symbols)
    named = functions_named([frontend.unquote_name(match[1]) for match in _VARIABLE.finditer(text)] if NAMED in text else ())
    return ImageSource(text, symbols, tuple(environments), {**_helper_symbols(used), **named})


def _find_environment_slots(text: str, defined: Container[str]) -> list[str]:
    """Return the environment slots among the global variables of code.

    Raises:
        CannotLink: the dynamic linker cannot provide a variable.
    """
    environments = []
    for match in _VARIABLE.finditer(text):
        name, words = frontend.unquote_name(match[1]), match[2].split()
        if name.startswith(_ENV_PREFIX):
            environments.append(name)
        elif name.removeprefix(UNRESOLVED) in defined:
            continue  # a recursive call, which `resolve_recursion` resolves
        elif not _EXTERNAL.isdisjoint(words) and name not in _NATIVE_VARIABLES and not name.startswith(("PyExc_", NAMED)):
            raise CannotLink(f"the code refers to the external variable {name!r}")
        elif any(word.startswith("thread_local") for word in words):
            raise CannotLink(f"the code defines the thread-local variable {name!r}")
    return environments


def _helper_symbols(declared: Iterable[str]) -> dict[str, HelperSymbol]:
    """Return the definitions of functions that the dynamic linker cannot provide, by name.

    Raises:
        CannotLink: neither Numba nor a library provides a function.
    """
    from llvmlite import binding

    helpers = {}
    for name in declared:
        provider = frontend.provider_of(name)
        if provider and name.startswith(("Py", "_Py")):
            continue
        if provider == "platform" and not binding.address_of_symbol(name):
            continue
        if helper_address(name):
            helpers[name] = HelperSymbol(name)
        elif not provider:
            raise CannotLink(f"the code calls {name!r}, which no library provides under this name")
    return helpers


def address_function(symbols: Sequence[str]) -> str:
    """Return the assembly of a function that returns the address of a symbol by number, and keeps all these symbols in the image."""
    cases = "\n".join(f"    i64 {n}, label %s{n}" for n in range(len(symbols)))
    blocks = "\n".join(f"s{n}:\n  ret ptr @{frontend.quote_name(name)}" for n, name in enumerate(symbols))
    return f"""
define ptr @{ADDRESS}(i64 %number) {{
  switch i64 %number, label %none [
{cases}
  ]
none:
  ret ptr null
{blocks}
}}
"""


def load_exception_classes(text: str) -> str:
    """Return the IR with each use of `@PyExc_X` replaced by a load from CPython's variable `PyExc_X`.

    Raises:
        CannotLink: an exception class is used in a constant, where a load is not possible.
    """
    if not _DECLARED_EXCEPTION.search(text):
        return text
    text = _DECLARED_EXCEPTION.sub(r"@\1 = external global ptr", text)
    lines: list[str] = []
    number = 0
    inside = False
    for line in text.split("\n"):
        inside = line.startswith("define ") or (inside and line != "}")
        changed = line
        for name in _exceptions_in(line):
            if not inside or " = phi " in line:
                raise CannotLink(f"the code uses the exception class {name} in a constant")
            number += 1
            value = f"%compcache.exception.{number}"
            lines.append(f"  {value} = load ptr, ptr @{name}, align 8")
            changed = re.sub(rf"@{name}\b", value, changed)
        lines.append(changed)
    return "\n".join(lines)


def _exceptions_in(line: str) -> list[str]:
    if "@PyExc_" not in line or line.startswith("@PyExc_"):
        return []
    return list(dict.fromkeys(_EXCEPTION.findall(line)))
