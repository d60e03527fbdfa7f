"""Defines the objects that `stencil` returns: kernels on neighbourhoods, which compiled functions call."""

from __future__ import annotations

from compcache.interrupts import suppress
from compcache.numba.fingerprints.code_digest import names_in_code
from compcache.numba.fingerprints.state import copy_function
from compcache.numba.lazy.stand_ins import LazyObject, numbas_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LazyStencil", "declare_stencil"]


class LazyStencil(LazyObject):
    """A stencil. Numba creates its own stencil when Python calls this object, or when Numba compiles a function that calls it.

    Its function is the kernel, with its own copies of globals (see `declare_stencil`).
    """

    __slots__ = ()

    def _compcache_make(self) -> Any:
        """Return Numba's stencil with the arguments of the decorator."""
        from numba import stencil

        return stencil("constant", **object.__getattribute__(self, "_options"))(object.__getattribute__(self, "_function"))

    def _compcache_content(self, walk: Any) -> None:
        """Feed the data of the stencil that compiled code uses to a walk: the function as it was declared, and the options."""
        walk.feed_stencil(object.__getattribute__(self, "_function"), "constant", object.__getattribute__(self, "_options"))

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        """The docstring of Numba's class."""
        return numbas_object(self).__doc__


LazyStencil.__name__ = "StencilFunc"  # Python's error messages show the name of Numba's class


def declare_stencil(function: Any, options: dict[str, Any]) -> LazyStencil:
    """Return the stencil of a function, with the mode "constant".

    Numba reads the function and its variables when a stencil is declared. Therefore the stencil keeps the present values of the globals and
    closure variables that the function names.
    """
    names = names_in_code(function.__code__)
    values = {name: value for name, value in function.__globals__.items() if name in names}
    return LazyStencil(copy_function(function, values, map(_copy_cell, function.__closure__ or ())), options)


def _copy_cell(cell: Any) -> Any:
    """Return a new closure cell with the same content, or an empty cell for a variable that is not set yet."""
    with suppress(ValueError):  # raised by an empty cell
        return type(cell)(cell.cell_contents)
    return type(cell)()
