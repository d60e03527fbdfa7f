"""Converts the LLVM module of a compiled Numba function to a module that can be linked as a shared object.

Numba registers Python's exception classes under the names of CPython's *pointers* to them, so each use becomes a load. Numba's C helpers,
which the dynamic linker does not know, become imports (`HelperSymbol`). A load assigns the environments to their slots.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import binding

from compcache import frontend
from compcache.numba.compilation.libraries import ENVIRONMENT_PREFIX
from compcache.numba.entries.helper_symbols import HelperSymbol
from compcache.numba.entries.named_addresses import ADDRESS_PREFIX, IMPORT_PREFIX, parse_imports
from compcache.numba.entries.recursion import UNRESOLVED, resolve_recursion
from compcache.numba.lazy.c_helpers import helper_address

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

__all__ = ["ADDRESS", "CannotLink", "ImageSource", "load_exception_classes", "make_address_function", "prepare_image"]

ADDRESS = "compcache.numba.address"
_NATIVE_VARIABLES = frozenset(("_Py_NoneStruct",))
#: The name in a function's declaration or definition. It is quoted if it contains special characters.
_NAME = r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)\('
# A newline precedes these lines. A pattern that begins with a text is found ten times faster than one that begins with "^".
_DECLARATION = re.compile(rf"\ndeclare [^@\n]*{_NAME}[^\n]*")
_DEFINITION = re.compile(rf"\ndefine [^@\n]*{_NAME}")
#: The name of a global variable, and the words between the name and the type.
_VARIABLE = re.compile(rf"\n{_NAME[:-2]} = ([^@\n]*?)\b(?:global|constant) ")
_EXTERNAL = frozenset(("external", "extern_weak"))
_DECLARATION_AND_USE = 2
#: A use of an exception class, or a string or quoted name, which contains no uses.
_EXCEPTION = re.compile(r'@(PyExc_\w+)\b|"[^"]*"')
#: A line that uses exception classes, with the newline before it.
_EXCEPTION_USER = re.compile(r"\n(?!@PyExc_)[^\n]*@PyExc_[^\n]*")
_DECLARED_EXCEPTION = re.compile(r"\n@(PyExc_\w+) = external (?:\w+ )*global i8\b.*")


class CannotLink(Exception):  # noqa: N818 - a result, not a failure
    """Raised if a module cannot be linked as a shared object. The message gives the reason."""


class ImageSource(NamedTuple):
    """The code of a shared object.

    Attributes:
        text: the LLVM assembly.
        symbols: the symbols whose addresses the address function returns. The index of a symbol is its number.
        environments: the names of the environment slots.
        globals: the definitions of the imports, by name.
    """

    text: str
    symbols: tuple[str, ...]
    environments: tuple[str, ...]
    globals: dict[str, Any]


def prepare_image(text: str, functions: Iterable[str]) -> ImageSource:
    """Convert the LLVM assembly of a finished Numba library to the source of a shared object.

    `functions` are the functions that the shared object provides. Functions that the code does not define are ignored.

    Raises:
        CannotLink: the code contains an address of this process, refers to a function or variable that a load cannot find, defines a
            thread-local variable, or uses an exception class where a load is impossible.
    """
    if f"@{ADDRESS_PREFIX}" in text or f'@"{ADDRESS_PREFIX}' in text:
        raise CannotLink("the code contains an address that is valid only in this process")
    counts = frontend.symbol_counts(text)
    # The names are read from the text, because asking LLVM for hundreds of declarations takes half of the time to store a function.
    declared = [frontend.unquote_name(name) for name in _DECLARATION.findall(text)]
    unused = {name for name in declared if counts.get(name, 0) < _DECLARATION_AND_USE}
    text = _DECLARATION.sub(lambda match: "" if frontend.unquote_name(match[1]) in unused else match[0], text)
    defined = {frontend.unquote_name(name) for name in _DEFINITION.findall(text)}
    environments = _find_environment_slots(text, defined)
    text = load_exception_classes(resolve_recursion(text, defined))
    used_names = [name for name in declared if name not in unused and not name.startswith("llvm.")]
    symbols = (*[name for name in functions if name in defined], *environments)
    text += make_address_function(symbols)
    variables = [frontend.unquote_name(match[1]) for match in _VARIABLE.finditer(text)] if IMPORT_PREFIX in text else []
    return ImageSource(text, symbols, tuple(environments), {**_find_helper_symbols(used_names), **parse_imports(variables)})


def _find_environment_slots(text: str, defined: Container[str]) -> list[str]:
    """Return the names of the environment slots among the global variables of LLVM assembly that defines these functions.

    Raise `CannotLink` if the code refers to an external variable that no load provides, or defines a thread-local variable.
    """
    environments = []
    for match in _VARIABLE.finditer(text):
        name, words = frontend.unquote_name(match[1]), match[2].split()
        if name.startswith(ENVIRONMENT_PREFIX):
            environments.append(name)
        elif name.removeprefix(UNRESOLVED) in defined:
            continue  # a recursive call, which `resolve_recursion` resolves
        elif not _EXTERNAL.isdisjoint(words) and name not in _NATIVE_VARIABLES and not name.startswith(("PyExc_", IMPORT_PREFIX)):
            raise CannotLink(f"the code refers to the external variable {name!r}, whose address a load cannot find")
        elif any(word.startswith("thread_local") for word in words):
            raise CannotLink(f"the thread-local variable {name!r} cannot be in stored code: use a variable that all threads share")
    return environments


def _find_helper_symbols(declared: Iterable[str]) -> dict[str, HelperSymbol]:
    """Return the definitions of the declared functions that Numba provides, alone or in place of the platform's, by name.

    Raise `CannotLink` if neither Numba nor a library provides one of the functions.
    """
    helpers = {}
    for name in declared:
        provider = frontend.provider_of(name)
        if provider and name.startswith(("Py", "_Py")):
            continue
        if provider == "platform" and not binding.address_of_symbol(name):
            continue  # Numba has not registered a function of its own under this name
        if helper_address(name):
            helpers[name] = HelperSymbol(name)
        elif not provider:
            raise CannotLink(f"the code calls {name!r}, which no library provides under this name")
    return helpers


def make_address_function(symbols: Sequence[str]) -> str:
    """Return the LLVM assembly of a function that maps the number of a symbol to its address, and any other number to null.

    The function also keeps the symbols in the image.
    """
    cases = "\n".join(f"    i64 {number}, label %s{number}" for number in range(len(symbols)))
    blocks = "\n".join(f"s{number}:\n  ret ptr @{frontend.quote_name(name)}" for number, name in enumerate(symbols))
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
    """Return LLVM assembly with each use of `@PyExc_X` replaced by a load from CPython's variable `PyExc_X`.

    Raise `CannotLink` if a constant or a phi instruction uses an exception class, where a load is impossible.
    """
    if not _DECLARED_EXCEPTION.search(text):
        return text
    numbers = itertools.count(1)

    def load(match: re.Match[str]) -> str:
        """Return an instruction that uses exception classes, after the loads of these classes."""
        line = match[0]
        values = {name: f"%compcache.exception.{next(numbers)}" for name in dict.fromkeys(filter(None, _EXCEPTION.findall(line)))}
        if values and (not line.startswith("\n ") or " = phi " in line):  # LLVM indents instructions
            user = "a phi instruction" if line.startswith("\n ") else "a constant"
            raise CannotLink(f"the code uses the exception class {next(iter(values))} in {user}, but only other instructions can load it")
        loads = "".join([f"\n  {value} = load ptr, ptr @{name}, align 8" for name, value in values.items()])
        return loads + _EXCEPTION.sub(lambda user: values.get(user[1], user[0]), line)

    return _EXCEPTION_USER.sub(load, _DECLARED_EXCEPTION.sub(r"\n@\1 = external global ptr", text))
