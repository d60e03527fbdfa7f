"""Decides which functions and classes of libraries always return the same result for the same arguments.

The results of such pure functions follow from the versions of the libraries. Any object that is not known to be pure is refused. A function
that is written in Python is pure if all objects that it can reach are pure. The globals and attributes that its code names are examined in
turn, down to objects that were reviewed by hand (`reviewed`), which include all objects that are written in C. So the answer holds for the
installed versions, whichever they are. Attributes of objects that the function does not create are not followed. These objects are
arguments, and the code that passes them is examined too.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from contextvars import ContextVar
from opcode import opmap

from compcache.numba.registered.code_reads import MISSING, cells_of, functions_in_member, is_part_of_hash, names_used_by, reads_of, resolve
from compcache.numba.registered.library import CODE_GENERATORS, is_generator_module, is_library_module, module_name_of, qualified_name_of
from compcache.numba.registered.reviewed import EXTERNAL_STATE, NAMESPACE_ATTRIBUTES, PROCESS_FUNCTIONS, REVIEWED_MODULES, REVIEWED_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["counts_as_pure", "external_state_of", "is_external_state", "reads_external_state"]

_MAX_VALUES = 2000
_STORES = frozenset(opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))
_DESCRIPTORS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), type(Ellipsis), type(NotImplemented))
_STATES = (ContextVar, threading.local)
_CONTAINERS = (tuple, list, set, frozenset, dict, types.MappingProxyType)
#: The answers for objects, by their id. The objects are kept alive, so that no other object gets the id.
_answers: dict[int, tuple[Any, str]] = {}
#: The globals that functions of a module assign. They are state, which does not follow from the version.
_assigned_globals: dict[str, frozenset[str]] = {}


def external_state_of(value: Any) -> str:
    """Return the description of external state that a library's object reads: a value that does not follow from its arguments.

    The description is "" if the object is known to read no external state. More than `_MAX_VALUES` objects that it can reach count as
    external state.
    """
    known_value, known_state = _answers.get(id(value), (None, ""))
    if known_value is value:
        return known_state
    examined: dict[int, tuple[Any, str]] = {id(value): (value, "")}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        known_item, known_state = _answers.get(id(item), (None, ""))
        reason = known_state if known_item is item else _find_external_state(item, examined, waiting)
        if not reason and len(examined) > _MAX_VALUES:
            reason = f"more than {_MAX_VALUES} values, one of them {_full_name(item)}"
        if reason:
            _answers[id(value)] = value, reason
            return reason
    _answers.update(examined)
    return ""


def _find_external_state(item: Any, examined: dict[int, tuple[Any, str]], waiting: list[Any]) -> str:
    """Return a description of external state that the object itself reads, or "" if it reads none. Queue the objects to which it refers."""
    try:
        for read in _referenced_objects(item):
            if id(read) not in examined:
                examined[id(read)] = read, ""
                waiting.append(read)
    except _ExternalStateError as error:
        return str(error)
    return ""


class _ExternalStateError(Exception):
    """Raised if an object reads external state. The message describes this state."""


def _full_name(value: Any) -> str:
    """Return the full name of an object. An object without a name gets the full name of its class."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    name = qualified_name_of(value)
    return f"{type(value).__module__}.{type(value).__qualname__}" if name is None else f"{module_name_of(value) or ''}.{name}"


def counts_as_pure(module: str, name: str) -> bool:
    """Return whether an object in a module counts as pure without an examination. With the name "", the answer is for the module itself.

    Reviewed objects count as pure, and all objects in modules of libraries that generate code, unless the module reads external state.
    """
    top = name.partition(".")[0]
    module = module.replace("numpy.core.", "numpy._core.")  # the name in NumPy 1
    exceptions = REVIEWED_MODULES.get(module)
    if exceptions is not None:
        return top not in exceptions.split()
    if top in REVIEWED_NAMES.get(module, "").split():
        return True
    return is_generator_module(module) and not reads_external_state(module)


def reads_external_state(name: str) -> bool:
    """Return whether a module or an object of a code generator reads the process, the host or files. `name` is its full name."""
    top, *parts = name.split(".")
    excluded = CODE_GENERATORS.get(top, ())
    return any(f"{name}.".startswith(f"{other}.") for other in excluded) or (bool(excluded) and not PROCESS_FUNCTIONS.isdisjoint(parts))


def _referenced_objects(value: Any) -> Iterator[Any]:  # noqa: C901 - one branch for each kind of object
    """Yield the objects to which an object refers, or a container's callables. Raise `_ExternalStateError` if it reads external state."""
    if isinstance(value, types.FunctionType):
        yield from _objects_read_by_function(value)
    elif isinstance(value, type):
        yield from _objects_read_by_class(value)
    elif isinstance(value, types.ModuleType):
        if not counts_as_pure(value.__name__, ""):
            raise _ExternalStateError(f"the module {value.__name__}")
    elif isinstance(value, _DESCRIPTORS):
        yield from _owner_of_c_function(value)
    elif isinstance(value, types.MethodType):
        yield value.__func__
        yield type(value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, _CONTAINERS):
        yield from [item for item in (*value.values(),) if callable(item)] if hasattr(value, "values") else filter(callable, value)
    elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType) and callable(value):
        yield value.__wrapped__
    elif callable(getattr(value, "_implementation", None)):  # a NumPy function that the class of an argument may override
        yield value._implementation
    elif isinstance(value, _STATES):
        is_variable = isinstance(value, ContextVar)
        raise _ExternalStateError(f"the context variable {value.name!r}" if is_variable else f"thread-local data ({_full_name(value)})")
    elif not isinstance(value, _PLAIN_TYPES):
        yield type(value)


