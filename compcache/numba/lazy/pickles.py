"""Pickles Numba's objects for picklers that were created before Numba was imported.

Numba registers with `copyreg` how its objects are pickled when it is imported. The pickler of `multiprocessing` copies that table when it
is created, and pickling a lazy function imports Numba only after that.
"""

from __future__ import annotations

from typing import Any

from numba.core.serialize import NumbaPickler, _CustomPickled, _pickle__CustomPickled

__all__ = ["reduce_real"]


class _Pickled(_CustomPickled):  # type: ignore[misc]
    """The state of an object of Numba's that defines its own pickling; the pickle is the same."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return _pickle__CustomPickled(self)


def _reduce(pickled: _Pickled) -> Any:
    """Reduce for Numba's own pickler, which knows what it has pickled already, because a function may read itself."""
    return pickled._reduce()


NumbaPickler.dispatch_table[_Pickled] = _reduce


def reduce_real(real: Any, protocol: Any) -> Any:
    """Return what `__reduce_ex__` of an object of Numba's returns, for any pickler."""
    found = real.__reduce_ex__(protocol)
    if not isinstance(found, tuple):
        return found
    rebuild, args, *rest = found
    return rebuild, tuple([_Pickled(a.ctor, a.states) if type(a) is _CustomPickled else a for a in args]), *rest
