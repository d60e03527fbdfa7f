"""Stand-ins for parts of Numba while it is not imported: `prange`, and the objects that decorators return."""

from __future__ import annotations

import sys
from functools import partial

from compcache.files import reraise_interrupt
from compcache.numba.fingerprints.stand_ins import note_real, stand_for_prange
from compcache.numba.fingerprints.state import state_of as attributes_of
from compcache.numba.lazy.awaited import has_numba, when_imported
from compcache.numba.registered.marks import is_marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "COPIED",
    "LazyObject",
    "LazyWrapper",
    "are_decorators_taken",
    "is_probe",
    "note_original",
    "numba_decorator",
    "numbas_object",
    "original",
    "prange",
    "real_numba",
    "replace_stand_ins",
    "take_decorators",
]


class prange:  # noqa: N801 - it is Numba's name
    """Replaces `numba.prange`: a range whose iterations compiled code may run in parallel.

    Args:
        args: the arguments of `range`.
    """

    def __new__(cls, *args: Any) -> Any:
        """Return a range."""
        return range(*args)


stand_for_prange(prange)


def real_numba() -> Any:
    """Return Numba itself; import it if necessary, in one thread, for which the others wait."""
    import compcache.numba.lazy.numba_itself  # noqa: F401 - importing it is what does it

    return sys.modules["numba"]


def _replace_everywhere() -> None:
    """Replace the stand-ins in the globals of all modules by Numba's objects."""
    numba = sys.modules["numba"]
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if type(namespace) is not dict or module is numba or str(namespace.get("__name__")).startswith(("compcache.", "numba.")):
            continue
        for name, value in list(namespace.items()):
            if _stands_for_numbas(value):
                namespace[name] = original(value)


when_imported(_replace_everywhere)


def original(value: Any) -> Any:
    """Return Numba's own object for a stand-in, importing Numba; return other values unchanged."""
    if not _stands_for_numbas(value):
        return value
    return real_numba().prange if value is prange else type(value)._compcache_original(value)


def _stands_for_numbas(value: Any) -> bool:
    """Return whether this is a stand-in for an object of Numba."""
    return value is prange or is_marked(type(value), "_compcache_original")


#: Numba's own decorators, if those of `compcache.numba` replace them.
_decorators: dict[str, Any] = {}


def numba_decorator(name: str) -> Any:
    """Return one of Numba's own decorators."""
    numba = real_numba()
    return _decorators.get(name) or getattr(numba, name)


def take_decorators(decorators: dict[str, Any]) -> None:
    """Record which of Numba's decorators were replaced."""
    _decorators.clear()
    _decorators.update(decorators)


def are_decorators_taken() -> bool:
    """Return whether decorators of `compcache.numba` replace those of an imported Numba. They return Numba's objects."""
    return bool(_decorators)


def replace_stand_ins(function: Any) -> None:
    """Replace stand-ins by Numba's own objects in those globals and cells that a function to be compiled names."""
    namespace = function.__globals__
    for name in _names_of(function.__code__):
        value = namespace.get(name)
        if _is_stand_in(value):
            namespace[name] = _original(value)
    for cell in function.__closure__ or ():
        try:
            if _is_stand_in(cell.cell_contents):
                cell.cell_contents = _original(cell.cell_contents)
        except ValueError as error:
            reraise_interrupt(error)
            continue


def _names_of(code: Any) -> set[str]:
    inner = [_names_of(constant) for constant in code.co_consts if type(constant) is type(code)]
    return set(code.co_names).union(*inner)


def _is_stand_in(value: Any) -> bool:
    if _stands_for_numbas(value):
        return True
    return issubclass(type(value), LazyObject) and id(value) not in _being_made


def _original(value: Any) -> Any:
    return numbas_object(value) if issubclass(type(value), LazyObject) else original(value)


def is_probe(name: str) -> bool:
    """Return whether tools (pytest, IPython) read this attribute of any object to find out what it is. No object of Numba has it."""
    return name.startswith(_PROBES)


_PROBES = ("_ipython_", "_mock_", "_pytest", "_repr_", "pytest")


#: The ids of lazy objects whose original is being created, because a function may name itself.
_being_made: set[int] = set()


class LazyObject:
    """The object that a Numba decorator returns. Numba's own object is created when it is first used."""

    __slots__ = ("_function", "_make", "_made", "__weakref__")

    def __init__(self, function: Any, make: Any) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_made", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original."""
        return numbas_object(self)(*args, **kwargs)

    def _compcache_make(self) -> Any:
        """Create the original; Numba is imported."""
        return object.__getattribute__(self, "_make")(real_numba())(object.__getattribute__(self, "_function"))

    def _compcache_attributes(self) -> dict[str, Any]:
        """Return what code can read of this object, which the program may have set: that creates the original."""
        known = object.__getattribute__(self, "_made")
        return {"__wrapped__": object.__getattribute__(self, "_function")} if known is None else attributes_of(known)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of Numba's own object once Numba is imported; no caller can test for that class earlier."""
        return type(numbas_object(self)) if has_numba() else type(self)

    @property
    def _numba_type_(self) -> Any:
        real = numbas_object(self)
        from numba.core.registry import cpu_target

        return cpu_target.typing_context.resolve_value_type(real)  # the typing context knows ufuncs by the object

    def __getattr__(self, name: str) -> Any:
        if object.__getattribute__(self, "_made") is None and is_probe(name):
            raise AttributeError(f"it has no attribute {name!r}")
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
        for name in ("__doc__", "__module__"):  # each class has its own
            setattr(cls, name, property(partial(_of_function, name)))

    @property
    def __wrapped__(self) -> Any:
        return object.__getattribute__(self, "_function")

    def __getattr__(self, name: str) -> Any:
        function = object.__getattribute__(self, "_function")
        return getattr(function, name) if name in COPIED and hasattr(function, name) else super().__getattr__(name)


#: What a wrapper has of its function.
COPIED = frozenset(("__annotations__", "__name__", "__qualname__", "__type_params__"))


def _of_function(name: str, lazy: LazyWrapper) -> Any:
    return getattr(object.__getattribute__(lazy, "_function"), name)


def numbas_object(lazy: LazyObject) -> Any:
    """Return the original of a lazy object."""
    known = object.__getattribute__(lazy, "_made")
    if known is not None:
        return known
    real_numba()
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        known = object.__getattribute__(lazy, "_made")
        if known is None:
            _being_made.add(id(lazy))
            try:
                replace_stand_ins(object.__getattribute__(lazy, "_function"))
                known = lazy._compcache_make()
            finally:
                _being_made.discard(id(lazy))
            object.__setattr__(lazy, "_made", note_original(known, lazy))
    return known


def note_original(real: Any, lazy: Any) -> Any:
    """Record that an original and its lazy object are the same for keys of functions that use them; return the original."""
    note_real(real, lazy)
    return real
