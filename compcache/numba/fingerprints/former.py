"""Keeps the values that functions read when their code was loaded, so that Numba can compile the functions from these values later.

Without a cache, this process would have compiled the callees of a loaded function, and run the implementations that it uses, before the
values changed. Values of plain types, arrays that Numba copies into code, and small containers of plain values are copied, also in tuples.
Other arrays are kept alive, as by Numba, whose code reads their elements at each call. Other objects are referred to weakly; functions,
classes and objects of Numba's classes live as long as the dispatcher of the function that reads them (`keep_objects`). Attributes of the
program's classes and objects are kept, too.
"""

from __future__ import annotations

import marshal
import sys
from _weakref import ref  # importing `weakref` is slow
from types import CellType

from compcache.interrupts import suppress
from compcache.numba.fingerprints.code_digest import names_in_code
from compcache.numba.fingerprints.stand_ins import lazy_of
from compcache.numba.registered import record_copy
from compcache.numba.registered.code_reads import MISSING, cells_of
from compcache.numba.registered.library import is_generator_module, is_library_function, is_library_module
from compcache.numba.registered.marks import original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType
    from typing import Any

    #: Returns a former value, or `MISSING` if the value is gone. The argument has the copies of functions, by the copied functions.
    Former = Callable[[dict[Any, Any]], Any]

__all__ = ["changed_attributes", "former_function", "keep_objects", "keep_values"]

_Function: Any = type(lambda: 0)
_Module = type(sys)
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_CONTAINERS = frozenset((dict, list, set))
#: The size in bytes up to which containers are copied, and the number of attributes up to which unnamed ones are kept.
_MAX_BYTES, _MAX_ITEMS = 4096, 100
#: How many modules, classes and objects a chain of attributes may pass through, and how long a chain of functions may be.
_MAX_DEPTH = 3
_MAX_CALLS = 30
#: The copies of arrays, by the ids of the arrays. Functions that read the same array share a copy.
_copies: dict[int, ref[Any]] = {}


class _KeptValues:
    """What a function read when its code was first recorded. Each value is kept as a function that returns it (`Former`).

    Attributes:
        code: the code of the function.
        names: the names of globals and attributes in the code.
        calls: the maximum length of a chain of functions that starts with the function.
        globals, cells: the values of the variables that the function reads, by name.
        attributes: the attributes of classes and objects that the function, or a function that it calls, may read, by the id of the class
            or object and the name: a reference from `_refer_to` to the class or object, and the value.
        items: how many items of tuples may still be kept one by one. Tuples beyond that are kept as they are.
        references: references from `_refer_to` to the functions, classes and objects of Numba's classes among the values, by their ids.
    """

    __slots__ = ("attributes", "calls", "cells", "code", "globals", "items", "names", "references", "_compcache_kept")

    def __init__(self, code: CodeType, calls: int) -> None:
        self.code = code
        self.names = names_in_code(code)
        self.calls = calls
        self.items = _MAX_ITEMS
        self.globals: dict[str, Former] = {}
        self.cells: dict[str, Former] = {}
        self.attributes: dict[tuple[int, str], tuple[Callable[[], Any], Former]] = {}
        self.references: dict[int, Callable[[], Any]] = {}

    def keep_named(self, namespace: dict[str, Any], depth: int) -> dict[str, Former]:
        """Keep the variables or attributes in a namespace that the function names, and return them by name. See `keep` for `depth`."""
        return {name: self.keep(namespace[name], depth) for name in self.names & namespace.keys()}

    def keep(self, value: Any, depth: int) -> Former:
        """Keep a value, with the variables and attributes that the function may read through it, and return its `Former`.

        Items of containers that are not copied are not kept. `depth` is the number of modules, classes and objects through which a chain
        of attributes may still pass.
        """
        cls = type(value)
        if issubclass(cls, tuple):
            self.items -= tuple.__len__(value)
            if self.items < 0 or all(type(item) in _PLAIN for item in tuple.__iter__(value)):
                return lambda _: value
            items = [self.keep(item, depth) for item in tuple.__iter__(value)]
            return lambda copies: _former_tuple(cls, [item(copies) for item in items])
        copied = _copy_array(value)
        if cls in _PLAIN or _is_array(value):
            return lambda _: copied
        data = _marshalled(value)
        if data is not None:
            return lambda _: marshal.loads(data)  # noqa: S302 - `_marshalled` encoded it
        if cls is _Module and depth and not is_library_module(vars(value).get("__name__")):
            attributes = self.keep_named(vars(value), depth - 1)
            return lambda copies: _former_module(value, attributes, copies)
        self._keep_function(value)
        if depth and cls is not _Module and (cls is not _Function or value.__dict__):
            with suppress(Exception):  # code of the program, such as `__getattribute__`, may raise an exception
                self._keep_attributes(value, depth - 1)
        reference = _refer_to(value)
        if issubclass(cls, (type, _Function)) or is_generator_module(type.__getattribute__(cls, "__module__")):
            self.references[id(value)] = reference
        return lambda copies: MISSING if reference() is None else former_function(reference(), copies)

    def _keep_function(self, value: Any) -> None:
        """Keep the values and attributes that a callee reads. Do nothing if the value is not a Python function."""
        keep_values(value, self.calls - 1)
        kept = _kept_for(value)
        if kept is not None:
            self.attributes.update(kept.attributes)
            self.references.update(kept.references)

    def _keep_attributes(self, value: Any, depth: int) -> None:
        """Keep attributes of a class, or of an object and its classes: those that the function names, and, if there are few, plain values.

        Classes of libraries keep nothing, and neither does an object of such a class if the function names none of its attributes. See
        `keep` for `depth`.
        """
        for owner in value.__mro__ if issubclass(type(value), type) else (value, *type(value).__mro__):
            described = owner if issubclass(type(owner), (type, _Function)) else type(owner)
            if is_library_module(described.__module__) and (described is owner or not self._names_attribute_of(owner)):
                continue
            attributes = _own_attributes(owner)
            for name, item in attributes.items():
                is_kept = name in self.names or (type(item) in _PLAIN and len(attributes) <= _MAX_ITEMS)
                if is_kept and (id(owner), name) not in self.attributes:
                    reference = _refer_to(owner)
                    self.attributes[id(owner), name] = reference, lambda _: MISSING  # the attribute may lead back to the owner
                    self.attributes[id(owner), name] = reference, self.keep(item, depth)

    def _names_attribute_of(self, value: Any) -> bool:
        """Return whether the function names an attribute that an object has itself. Do not call `__getattr__`, which may import Numba."""
        with suppress(AttributeError):
            return not self.names.isdisjoint(object.__getattribute__(value, "__dict__"))
        return False


