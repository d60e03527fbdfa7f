"""Digests code objects: instructions, names and constants, without line numbers. Compares the default values of functions."""

from __future__ import annotations

import types as python_types
from _weakref import ref
from marshal import dumps

from compcache.digest import blake2b
from compcache.numba.registered.code_reads import Reads, reads_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

__all__ = [
    "bits_of", "code_and_nested", "defaults_of", "digest_and_reads", "names_in_code", "plain_name", "replaced_defaults_reason",
    "reported_file",
]  # fmt: skip

_SIZE = 16
#: A flag of all functions. When Numba calls a function under a profiler, it removes the flag from the code object.
_OPTIMIZED = 1
#: A weak reference to each code object, its digest and its reads, by id, because different code objects may compare equal.
_codes: dict[int, tuple[Any, bytes, Reads]] = {}


def code_and_nested(code: python_types.CodeType) -> Iterator[python_types.CodeType]:
    """Yield a code object, and the code objects in it: of functions, classes and comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            yield from code_and_nested(constant)


def names_in_code(code: python_types.CodeType) -> set[str]:
    """Return the global names and the attributes that a code object and its nested code objects name."""
    return {name for part in code_and_nested(code) for name in part.co_names}


def digest_and_reads(code: python_types.CodeType) -> tuple[bytes, Reads]:
    """Return the digest of a code object with its nested code objects, and its own reads. Both are stored while the code object lives."""
    row = _codes.get(id(code))
    if row is not None:
        known_code, known_digest, known_reads = row
        if known_code() is code:  # otherwise an object that no longer lives had this id
            return known_digest, known_reads
    state = blake2b(digest_size=_SIZE)
    _feed_code(state, code)
    reads = reads_of(code)
    key = id(code)

    def remove_row(dead: Any) -> None:
        """Remove the row of a code object that no longer exists, unless another object with its id has the row."""
        entry = _codes.get(key)
        if entry is not None and entry[0] is dead:
            del _codes[key]

    _codes[key] = ref(code, remove_row), state.digest(), reads
    return state.digest(), reads


def _feed_code(state: Any, code: python_types.CodeType) -> None:
    """Feed a code object: its name, parameters, flags, variables, instructions, exception handlers and constants."""
    name = plain_name(code.co_name)
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags | _OPTIMIZED)
    names = (name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    head = repr((numbers, names)).encode("utf-8", "surrogatepass")
    parts = (head, code.co_code, getattr(code, "co_exceptiontable", b""))
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    for constant in code.co_consts:
        _feed_constant(state, constant)
    state.update(b"end")


def _feed_constant(state: Any, constant: Any) -> None:
    """Feed a constant. Equal constants of different types (1, 1.0, True) or signs (-0.0) give different digests."""
    if isinstance(constant, python_types.CodeType):
        state.update(b"code")
        state.update(digest_and_reads(constant)[0])
    elif isinstance(constant, (tuple, frozenset)):
        state.update(f"{type(constant).__name__}{len(constant)}".encode())
        items: Iterable[Any] = constant
        if isinstance(constant, frozenset):
            items = sorted(constant, key=lambda item: (type(item).__name__, repr(item)))
        for item in items:
            _feed_constant(state, item)
    elif isinstance(constant, (float, complex)):
        state.update(type(constant).__name__.encode() + bits_of(constant))
    else:
        text = f"{type(constant).__name__}:{constant!r}".encode("utf-8", "surrogatepass")
        state.update(len(text).to_bytes(8, "little"))
        state.update(text)


def bits_of(value: complex) -> bytes:
    """Return a floating-point or complex number as bytes with all its bits. A text would lose the sign of a NaN."""
    return dumps(value, 2)  # version 2 writes floating-point numbers in binary form


def plain_name(name: str) -> str:
    """Return the name of a function without the address that Numba adds to names of array expressions."""
    if "0x" not in name:
        return name
    import re

    return re.sub("(__numba_array_expr)_*0x[0-9a-f]+", r"\1", name)


def reported_file(code: python_types.CodeType, namespace: dict[str, Any]) -> str:
    """Return the file that tracebacks name if it is the file of the code's module, or "".

    Code from text, such as a notebook's cell, has a file name with the number of a process or cell, which no other process has.
    """
    return code.co_filename if namespace.get("__file__") == code.co_filename else ""


def defaults_of(function: Any) -> dict[str, Any]:
    """Return the present default values of the parameters of a Python function, by their names."""
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {**dict(zip(names[len(names) - len(values) :], values, strict=False)), **(function.__kwdefaults__ or {})}


def replaced_defaults_reason(function: Any, declared: dict[str, Any]) -> str:
    """Return why a function has no key if its default values are no longer the `declared` objects, given by parameter; otherwise ""."""
    present = defaults_of(function)
    if present.keys() == declared.keys() and all(present[name] is value for name, value in declared.items()):
        return ""
    return f"the default values of {function.__qualname__} were replaced after its declaration: declare the function again"
