"""Stand-ins for parts of Numba while it is not imported: `prange`, and the results of decorators."""

from __future__ import annotations

import sys

from compcache.numba.lazy.content import stand_for_prange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LazyObject", "prange", "real_numba", "replace_prange", "stand_in_of"]


class prange:  # noqa: N801 - it is Numba's name
    """`numba.prange`: a range, whose iterations compiled code may run in parallel."""

    def __new__(cls, *args: Any) -> Any:
        """A range."""
        return range(*args)


stand_for_prange(prange)


def stand_in_of() -> Any:
    """The module that stands for Numba (`import_hook`); None where there is none."""
    module = sys.modules.get("numba")
    return module if module is not None and "_compcache_when_real" in vars(module) else None


def real_numba() -> Any:
    """Numba itself, imported if it is not."""
    stand_in = stand_in_of()
    if stand_in is None:
        import numba

        return numba
    del sys.modules["numba"]
    try:
        import numba
    except BaseException:
        sys.modules["numba"] = stand_in
        raise
    vars(stand_in)["_compcache_when_real"]()
    return numba


def replace_prange(function: Any, numba: Any) -> None:
    """Replace the stand-in by Numba's own `prange` in the globals and the closure of a function to be compiled."""
    namespace = function.__globals__
    for name in [name for name, value in namespace.items() if value is prange]:
        namespace[name] = numba.prange
    for cell in function.__closure__ or ():
        try:
            if cell.cell_contents is prange:
                cell.cell_contents = numba.prange
        except ValueError:
            continue


class LazyObject:
    """The result of a Numba decorator, made when it is first used."""

    __slots__ = ("_function", "_make", "_made", "__weakref__")

    def __init__(self, function: Any, make: Any) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_made", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object that it stands for."""
        return made(self)(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(made(self)) if "numpy" in sys.modules else LazyObject

    def __getattr__(self, name: str) -> Any:
        return getattr(made(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(made(self), name, value)

    def __repr__(self) -> str:
        return repr(made(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return made(self).__reduce_ex__(protocol)

    def __dir__(self) -> list[str]:
        return dir(made(self))


def made(lazy: LazyObject) -> Any:
    """The object that a lazy object stands for."""
    known = object.__getattribute__(lazy, "_made")
    if known is None:
        numba = real_numba()
        function = object.__getattribute__(lazy, "_function")
        replace_prange(function, numba)
        known = object.__getattribute__(lazy, "_make")(numba)(function)
        object.__setattr__(lazy, "_made", known)
    return known
