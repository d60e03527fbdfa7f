"""Digests the code of libraries that running code uses.

The versions of libraries determine their functions. But a program may replace the code or the defaults of such a function, or functions
that it calls.
"""

from __future__ import annotations

import functools
import types

from compcache.digest import blake2b
from compcache.numba.fingerprints.code_digest import digest_and_reads
from compcache.numba.registered.code_reads import MISSING, resolve
from compcache.numba.registered.library import has_own_code
from compcache.numba.registered.reviewed import CODE_GENERATORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["digest_of_code"]

_PLAIN = (bool, int, float, str, bytes, type(None))
_WRITTEN_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_Functions = (types.FunctionType, types.MethodType, functools.partial, type)


def digest_of_code(value: Any) -> bytes:
    """Return a digest of all Python code to which an object of a library refers; empty if the object refers to no Python code.

    Functions of code generators refer to thousands of other functions. Therefore they are not followed, and their code is digested only if
    it comes from another module.
    """
    seen = {id(value): value}
    waiting = [value]
    rows = []
    while waiting:
        item = waiting.pop()
        if isinstance(item, types.FunctionType):
            if _is_of_generators(item.__globals__.get("__name__")):
                if not has_own_code(item):
                    rows.append(_function_row(item))
                continue
            rows.append(_function_row(item))
        for used in _objects_used_by(item):
            if id(used) not in seen:
                seen[id(used)] = used
                waiting.append(used)
    return blake2b(repr(sorted(rows)).encode("utf-8", "surrogatepass"), digest_size=16).digest() if rows else b""


def _is_of_generators(module: Any) -> bool:
    """Return whether a module, given by its name, belongs to a library that generates code."""
    return str(module).partition(".")[0] in CODE_GENERATORS


def _function_row(function: Any) -> tuple[str, str, str, str]:
    """Return the module, the name, the digest of the code, and the defaults of a function."""
    by_keyword = sorted((function.__kwdefaults__ or {}).items())
    defaults = _default_text((function.__defaults__ or (), tuple(by_keyword)))
    return str(function.__module__), function.__code__.co_qualname, digest_and_reads(function.__code__)[0].hex(), defaults


def _default_text(value: Any) -> str:
    """Return the text of a default value. A value other than a plain one is represented by its class."""
    if type(value) is tuple:
        return f"({', '.join(map(_default_text, value))})"
    return repr(value) if type(value) in _PLAIN else type(value).__qualname__


def _objects_used_by(value: Any) -> Iterator[Any]:
    """Yield the functions, classes and callable objects that an object of a library uses."""
    if isinstance(value, types.FunctionType):
        yield from _globals_of(value.__code__, value.__globals__)
        yield from filter(_is_followed, value.__defaults__ or ())
        for cell in value.__closure__ or ():
            try:
                value_of_cell = cell.cell_contents
            except ValueError:
                continue
            if _is_followed(value_of_cell):
                yield value_of_cell
    elif isinstance(value, type):
        if not _is_of_generators(value.__module__):
            yield from [function for base in value.__mro__ for item in vars(base).values() for function in _functions_in_member(item)]
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, type(value.__self__))
    elif isinstance(value, functools.partial):
        yield value.func
    elif not isinstance(value, _WRITTEN_IN_C):
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "_implementation", None)
        yield wrapped if isinstance(wrapped, types.FunctionType) else type(value)


def _functions_in_member(item: Any) -> Iterator[Any]:
    """Yield the functions in a member of a class."""
    inner = (item.fget, item.fset) if isinstance(item, property) else (getattr(item, "__func__", getattr(item, "func", item)),)
    yield from [function for function in inner if isinstance(function, types.FunctionType)]


def _globals_of(code: types.CodeType, namespace: dict[str, Any]) -> Iterator[Any]:
    """Yield the globals to which the attribute chains in a code object and its nested code objects refer."""
    for chain in digest_and_reads(code)[1].chains:
        value, _ = resolve(chain, namespace)
        if value is not MISSING and _is_followed(value):
            yield value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant, namespace)


def _is_followed(value: Any) -> bool:
    """Return whether an object may refer to code. Containers, in which programs and modules register functions, are not followed."""
    return isinstance(value, _Functions) or hasattr(value, "__wrapped__") or hasattr(value, "_implementation")
