"""Digests the code of libraries that running code uses.

The versions of libraries determine their functions. But a program may replace the code or the defaults of such a function, or functions
that it calls.
"""

from __future__ import annotations

import functools
import os
import sys
import types

from compcache.digest import blake2b
from compcache.numba.fingerprints.code_digest import code_and_nested, digest_and_reads
from compcache.numba.registered.code_reads import MISSING, cells_of, functions_in_member, resolve
from compcache.numba.registered.library import has_own_code, is_generator_module, is_library_module, is_made_by_library
from compcache.numba.registered.reviewed import DIFFERING_VALUES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

__all__ = ["digest_library_code"]

_PLAIN = (bool, int, float, str, bytes, type(None))
_CONSTANT = (*_PLAIN, tuple, list)
_WRITTEN_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_Functions = (types.FunctionType, types.MethodType, functools.partial, type)


def digest_library_code(value: Any) -> tuple[bytes, list[Any]]:
    """Return a digest of the Python code to which an object of a library refers, and the objects of the program to which it refers.

    The digest is empty if the object refers to no Python code. The content of the program's objects, which replace functions and classes of
    the library, is not part of the digest.
    """
    reached = {id(value): value}  # keeps the objects alive, so that no id is reused
    waiting = [value]
    rows, replacements = [], []
    while waiting:
        item = waiting.pop()
        if item is not value and _is_of_program(item):
            replacements.append(item)
            continue
        row, used_values = _row_and_used_values(item)
        rows += [row] if row is not None else []
        new = {id(other): other for other in used_values if id(other) not in reached and _is_followed(other)}
        reached |= new
        waiting += new.values()
    digest = blake2b(repr(sorted(rows)).encode("utf-8", "surrogatepass"), digest_size=16).digest() if rows else b""
    return digest, replacements


def _row_and_used_values(value: Any) -> tuple[tuple[str, ...] | None, list[Any]]:
    """Return the row of a function (None for any other object), and the values that the object uses.

    Functions of libraries that generate code refer to thousands of others. Therefore they use nothing here, and have a row only if their
    code comes from another module.
    """
    if not isinstance(value, types.FunctionType):
        return None, list(_objects_used_by(value))
    if is_generator_module(value.__globals__.get("__name__")):
        return None if has_own_code(value) else _function_row(value, ()), []
    read = list(_values_read_by(value))
    return _function_row(value, read), [item for _, item in read]


def _is_of_program(value: Any) -> bool:
    """Return whether a function, a class, or the class of another object belongs to the program.

    Objects of installed packages do not, because packages such as `typing_extensions` replace functions of `typing`. Functions nested in
    functions of packages do. The `__new__` of a named tuple, which has a namespace of its own, does not.
    """
    if isinstance(value, types.FunctionType):
        name = str(value.__globals__.get("__name__"))
        is_installed = "<locals>" not in value.__code__.co_qualname and _is_installed(name)
        return not (is_installed or name.startswith("namedtuple_") or is_made_by_library(value))
    module = (value if isinstance(value, type) else type(value)).__module__
    return not (is_library_module(module) or _is_installed(module))


def _is_installed(module: Any) -> bool:
    """Return whether a module, given by its name, comes from a directory of installed packages."""
    return "-packages" in str(getattr(sys.modules.get(module), "__file__", None))  # part of `site-packages` and `dist-packages`


def _function_row(function: Any, used: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the module, the name, the digest of the code and the defaults of a function, and the texts of values among `used`.

    These are its plain values, tuples and lists, without `DIFFERING_VALUES`. Texts with a path separator are omitted, as paths may differ.
    """
    by_keyword = sorted((function.__kwdefaults__ or {}).items())
    defaults = _text_of((function.__defaults__ or (), tuple(by_keyword)))
    module, name = str(function.__module__), function.__code__.co_qualname
    texts = {f"{read}={_text_of(value)}" for read, value in used if type(value) in _CONSTANT and f"{module}.{read}" not in DIFFERING_VALUES}
    constants = sorted(text for text in texts if os.sep not in text)
    return module, name, digest_and_reads(function.__code__)[0].hex(), defaults, *constants


def _text_of(value: Any) -> str:
    """Return the text of a value. A value other than a plain one is represented by its class."""
    if type(value) in (tuple, list):
        return f"({', '.join(map(_text_of, value))})"
    return repr(value) if type(value) in _PLAIN else type(value).__qualname__


def _values_read_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield values that a function can read, with their names: globals, defaults that are not plain (named ""), and cells.

    `_function_row` has the text of all defaults.
    """
    yield from _globals_of(function.__code__, function.__globals__)
    defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    yield from [("", value) for value in defaults if type(value) not in _PLAIN]
    yield from [row for row in cells_of(function) if row[1] is not MISSING]


def _objects_used_by(value: Any) -> Iterator[Any]:
    """Yield the functions and classes that an object of a library, other than a function, uses."""
    if isinstance(value, type):
        if not is_generator_module(value.__module__):
            functions = [part for base in value.__mro__ for item in vars(base).values() for part in functions_in_member(item)]
            yield from [function for function in functions if isinstance(function, types.FunctionType)]
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, type(value.__self__))
    elif isinstance(value, functools.partial):
        yield value.func
    elif not isinstance(value, _WRITTEN_IN_C):
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "_implementation", None)
        yield wrapped if isinstance(wrapped, types.FunctionType) else type(value)


def _globals_of(code: types.CodeType, namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals to which the attribute chains in a code object and its nested code objects refer, with their names."""
    for chain in [chain for part in code_and_nested(code) for chain in digest_and_reads(part)[1].chains]:
        value, at = resolve(chain, namespace)
        if value is not MISSING:
            yield ".".join(chain[:at]), value


def _is_followed(value: Any) -> bool:
    """Return whether an object may refer to code, or belongs to the program. Containers, which may be registries, do not count."""
    is_function = isinstance(value, _Functions) or hasattr(value, "__wrapped__") or hasattr(value, "_implementation")
    return is_function or _is_of_program(value)