def _owner_of_c_function(value: Any) -> Iterator[Any]:
    """Yield the class of a method that is written in C. Raise `_ExternalStateError` for a function that does not count as pure."""
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        if not counts_as_pure(module_name_of(value) or "", value.__name__):
            raise _ExternalStateError(_full_name(value))
    else:
        yield owner if isinstance(owner, type) else type(owner)


def _objects_read_by_class(cls: type) -> Iterator[Any]:
    """Yield the metaclass of a class, unless it is `type`, and the functions in the members of the class and its bases.

    Classes that count as pure, and exceptions without an `__init__`, are skipped. Another class in C raises `_ExternalStateError`.
    """
    if type(cls) is not type:
        yield type(cls)
    for base in cls.__mro__:
        is_plain_error = issubclass(base, BaseException) and base.__module__ != "builtins" and "__init__" not in vars(base)
        if base is not object and not counts_as_pure(base.__module__, base.__qualname__) and not is_plain_error:
            for item in vars(base).values():
                if isinstance(item, _DESCRIPTORS) and getattr(item, "__name__", "") != "__new__":
                    raise _ExternalStateError(_full_name(base))  # the class is written in C
                yield from functions_in_member(item)


def _objects_read_by_function(function: Any) -> Iterator[Any]:
    """Yield the callable defaults of a function, and the objects to which its closure and code refer.

    Yield nothing for functions that count as pure, and for the `__new__` of named tuples. Raise `_ExternalStateError` if the function is
    not a library's, or reads external state.
    """
    namespace = function.__globals__
    module = namespace.get("__name__")
    if counts_as_pure(function.__module__, function.__qualname__) and is_library_module(function.__module__):
        return
    if str(module).startswith("namedtuple_"):  # the `__new__` of named tuples has its own namespace
        return
    if not is_library_module(module) or reads_external_state(str(module)):
        raise _ExternalStateError(_full_name(function))
    yield from filter(callable, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    yield from [value for _, value in cells_of(function) if value is not MISSING]
    yield from _objects_read_by_code(function.__code__, namespace, _globals_assigned_in(str(module)), _full_name(function))


def _objects_read_by_code(code: types.CodeType, namespace: dict[str, Any], state: frozenset[str], name: str) -> Iterator[Any]:
    """Yield the objects that a code object and its nested code objects read.

    `state` contains the globals that functions of the module assign. `name` describes the function. Raise `_ExternalStateError` if the code
    reads external state, a global in `state` or an attribute of `NAMESPACE_ATTRIBUTES`, or imports a module that is neither imported nor
    reviewed.
    """
    reads = reads_of(code)
    namespaces = NAMESPACE_ATTRIBUTES.intersection(reads.attributes)
    if namespaces:
        raise _ExternalStateError(f"the attribute {min(namespaces)!r}, which {name} reads")
    for chain in reads.chains:
        if chain[0] in state:
            raise _ExternalStateError(f"the global {chain[0]!r} of {name}, which functions of its module assign")
        value, at = resolve(chain, namespace)
        if value is not MISSING and not is_part_of_hash(code, value):
            if is_external_state(value):
                raise _ExternalStateError(".".join(chain[:at]))
            yield value
    for imported in reads.imports:
        module = sys.modules.get(imported) or sys.modules.get(f"{namespace.get('__package__')}.{imported}")
        if module is None and imported not in REVIEWED_MODULES:
            raise _ExternalStateError(f"the module {imported}, which {name} imports")
        attributes = {} if module is None else vars(module)
        yield from [attributes[attribute] for attribute in reads.attributes if attribute in attributes]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _objects_read_by_code(constant, namespace, state, name)


def is_external_state(value: Any) -> bool:
    """Return whether a value is one of those in `EXTERNAL_STATE`, which represent state outside of the program's code."""
    return value is not None and any(getattr(sys.modules.get(module), name, None) is value for module, _, name in _PLACES_OF_STATE)


_PLACES_OF_STATE = [name.rpartition(".") for name in EXTERNAL_STATE]


def _globals_assigned_in(module: str) -> frozenset[str]:
    """Return the globals that functions of a module, including its classes' methods, assign or delete."""
    names = _assigned_globals.get(module)
    if names is None:
        members = list(vars(sys.modules[module]).values())
        inner = [item for cls in members if isinstance(cls, type) and cls.__module__ == module for item in vars(cls).values()]
        codes = [item.__code__ for item in [*members, *inner] if isinstance(item, types.FunctionType)]
        names = _assigned_globals[module] = frozenset(name for code in codes for name in names_used_by(code, _STORES))
    return names