def _refer_to(value: Any) -> Callable[[], Any]:
    """Return a function that returns an object, or None if the object was freed.

    An object whose class allows no weak references is kept alive. A dictionary, list or set counts as freed.
    """
    with suppress(TypeError):
        return ref(value)
    return (lambda: None) if type(value) in _CONTAINERS else lambda: value


#: What is kept for each function. The reference to a function removes its row when the function is gone.
_kept_values: dict[ref[Any], _KeptValues] = {}


def _kept_for(function: Any) -> _KeptValues | None:
    """Return what is kept for a Python function; None if nothing is kept, or for another object."""
    return _kept_values.get(ref(function)) if type(function) is _Function else None


def keep_values(function: Any, calls: int = _MAX_CALLS) -> None:
    """Keep the values that a function of the program, and the functions that it refers to, read now. Do nothing if they are kept already.

    `calls` is the maximum length of a chain of functions. Other objects are ignored.
    """
    if not calls or type(function) is not _Function or is_library_function(function) or ref(function) in _kept_values:
        return
    kept = _kept_values[ref(function, _kept_values.pop)] = _KeptValues(function.__code__, calls)
    kept.globals = kept.keep_named(function.__globals__, _MAX_DEPTH)
    kept.cells = {name: kept.keep(value, _MAX_DEPTH) for name, value in cells_of(function)}


def keep_objects(function: Any, owners: Iterable[Callable[[], Any]]) -> None:
    """Keep alive the functions, classes and objects of Numba's classes that are kept for a function, as long as its dispatchers.

    `owners` are references to the dispatchers. An implementation has none: the compiler never frees it, nor what is kept for it.
    """
    kept = _kept_for(function)
    for owner in [owner() for owner in owners] or [kept]:
        if owner is not None and kept is not None:
            owner._compcache_kept = [reference() for reference in kept.references.values()]


def former_function(function: Any, copies: dict[Any, Any] | None = None) -> Any:
    """Return a copy of a function with the kept code, which reads the kept values.

    Return the function itself if neither its code nor a value has changed, nothing is kept, or there are more than `_MAX_CALLS` copies.

    `copies` has the copies of functions that refer to this function, by the copied functions. If it has a copy of this function, return
    that copy, otherwise add the new copy. None means that there are no copies yet.
    """
    kept = _kept_for(function)
    copies = {} if copies is None else copies
    if kept is None or function in copies or len(copies) > _MAX_CALLS:
        return function if kept is None else copies.get(function, function)
    namespace, present = dict(function.__globals__), dict(cells_of(function))
    cells = [CellType() if value is MISSING else CellType(value) for value in present.values()]
    copy = _Function(kept.code, namespace, function.__name__, function.__defaults__, tuple(cells))
    copies[function] = copy
    changed_globals, changed_cells = _changed_values(kept.globals, namespace, copies), _changed_values(kept.cells, present, copies)
    namespace |= changed_globals
    for cell, value in zip(cells, (present | changed_cells).values(), strict=True):
        if value is not MISSING:
            cell.cell_contents = value
    if kept.code is function.__code__ and not changed_globals and not changed_cells:
        copies[function] = function
        return function
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    copy.__dict__.update(function.__dict__)
    record_copy(function, copy)
    return copy


