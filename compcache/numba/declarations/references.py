"""Defines stand-ins for Numba's functions, classes and exceptions. Most uses of a stand-in import Numba."""

from __future__ import annotations

from importlib import import_module

from compcache.interrupts import reraise_interrupt
from compcache.numba.declarations.types import CONSTRUCTORS, infer_dtype_type, infer_type
from compcache.numba.lazy import has_numba, when_imported
from compcache.numba.lazy.c_helpers import number_of_threads, set_number_of_threads
from compcache.numba.lazy.stand_ins import LazyObject, is_probe, real_numba
from compcache.numba.registered.marks import is_marked, original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["FAST_PATHS", "FastPathFunction", "Reference", "TypeConstructor", "find_exception_class"]


class Reference:
    """A stand-in for a function, class or other object of Numba. Most uses import Numba; comparisons and pickling do not.

    Args:
        module: the full name of the module.
        name: the name of the object in the module.
        kind: the kind of the object in functions' keys.
    """

    __slots__ = ("__weakref__", "_kind", "_module", "_name")

    def __init__(self, module: str, name: str, kind: str) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_kind", kind)

    def _compcache_original(self) -> Any:
        """Import Numba if necessary, and return its own object."""
        return _import_named(object.__getattribute__(self, "_module"), object.__getattribute__(self, "_name"))

    def _compcache_content(self, walk: Any) -> None:
        """Feed the identity of Numba's object to a walk."""
        walk.feed_token(*[object.__getattribute__(self, slot) for slot in ("_kind", "_module", "_name")])

    def _compcache_context(self) -> str | None:
        """Return the name of the context manager for which this object is a stand-in, or None for any other object."""
        name: str = object.__getattribute__(self, "_name")
        return name if object.__getattribute__(self, "_kind") == "context" else None

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call Numba's object. Replace stand-ins among the arguments, because Numba tests for subclasses of its own classes."""
        real = self._compcache_original()
        return real(*map(original, args), **{name: original(value) for name, value in keywords.items()})

    @property
    def __bases__(self) -> Any:
        """The bases of a class, which `issubclass` needs."""
        return self._compcache_original().__bases__

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._compcache_original())

    def __getattr__(self, name: str) -> Any:
        if is_probe(name) and not has_numba():
            raise AttributeError(f"the stand-in for numba's {object.__getattribute__(self, '_name')} has no attribute {name!r}")
        return getattr(self._compcache_original(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._compcache_original(), name, value)

    def __getitem__(self, item: Any) -> Any:
        return self._compcache_original()[item]

    def __enter__(self) -> Any:
        return self._compcache_original().__enter__()

    def __exit__(self, *exception: object) -> Any:
        return self._compcache_original().__exit__(*exception)

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return (self._compcache_original(),)

    def __instancecheck__(self, value: Any) -> bool:
        if not has_numba() and not _may_be_stand_in(value):
            return False  # before Numba is imported, no object is an instance of one of its classes
        real = self._compcache_original()
        return isinstance(original(value), real)

    def __subclasscheck__(self, cls: Any) -> bool:
        if not has_numba() and not _may_be_stand_in(cls):
            return False
        real = self._compcache_original()
        return issubclass(original(cls), real)

    def __or__(self, other: Any) -> Any:
        return self._compcache_original() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._compcache_original()

    def __eq__(self, other: object) -> bool:
        return self is other or (has_numba() and bool(self._compcache_original() == other))

    def __hash__(self) -> int:
        return hash(self._compcache_original())

    def __repr__(self) -> str:
        return repr(self._compcache_original())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _import_named, (object.__getattribute__(self, "_module"), object.__getattribute__(self, "_name"))

    def __dir__(self) -> list[str]:
        return dir(self._compcache_original())


def _may_be_stand_in(value: Any) -> bool:
    """Return whether a value may be a stand-in for one of Numba's types, classes or jitted functions."""
    kind = type(value)
    return is_marked(kind, "_compcache_original") or is_marked(kind, "_compcache_is_declaration") or issubclass(kind, LazyObject)


def _import_named(module: str, name: str) -> Any:
    """Import Numba, and return the object with this name in one of its modules."""
    real_numba()
    return getattr(import_module(module), name)


class TypeConstructor(Reference):
    """A stand-in for a class of Numba types. It constructs stand-ins for types whose expression follows from the arguments.

    Args:
        name: the name of the class, a key of `CONSTRUCTORS`.
    """

    __slots__ = ("_make",)

    def __init__(self, name: str) -> None:
        module, make = CONSTRUCTORS[name]
        super().__init__(f"numba.core.types.{module}", name, "class")
        object.__setattr__(self, "_make", make)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Return a stand-in for a type, or Numba's type if Numba is imported. Import Numba if no expression follows from the arguments."""
        make = object.__getattribute__(self, "_make")
        try:
            stand_in = None if has_numba() else make(*args, **keywords)
        except TypeError as error:
            reraise_interrupt(error)
            stand_in = None  # Numba reports invalid arguments
        return super().__call__(*args, **keywords) if stand_in is None else stand_in


class FastPathFunction(Reference):
    """A stand-in for a function that computes most results without Numba, such as `numba.typeof` for numbers.

    Args:
        name: the name of the function, a key of `FAST_PATHS`.
    """

    __slots__ = ("_count", "_fast_path")

    def __init__(self, name: str) -> None:
        module, count, fast_path = FAST_PATHS[name]
        super().__init__(module, name, "library function")
        object.__setattr__(self, "_fast_path", fast_path)
        object.__setattr__(self, "_count", count)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Return the result of Numba's function. Import Numba only if the fast path does not support the arguments."""
        if len(args) == object.__getattribute__(self, "_count") and not keywords and not has_numba():
            result = object.__getattribute__(self, "_fast_path")(*args)
            if result is not NotImplemented:
                return result
        return super().__call__(*args, **keywords)


def _result_of(inferred_type: Any) -> Any:
    """Return an inferred type as the result of a fast path: `NotImplemented` for None, because only Numba can determine the type."""
    return NotImplemented if inferred_type is None else inferred_type


#: The module of each function, the number of arguments that the fast path supports, and the fast path: a function that returns the result,
#: or `NotImplemented` if only Numba can compute the result.
FAST_PATHS: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "from_dtype": ("numba.np.numpy_support", 1, lambda dtype: _result_of(infer_dtype_type(dtype))),
    "get_num_threads": ("numba.np.ufunc.parallel", 0, number_of_threads),
    "set_num_threads": ("numba.np.ufunc.parallel", 1, set_number_of_threads),
    "typeof": ("numba.misc.special", 1, lambda value: _result_of(infer_type(value))),
}


