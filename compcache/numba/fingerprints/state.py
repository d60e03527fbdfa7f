"""Reads the state of objects and functions."""

from __future__ import annotations

import gc
import sys
import types as python_types

from compcache.numba.registered.code_reads import MISSING
from compcache.numba.registered.library import is_library_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = [
    "annotates",
    "attributes_of_wrapper",
    "has_state_in_c",
    "kept_results",
    "names_told",
    "registered_with",
    "settings_of_numpy",
    "state_of",
]

#: Classes written in C whose whole content the walk feeds itself.
_FED = frozenset((object, dict, list, tuple, set, frozenset, str, bytes, int, float, complex))
#: What objects that are pickled by their names hold (type variables, new types, aliases).
_OF_NAMED = ("__bound__", "__constraints__", "__covariant__", "__contravariant__", "__default__", "__supertype__", "__value__")
#: The settings of NumPy that a process begins with.
_NUMPYS = {
    "divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn", "edgeitems": 3, "threshold": 1000, "floatmode": "maxprec",
    "precision": 8, "suppress": False, "linewidth": 75, "nanstr": "nan", "infstr": "inf", "sign": "-", "formatter": None, "legacy": False,
    "override_repr": None,
}  # fmt: skip


def state_of(value: Any) -> dict[str, Any]:
    """Return the instance attributes of an object, including those in slots."""
    state = {}
    for cls in reversed(type(value).__mro__):
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, python_types.MemberDescriptorType) and not is_library_module(cls.__module__):
                found = getattr(value, name, MISSING)
                if found is not MISSING:
                    state[name] = found
    return {**state, **getattr(value, "__dict__", {})}


def annotates(function: python_types.FunctionType) -> bool:
    """Return whether a function has annotations, without evaluating them."""
    return getattr(function, "__annotate__", None) is not None if sys.version_info >= (3, 14) else bool(function.__annotations__)


def has_state_in_c(kind: type) -> bool:
    """Return whether a class derives from one written in C that keeps state which no attribute shows: a deque, an array of ctypes."""
    return any(base not in _FED and not _is_written_in_python(base) for base in kind.__mro__)


def _is_written_in_python(cls: type) -> bool:
    if not is_library_module(cls.__module__) and type(cls) is type:
        return True
    members = vars(cls)
    return "__slots__" in members or "__dict__" in members or any(isinstance(item, python_types.FunctionType) for item in members.values())


def kept_results(wrapper: Any) -> list[tuple[Any, Any]] | None:
    """Return the arguments and results that a `functools.lru_cache` wrapper keeps, the oldest first; None if they cannot be read.

    They are found as the garbage collector finds them. An unbounded cache is a dictionary; a bounded one links its items.
    """
    size = wrapper.cache_info().currsize
    if not size:
        return []
    found = [item for item in gc.get_referents(wrapper) if item is not wrapper.__wrapped__ and item is not vars(wrapper)]
    tables = [item for item in found if type(item) is dict and len(item) == size]
    if len(tables) != 1:
        return None
    table = tables[0]
    if not any(type(item).__name__ == "_lru_list_elem" for item in table.values()):
        return [(_without_marks(key), item) for key, item in table.items()]
    first = 1 if found[0] is type(wrapper) else 0
    step = 3 if getattr(found[first + 2], "__name__", "") == "_lru_list_elem" else 2
    pairs = [(found[first + step * number], found[first + step * number + 1]) for number in range(size)]
    return [(_without_marks(key), item) for key, item in pairs] if all(key in table for key, _ in pairs) else None


def _without_marks(key: Any) -> Any:
    """Return the key of a result without the object that separates keyword arguments, which is the process's."""
    return tuple(["=" if type(item) is object else item for item in key]) if isinstance(key, tuple) else key


def attributes_of_wrapper(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what was set on a wrapper or a partial function, without what says which function it wraps."""
    yield from [(name, item) for name, item in vars(value).items() if not name.startswith("__")]


def names_told(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what an object of the program holds that is pickled by its name."""
    yield from [(name, getattr(value, name)) for name in _OF_NAMED if hasattr(value, name)]
    yield from state_of(value).items()


def registered_with(cls: type) -> list[str]:
    """Return the classes that were registered with an abstract class; for a library's class only those of the program, including its
    subclasses' registrations.
    """
    if not hasattr(cls, "_abc_impl"):
        return []
    from _abc import _get_dump  # type: ignore[import-not-found]

    is_librarys = is_library_module(cls.__module__)
    found: list[Any] = []
    waiting: list[Any] = [cls]
    while waiting:
        one = waiting.pop()
        found += [reference() for reference in _get_dump(one)[0]]
        if is_librarys:
            derived: list[Any] = type.__subclasses__(one)
            waiting += [sub for sub in derived if hasattr(sub, "_abc_impl") and is_library_module(sub.__module__)]
    kept = [one for one in found if one is not None and not (is_librarys and is_library_module(one.__module__))]
    return sorted({f"{one.__module__}.{one.__qualname__}" for one in kept})


def settings_of_numpy() -> list[tuple[str, Any]]:
    """Return the settings of NumPy that were changed: what its operations raise, and how it prints."""
    numpy: Any = sys.modules.get("numpy")
    if not hasattr(numpy, "geterr") or not hasattr(numpy, "get_printoptions"):
        return []
    now = {**numpy.geterr(), **numpy.get_printoptions()}
    return sorted((name, item) for name, item in now.items() if name not in _NUMPYS or item != _NUMPYS[name])
