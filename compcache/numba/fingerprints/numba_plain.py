"""Feeds Numba's own objects in the same way as their stand-ins feed themselves without Numba, so that all processes
compute the same key.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.fixed_code import fixed_code
from compcache.numba.registered.library import is_library_function
from compcache.numba.registered.options import of_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.numba.fingerprints.walk import Walk

    Feeder = Callable[[Walk, Any], None]

__all__ = ["feed_stencil", "feeder_of", "frozen_kernel"]


def feeder_of(value: Any) -> Feeder | None:
    """Return the function that feeds an object of Numba's; None if the object has no stand-in."""
    from numba.core.dispatcher import Dispatcher
    from numba.core.extending import _Intrinsic
    from numba.np.ufunc.dufunc import DUFunc
    from numba.np.ufunc.gufunc import GUFunc
    from numba.stencils.stencil import StencilFunc

    rows: tuple[tuple[type, Feeder], ...] = (
        (Dispatcher, _dispatcher), (_Intrinsic, _intrinsic), (StencilFunc, feed_stencil), (DUFunc, _dufunc), (GUFunc, _gufunc),
    )  # fmt: skip
    kind = type(value)
    return next((feeder for cls, feeder in rows if issubclass(kind, cls)), None)


def _dispatcher(walk: Walk, value: Any) -> None:
    if is_library_function(value.py_func):
        walk.token("jitted by a library", value.py_func.__module__, value.py_func.__qualname__)
    elif getattr(value, "_can_compile", True):
        walk.feed_jitted(value.py_func, of_compiler(value.targetoptions, value.locals))
    else:
        walk.feed_declared(fixed_code(value), value.py_func)


def _intrinsic(walk: Walk, value: Any) -> None:
    if is_library_function(value._defn):
        walk.token("intrinsic of a library", value._defn.__module__, value._defn.__qualname__)
    else:
        walk.depends_on("intrinsic", value._defn, {"prefer_literal": True} if getattr(value, "_prefer_literal", False) else {})


def feed_stencil(walk: Walk, value: Any) -> None:
    """Feed a stencil."""
    walk.feed_stencil(frozen_kernel(value.kernel_ir), value.mode, dict(value.options))


def frozen_kernel(kernel_ir: Any) -> Any:
    """Return the function of a stencil with the values of globals and variables that Numba read when it was declared."""
    from numba.core import ir

    function = kernel_ir.func_id.func
    values = [one.value for block in kernel_ir.blocks.values() for one in block.find_insts(ir.Assign)]
    names = {one.name: one.value for one in values if isinstance(one, ir.Global)}
    held = {name: value for name, value in function.__globals__.items() if name in _OF_MODULES} | names
    frees = {one.name: one.value for one in values if isinstance(one, ir.FreeVar)}
    cells = [type(cell)(frees[name]) if name in frees else cell for name, cell in _cells_of(function)]
    frozen = FunctionType(function.__code__, held, function.__name__, function.__defaults__, tuple(cells))
    frozen.__module__, frozen.__qualname__ = function.__module__, function.__qualname__
    frozen.__kwdefaults__ = function.__kwdefaults__
    return frozen


_OF_MODULES = frozenset(("__builtins__", "__file__", "__name__", "__package__"))


def _cells_of(function: Any) -> Iterable[tuple[str, Any]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _dufunc(walk: Walk, value: Any) -> None:
    walk.token("ufunc of Numba", "", repr(value.identity))
    walk.feed_declared(fixed_code(value._dispatcher, is_frozen=True) if value._frozen else None, value._dispatcher.py_func)


def _gufunc(walk: Walk, value: Any) -> None:
    builder = value.gufunc_builder
    walk.token("ufunc of Numba", builder.signature, repr(value.identity))
    walk.feed_declared(fixed_code(builder.nb_func, is_frozen=True) if value._frozen else None, builder.py_func)
