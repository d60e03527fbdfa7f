"""Stand-ins for parts of Numba while it is not imported: `prange`, and the results of decorators."""

from __future__ import annotations

import sys

from compcache.numba.lazy.content import note_real, stand_for_prange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LazyObject", "prange", "real_numba", "replace_stand_ins", "stand_in_of"]


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


def replace_stand_ins(function: Any, numba: Any) -> None:
    """Replace stand-ins by Numba's own objects, in those globals and cells that a function to be compiled names."""
    namespace = function.__globals__
    for name in _names_of(function.__code__):
        value = namespace.get(name)
        if _is_stand_in(value):
            namespace[name] = _original(value, numba)
    for cell in function.__closure__ or ():
        try:
            if _is_stand_in(cell.cell_contents):
                cell.cell_contents = _original(cell.cell_contents, numba)
        except ValueError:
            continue


def _names_of(code: Any) -> set[str]:
    inner = [_names_of(constant) for constant in code.co_consts if type(constant) is type(code)]
    return set(code.co_names).union(*inner)


def _is_stand_in(value: Any) -> bool:
    return value is prange or (issubclass(type(value), LazyObject) and id(value) not in _being_made)


def _original(value: Any, numba: Any) -> Any:
    return numba.prange if value is prange else made(value)


#: The ids of lazy objects that are being made: a function may name itself.
_being_made: set[int] = set()


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

    def _compcache_make(self) -> Any:
        """Make the object that it stands for, with Numba imported."""
        return object.__getattribute__(self, "_make")(real_numba())(object.__getattribute__(self, "_function"))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(made(self)) if "numpy" in sys.modules else LazyObject

    @property
    def _numba_type_(self) -> Any:
        real = made(self)
        from numba.core.registry import cpu_target

        return cpu_target.typing_context.resolve_value_type(real)  # ufuncs are known to it by the object

    def __getattr__(self, name: str) -> Any:
        return getattr(made(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(made(self), name, value)

    def __repr__(self) -> str:
        return repr(made(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        real = made(self)
        from compcache.numba.takeover.pickles import reduce_real

        return reduce_real(real, protocol)

    def __dir__(self) -> list[str]:
        return dir(made(self))


def made(lazy: LazyObject) -> Any:
    """The object that a lazy object stands for."""
    known = object.__getattribute__(lazy, "_made")
    if known is not None:
        return known
    numba = real_numba()
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        known = object.__getattribute__(lazy, "_made")
        if known is None:
            _being_made.add(id(lazy))
            try:
                replace_stand_ins(object.__getattribute__(lazy, "_function"), numba)
                known = lazy._compcache_make()
            finally:
                _being_made.discard(id(lazy))
            note_real(known, lazy)
            object.__setattr__(lazy, "_made", known)
    return known