class _ExceptionClass(type):
    """The metaclass of stand-ins for Numba's warnings and exceptions. Instances and subclasses of Numba's class count as the stand-in's."""

    def _compcache_original(cls) -> Any:
        """Import Numba if necessary, and return its class of the same name."""
        return _import_named("numba.core.errors", cls.__name__)

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        return cls._compcache_original()(*args, **keywords)

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(cls, value) or (has_numba() and isinstance(value, cls._compcache_original()))

    def __subclasscheck__(cls, other: Any) -> bool:
        return type.__subclasscheck__(cls, other) or (has_numba() and issubclass(original(other), cls._compcache_original()))

    def __eq__(cls, other: object) -> bool:
        return cls is other or (isinstance(other, type) and has_numba() and cls._compcache_original() is other)

    def __hash__(cls) -> int:
        return type.__hash__(cls)

    def __reduce_ex__(cls, protocol: Any) -> Any:
        return _import_named, ("numba.core.errors", cls.__name__)


#: The bases of each warning and exception: classes, or the names of other stand-ins.
_EXCEPTIONS: dict[str, tuple[Any, ...]] = {
    "NumbaError": (Exception,), "TypingError": ("NumbaError",), "LoweringError": ("NumbaError",), "UnsupportedError": ("NumbaError",),
    "NumbaTypeError": ("TypingError",), "NumbaValueError": ("TypingError",), "NumbaNotImplementedError": ("TypingError",),
    "NumbaWarning": (Warning,), "NumbaDeprecationWarning": ("NumbaWarning", DeprecationWarning),
    "NumbaPendingDeprecationWarning": ("NumbaWarning", PendingDeprecationWarning),
} | dict.fromkeys((
    "NumbaDebugInfoWarning", "NumbaExperimentalFeatureWarning", "NumbaInvalidConfigWarning", "NumbaParallelSafetyWarning",
    "NumbaPedanticWarning", "NumbaPerformanceWarning", "NumbaSystemWarning", "NumbaTypeSafetyWarning",
), ("NumbaWarning",))  # fmt: skip
_exceptions: dict[str, Any] = {}


def find_exception_class(name: str) -> Any:
    """Return the stand-in for Numba's warning or exception with this name; None for any other name."""
    if name not in _EXCEPTIONS:
        return None
    cls = _exceptions.get(name)
    if cls is None:
        bases = tuple([find_exception_class(base) if type(base) is str else base for base in _EXCEPTIONS[name]])
        namespace = {"__module__": "numba.core.errors", "__qualname__": name, "__slots__": ()}
        cls = _exceptions.setdefault(name, _ExceptionClass(name, bases, namespace))  # another thread may have created it in the meantime
        if not issubclass(cls, Warning):
            when_imported(lambda: _make_catchable(cls))
    return cls


def _make_catchable(cls: Any) -> None:
    """Add a stand-in to the bases of Numba's exception class, so that `except` with the stand-in catches Numba's exceptions."""
    real = cls._compcache_original()
    if not any(base is cls for base in real.__mro__):  # `in` would use equality, and the stand-in equals the original
        real.__bases__ = (cls, *real.__bases__) if real.__bases__ == (Exception,) else (*real.__bases__, cls)
