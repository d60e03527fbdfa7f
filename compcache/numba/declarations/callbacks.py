"""Defines the objects that `cfunc` returns: C callbacks that run stored code."""

from __future__ import annotations

from compcache.numba.declarations.signatures import load_declared_code
from compcache.numba.lazy.stand_ins import LazyObject, numbas_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.numba.lazy.state import State

__all__ = ["LazyCallback", "declare_callback"]

_COPIED_ATTRIBUTES = frozenset(("__name__", "__qualname__"))


class LazyCallback(LazyObject):
    """A C callback. It provides its address in the same forms as Numba's callbacks. Calls from Python run the Python function."""

    __slots__ = ("_ctypes", "_state")

    def __init__(self, state: State) -> None:
        super().__init__(state.function, state.options)
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_ctypes", None)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the Python function, as Numba's callbacks do."""
        return object.__getattribute__(self, "_function")(*args, **keywords)

    def _compcache_make(self) -> Any:
        """Return Numba's callback with the arguments of the decorator."""
        from compcache.numba.takeover.callbacks import make_callback

        return make_callback(object.__getattribute__(self, "_state"))

    @property
    def address(self) -> int:
        """The address of the callback's code."""
        declared = object.__getattribute__(self, "_state").declared
        return int(numbas_object(self).address if declared is None else declared.loaded[0].address)

    @property
    def native_name(self) -> str:
        """The symbol of the callback's code."""
        declared = object.__getattribute__(self, "_state").declared
        return str(numbas_object(self).native_name if declared is None else declared.details[0])

    @property
    def cffi(self) -> Any:
        """The callback as a cffi pointer."""
        from cffi import FFI  # type: ignore[import-untyped,unused-ignore]

        return FFI().cast("void *", self.address)

    @property
    def ctypes(self) -> Any:
        """The callback as a ctypes function."""
        function = object.__getattribute__(self, "_ctypes")
        if function is None:
            declared = object.__getattribute__(self, "_state").declared
            if declared is None:
                function = numbas_object(self).ctypes
            else:
                _, types = declared.details
                function = _make_ctypes_function(self.address, types)
            object.__setattr__(self, "_ctypes", function)
        return function

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        """The docstring of Numba's class."""
        return numbas_object(self).__doc__

    @property
    def __wrapped__(self) -> Any:
        return object.__getattribute__(self, "_function")

    def __getattr__(self, name: str) -> Any:
        if name in _COPIED_ATTRIBUTES:
            return getattr(object.__getattribute__(self, "_function"), name)
        return super().__getattr__(name)

    def __repr__(self) -> str:
        return f"<Numba C callback {self.__qualname__!r}>"


LazyCallback.__name__ = "CFunc"  # Python's error messages show the name of Numba's class


def _make_ctypes_function(address: int, types: list[tuple[str, int]]) -> Any:
    """Return a ctypes function for an address.

    `types` are the result type and the parameter types. Each type has the name of a scalar, and a depth: 0 for the scalar, 1 for a pointer
    to the scalar, 2 for a pointer to such a pointer, and so on. Raise `TypeError` if ctypes has no type for one of the Numba types.
    """
    import ctypes

    names = {"bool": "c_bool", "float32": "c_float", "float64": "c_double", "voidptr": "c_void_p", "none": ""}
    names |= {f"{sign}int{bits}": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    converted: list[Any] = []
    for name, depth in types:
        ctypes_name = names.get(name)
        if ctypes_name is None or (ctypes_name == "" and (depth or converted)):  # "none" can only be the result type
            raise TypeError(f"Cannot convert Numba type '{name}' to ctypes type")
        ctypes_type = getattr(ctypes, ctypes_name) if ctypes_name else None
        for _ in range(depth):
            ctypes_type = ctypes.POINTER(ctypes_type)
        converted.append(ctypes_type)
    return ctypes.CFUNCTYPE(*converted)(address)


def declare_callback(state: State) -> LazyCallback:
    """Return the callback of a decorated function. If the callback's code is not stored, compile it with Numba now."""
    callback = LazyCallback(state)
    state.declared = load_declared_code(state, "(u[(ui)])")
    if state.declared is None:
        numbas_object(callback)
    return callback
