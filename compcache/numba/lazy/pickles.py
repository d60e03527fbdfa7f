"""Pickles Numba objects for picklers that were created before Numba was imported.

When Numba is imported, it registers with `copyreg` how its objects are pickled. The pickler of `multiprocessing` copies this table when it
is created, and pickling a lazy function imports Numba only after that.
"""

from __future__ import annotations

from typing import Any

from numba.core.serialize import NumbaPickler, _CustomPickled, _pickle__CustomPickled

__all__ = ["reduce_real"]


class _Pickled(_CustomPickled):  # type: ignore[misc]
    """The state of a Numba object that defines its own pickling. It has the same pickle as Numba's class."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return _pickle__CustomPickled(self)


#: Numba's own pickler remembers what it has pickled, so that a function may refer to itself.
NumbaPickler.dispatch_table[_Pickled] = _CustomPickled._reduce


def reduce_real(real: Any, protocol: Any) -> Any:
    """Return the result of `__reduce_ex__` of a Numba object, in a form for any pickler."""
    reduced = real.__reduce_ex__(protocol)
    if not isinstance(reduced, tuple):
        return reduced
    rebuild, args, *rest = reduced
    return rebuild, tuple([_Pickled(item.ctor, item.states) if type(item) is _CustomPickled else item for item in args]), *rest
