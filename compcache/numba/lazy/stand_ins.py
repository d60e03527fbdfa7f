"""Defines stand-ins for parts of Numba: `prange`, and the objects that decorators return."""

from __future__ import annotations

import sys
from operator import attrgetter

from compcache.interrupts import suppress
from compcache.numba.fingerprints.stand_ins import record_real, register_prange
from compcache.numba.lazy import has_numba, when_imported
from compcache.numba.registered.marks import is_marked, original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "COPIED_ATTRIBUTES", "LazyObject", "LazyWrapper", "are_decorators_replaced", "is_probe", "numba_decorator",
    "numbas_object", "prange", "real_numba", "record_replaced_decorators", "replace_stand_ins",
]  # fmt: skip


class _Prange(type):
    """The class of `prange`."""

    def _compcache_original(cls) -> Any:
        """Import Numba if necessary, and return its `prange`."""
        return real_numba().prange


class prange(metaclass=_Prange):  # noqa: N801 - this is Numba's name
    """Replaces `numba.prange`: a range whose iterations compiled code may run in parallel.

    Args:
        args: the arguments of `range`.
    """

    def __new__(cls, *args: Any) -> Any:
        """Return a range."""
        return range(*args)


register_prange(prange)


def real_numba() -> Any:
    """Return the module `numba` itself, after importing it if necessary. One thread performs the import. Other threads wait for it."""
    import compcache.numba.lazy.numba_itself  # noqa: F401 - the import of this module imports Numba

    return sys.modules["numba"]


def _replace_everywhere() -> None:
    """Replace the stand-ins in the globals of all modules, except for this package's and Numba's, by Numba objects."""
    numba = sys.modules["numba"]
    plain: dict[int, type] = {}  # classes of other objects, by id, because metaclasses of programs decide how classes compare
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if type(namespace) is not dict or module is numba or str(namespace.get("__name__")).startswith(("compcache.", "numba.")):
            continue
        values = list(namespace.values())
        kinds = list(map(type, values))
        unknown = {key: kind for key, kind in dict(zip(map(id, kinds), kinds, strict=True)).items() if key not in plain}
        plain.update([(key, kind) for key, kind in unknown.items() if not is_marked(kind, "_compcache_original")])
        if unknown.keys() <= plain.keys():
            continue
        for name, value in list(namespace.items()):
            if is_marked(type(value), "_compcache_original"):
                namespace[name] = original(value)


when_imported(_replace_everywhere)


#: Numba's own decorators, by name, while decorators of `compcache.numba` replace them.
_decorators: dict[str, Any] = {}


def numba_decorator(name: str) -> Any:
    """Return one of Numba's own decorators, after importing Numba if necessary."""
    numba = real_numba()
    return _decorators.get(name) or getattr(numba, name)


def record_replaced_decorators(decorators: dict[str, Any]) -> None:
    """Record Numba's own decorators, which were replaced. `decorators` is empty if they were restored."""
    _decorators.clear()
    _decorators.update(decorators)


def are_decorators_replaced() -> bool:
    """Return whether `compcache.numba` has replaced the decorators of an imported Numba. Then they return Numba objects."""
    return bool(_decorators)


def replace_stand_ins(function: Any) -> None:
    """Replace stand-ins by Numba objects in the globals and closure variables that a function names. Unassigned variables are skipped."""
    from compcache.numba.fingerprints.code_digest import names_in_code

    namespace = function.__globals__
    for name in names_in_code(function.__code__):
        value = namespace.get(name)
        if _is_stand_in(value):
            namespace[name] = _original_of(value)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            if _is_stand_in(cell.cell_contents):
                cell.cell_contents = _original_of(cell.cell_contents)


def _is_stand_in(value: Any) -> bool:
    """Return whether a value is a stand-in whose original is not being created now."""
    return (is_marked(type(value), "_compcache_original") or issubclass(type(value), LazyObject)) and id(value) not in _in_creation


def _original_of(value: Any) -> Any:
    """Return Numba's object in place of a stand-in. Create the object if necessary."""
    return numbas_object(value) if issubclass(type(value), LazyObject) else original(value)


def is_probe(name: str) -> bool:
    """Return whether an attribute is one that tools (pytest, IPython) look for on every object. No Numba object has such an attribute."""
    return name.startswith(_PROBES)


_PROBES = ("_ipython_", "_mock_", "_pytest", "_repr_", "pytest")
#: The ids of lazy objects whose original is being created. Their functions may refer to them.
_in_creation: set[int] = set()


class LazyObject:
    """The object that a decorator returns. Numba's own object, its original, is created on first use.

    Args:
        function: the decorated function.
        options: the options of the decorator.
    """

    __slots__ = ("_function", "_made", "_options", "__weakref__")

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_options", options)
        object.__setattr__(self, "_made", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original."""
        return numbas_object(self)(*args, **kwargs)

    def _compcache_make(self) -> Any:
        """Create the original, and return it. `numbas_object` has imported Numba before."""
        raise NotImplementedError

    def _compcache_attributes(self) -> dict[str, Any]:
        """Return the attributes that code can read. Setting an attribute creates Numba's object, which then has all attributes."""
        real = object.__getattribute__(self, "_made")
        if real is None:
            return {"__wrapped__": object.__getattribute__(self, "_function")}
        from compcache.numba.fingerprints.state import state_of

        return state_of(real)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the original once Numba is imported. Before that, no caller can test for Numba's class."""
        return type(numbas_object(self)) if has_numba() else type(self)

    @property
    def _numba_type_(self) -> Any:
        real = numbas_object(self)
        from numba.core.registry import cpu_target

        return cpu_target.typing_context.resolve_value_type(real)  # the typing context finds ufuncs by the object

    def __getattr__(self, name: str) -> Any:
        if object.__getattribute__(self, "_made") is None and is_probe(name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(numbas_object(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(numbas_object(self), name, value)

    def __repr__(self) -> str:
        return repr(numbas_object(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        real = numbas_object(self)
        from compcache.numba.lazy.pickles import reduce_real

        return reduce_real(real, protocol)

    def __dir__(self) -> list[str]:
        return dir(numbas_object(self))


class LazyWrapper(LazyObject):
    """A lazy object with the name, the module and the docstring of its function."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        for name in ("__doc__", "__module__"):  # every class has these attributes, so `__getattr__` is not called
            setattr(cls, name, property(attrgetter(f"__wrapped__.{name}")))

    @property
    def __wrapped__(self) -> Any:
        return object.__getattribute__(self, "_function")

    def __getattr__(self, name: str) -> Any:
        function = object.__getattribute__(self, "_function")
        return getattr(function, name) if name in COPIED_ATTRIBUTES and hasattr(function, name) else super().__getattr__(name)


#: The attributes that a wrapper copies from its function.
COPIED_ATTRIBUTES = frozenset(("__annotations__", "__name__", "__qualname__", "__type_params__"))


def numbas_object(lazy: LazyObject) -> Any:
    """Return the original of a lazy object, after importing Numba and creating the original if necessary."""
    real = object.__getattribute__(lazy, "_made")
    if real is not None:
        return real
    real_numba()
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        real = object.__getattribute__(lazy, "_made")
        if real is None:
            _in_creation.add(id(lazy))
            try:
                replace_stand_ins(object.__getattribute__(lazy, "_function"))
                real = lazy._compcache_make()
            finally:
                _in_creation.discard(id(lazy))
            object.__setattr__(lazy, "_made", record_real(real, lazy))
    return real
