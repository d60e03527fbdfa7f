"""Keeps the values that functions read when their code was loaded, so that Numba can compile the functions from these values later.

Without a cache, this process would have compiled the callees of a loaded function, and run the implementations that it uses, before the
values changed. Values of plain types and small arrays are copied. Other objects are only referred to, and count as they are later.
"""

from __future__ import annotations

import sys
from _weakref import ref  # importing `weakref` is slow
from functools import wraps
from types import CellType

from compcache.interrupts import reraise_interrupt
from compcache.numba.registered.code_reads import MISSING, cells_of
from compcache.numba.registered.library import is_library_module, is_made_by_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any

__all__ = ["former_function", "keep_values", "with_present_globals"]

_Function: Any = type(lambda: 0)
_Module = type(sys)
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_MAX_BYTES_OF_ARRAY = 4096
#: How many modules a chain of attributes may pass through, and how many Python functions one function may call.
_MAX_MODULES = 3
_MAX_CALLS = 50


class _Kept:
    """A function's code, and a function for each variable that it reads, which returns the former value or `MISSING`."""

    __slots__ = ("cells", "code", "globals")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.globals: dict[str, Callable[[Any], Any]] = {}
        self.cells: dict[str, Callable[[Any], Any]] = {}


#: What each function read when its code was first recorded. The reference to a function removes its row when the function is gone.
_kept: dict[ref[Any], _Kept] = {}


def keep_values(function: Any, calls: int = _MAX_CALLS) -> None:
    """Keep the values that a Python function and the functions that it refers to read now. Do nothing if they are kept already.

    `calls` is the maximum length of a chain of functions.
    """
    if not calls or type(function) is not _Function or is_made_by_library(function) or ref(function) in _kept:
        return
    kept = _kept[ref(function, _kept.pop)] = _Kept(function.__code__)
    kept.globals = _keep_namespace(function.__globals__, set(_names_in(kept.code)), _MAX_MODULES, calls)
    kept.cells = {name: _keep(value, set(), 0, calls) for name, value in cells_of(function)}


def former_function(function: Any, made: dict[Any, Any] | None = None) -> Any:
    """Return a copy of a function that reads the kept values. Return the function itself if no value has changed or no value is kept.

    `made` are the copies that callers of this function are creating, by their functions.
    """
    kept = _kept.get(ref(function)) if type(function) is _Function else None
    made = {} if made is None else made
    if kept is None or function in made or len(made) > _MAX_CALLS:
        return function if kept is None else made.get(function, function)
    namespace, present = dict(function.__globals__), dict(cells_of(function))
    cells = [CellType() if value is MISSING else CellType(value) for value in present.values()]
    copy = _Function(kept.code, namespace, function.__name__, function.__defaults__, tuple(cells))
    made[function] = copy
    is_changed = kept.code is not function.__code__
    for variables, former in ((namespace, kept.globals), (present, kept.cells)):
        for name, value_of in former.items():
            value = value_of(made)
            if value is not MISSING and not _is_same(value, variables.get(name, MISSING)):
                variables[name], is_changed = value, True
    for cell, value in zip(cells, present.values(), strict=True):
        if value is not MISSING:
            cell.cell_contents = value
    if not is_changed:
        made[function] = function
        return function
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    copy.__dict__.update(function.__dict__)
    return copy


def with_present_globals(copy: Any, function: Any) -> Any:
    """Return a function that calls a copy of a function. Functions that the copy returns read the present globals of the function."""

    def as_now(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(as_now, value))
        if type(value) is not _Function or value.__globals__ is not copy.__globals__:
            return value
        return _Function(value.__code__, function.__globals__, value.__name__, value.__defaults__, value.__closure__)

    return wraps(function)(lambda *args, **kwargs: as_now(copy(*args, **kwargs)))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and its nested code objects."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _names_in(constant)


def _keep_namespace(namespace: dict[str, Any], names: set[str], modules: int, calls: int) -> dict[str, Callable[[Any], Any]]:
    return {name: _keep(namespace[name], names, modules, calls) for name in names & namespace.keys()}


def _keep(value: Any, names: set[str], modules: int, calls: int) -> Callable[[Any], Any]:
    """Return a function that returns the present value later, or `MISSING` if it is gone then.

    `names` are the attributes that may be read from a module. `modules` and `calls` are the maximum numbers of modules and functions in a
    chain.
    """
    cls = type(value)
    if cls in _PLAIN or issubclass(cls, tuple):
        return lambda _: value
    if _is_array(value) and value.nbytes <= _MAX_BYTES_OF_ARRAY:
        copied = value.copy()
        return lambda _: copied
    if cls is _Module and modules and not is_library_module(vars(value).get("__name__")):
        kept = _keep_namespace(vars(value), names, modules - 1, calls)
        return lambda made: _former_module(value, kept, made)
    keep_values(value, calls - 1)
    try:
        reference = ref(value)
    except TypeError as error:
        reraise_interrupt(error)
        return lambda _: MISSING
    return lambda made: MISSING if reference() is None else former_function(reference(), made)


def _former_module(module: Any, kept: dict[str, Callable[[Any], Any]], made: Any) -> Any:
    """Return a copy of a module with its former attributes, or the module itself if no attribute has changed."""
    values = {name: value for name, value_of in kept.items() if (value := value_of(made)) is not MISSING}
    if all(_is_same(value, vars(module).get(name, MISSING)) for name, value in values.items()):
        return module
    copy = _Module(vars(module).get("__name__", ""))
    vars(copy).update(vars(module) | values)
    return copy


def _is_same(former: Any, present: Any) -> bool:
    if former is present:
        return True
    if type(former) is not type(present):
        return False
    return former.tobytes() == present.tobytes() if _is_array(former) else type(former) in _PLAIN and former == present


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or a scalar of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (type(value) is numpy.ndarray or issubclass(type(value), numpy.generic))