def changed_attributes(function: Any, copies: dict[Any, Any]) -> list[tuple[Any, str, Any, Any]]:
    """Return the attributes of classes and objects that have changed since the values that a function reads were kept.

    A row has the class or object, the name, the former value, and the present value. Attributes that are gone are omitted. `copies` are
    those of `former_function`.
    """
    rows = []
    kept = _kept_for(function)
    for (_, name), (reference, value_of) in () if kept is None else kept.attributes.items():
        owner, former = reference(), value_of(copies)
        present = MISSING if owner is None else _own_attributes(owner).get(name, MISSING)
        if former is not MISSING and present is not MISSING and not _is_same(former, present):
            rows.append((owner, name, former, present))
    return rows


def _own_attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes that a class or an object has itself; empty if the program's code raises an exception."""
    with suppress(Exception):
        if issubclass(type(owner), type):
            return dict(vars(owner))
        from compcache.numba.fingerprints.state import state_of  # most starts do not need it

        return state_of(owner)
    return {}


def _changed_values(former: dict[str, Former], present: dict[str, Any], copies: dict[Any, Any]) -> dict[str, Any]:
    """Return the former values that differ from the present ones, by name. Numba's objects have replaced stand-ins in variables."""
    values = {name: value_of(copies) for name, value_of in former.items()}
    pairs = [(name, value, original(value), present.get(name, MISSING)) for name, value in values.items() if value is not MISSING]
    return {name: real for name, value, real, now in pairs if not _is_same(value, now) and not _is_same(real, now)}


def _former_module(module: Any, attributes: dict[str, Former], copies: Any) -> Any:
    """Return a copy of a module with these former attributes, or the module itself if none of them has changed."""
    values = _changed_values(attributes, vars(module), copies)
    if not values:
        return module
    copy = _Module(vars(module).get("__name__", ""))
    vars(copy).update(vars(module) | values)
    return copy


def _former_tuple(cls: type, items: list[Any]) -> Any:
    """Return a tuple of this class with former items, or `MISSING` if one of them is gone."""
    with suppress(TypeError):  # structures like `time.struct_time` are made in C
        return MISSING if any(item is MISSING for item in items) else tuple.__new__(cls, items)
    return MISSING


def _is_same(former: Any, present: Any) -> bool:
    """Return whether a value is unchanged: the same object, also if Numba's has replaced a lazy one, or equal in content.

    Arrays, plain values, tuples, and containers of plain values are compared by content.
    """
    if former is present or (former is not None and lazy_of(present) is former):
        return True
    if type(former) is not type(present):
        return False
    if _is_array(former):  # one that is not copied is another array
        forms = ((array.dtype, array.shape, array.strides, array.flags.writeable, array.tobytes()) for array in (former, present))
        return _is_copied(former) and bool(next(forms) == next(forms))
    if issubclass(type(former), tuple):
        return tuple.__len__(former) == tuple.__len__(present) and all(map(_is_same, tuple.__iter__(former), tuple.__iter__(present)))
    if type(former) in _PLAIN:
        return repr(former) == repr(present)  # 0.0 equals -0.0
    return _marshalled(former) == _marshalled(present) is not None  # both are None for values that are not copied


def _copy_array(value: Any) -> Any:
    """Return a copy of an array that Numba copies into code; any other value itself. Code reads elements of other arrays at each call."""
    if not _is_array(value) or not _is_copied(value):
        return value
    key = id(value)
    shared = _copies.get(key, lambda: None)()
    if shared is not None and _is_same(shared, value):
        return shared
    copied = value.copy("A")
    if copied.strides != value.strides:  # those of axes with one item
        copied = sys.modules["numpy"].lib.stride_tricks.as_strided(copied, strides=value.strides)
    if copied.flags.writeable != value.flags.writeable:
        copied.flags.writeable = value.flags.writeable
    with suppress(TypeError):  # a scalar of NumPy cannot be referred to weakly
        _copies[key] = ref(copied, lambda _: _copies.pop(key, None))
    return copied


def _is_copied(array: Any) -> bool:
    """Return whether Numba copies a global array into code."""
    from compcache.numba.registered.program_arrays import is_copied  # most starts do not need it

    return is_copied(array)


def _marshalled(value: Any) -> bytes | None:
    """Return a copy of a dictionary, a list or a set of plain values, which may be nested, as bytes; None for other or large values."""
    if type(value) not in _CONTAINERS or len(value) > _MAX_BYTES:
        return None
    with suppress(ValueError):
        data = marshal.dumps(value, 2)
        return data if len(data) <= _MAX_BYTES and _contains_plain(value) else None
    return None


def _contains_plain(value: Any) -> bool:
    """Return whether a value is plain, or a container of such values. `marshal` would copy an array or a `bytearray` as bytes."""
    kind = type(value)
    if kind not in _CONTAINERS and kind not in (frozenset, tuple):
        return kind in _PLAIN
    return all(map(_contains_plain, (*value, *value.values()) if kind is dict else value))


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or a scalar of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (type(value) is numpy.ndarray or issubclass(type(value), numpy.generic))
