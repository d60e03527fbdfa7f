"""The decorators of Numba, which import Numba only if it is needed.

`njit` and `jit` of a plain function are lazy (`function`). A function declared with a signature is compiled at once, as in
Numba.
"""

from __future__ import annotations

import os

from compcache.numba.lazy.function import make_lazy_function
from compcache.numba.lazy.stand_ins import LazyObject, prange, real_numba

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["cfunc", "guvectorize", "jit", "njit", "prange", "vectorize"]

_Function = type(lambda: 0)


def njit(*args: Any, **options: Any) -> Any:
    """`numba.njit`: a function that is compiled when it is called; a stored one is found without importing Numba."""
    if "nopython" in options or "forceobj" in options:
        return real_numba().njit(*args, **options)  # which warns
    return _decorate("njit", args, options)


def jit(*args: Any, **options: Any) -> Any:
    """`numba.jit`: a function that is compiled when it is called; a stored one is found without importing Numba."""
    return _decorate("jit", args, options)


def _decorate(decorator: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if _is_disabled():
        return getattr(real_numba(), decorator)(*args, **options)
    if len(args) == 1 and type(args[0]) is _Function and not options:
        return make_lazy_function(args[0], decorator, None, {})
    if not args or args == (None,):

        def decorate(function: Any) -> Any:
            if type(function) is not _Function:
                return getattr(real_numba(), decorator)(**options)(function)
            return make_lazy_function(function, decorator, None, dict(options))

        return decorate
    try:
        numba = real_numba()
    except ImportError as error:
        from compcache.numba.kernels.find import decorate_packaged

        return decorate_packaged(error)
    return getattr(numba, decorator)(*args, **options)


def _is_disabled() -> bool:
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def vectorize(*args: Any, **options: Any) -> Any:
    """`numba.vectorize`: Numba makes the ufunc when it is first used."""
    return _delayed("vectorize", args, options)


def guvectorize(*args: Any, **options: Any) -> Any:
    """`numba.guvectorize`: Numba makes the ufunc when it is first used."""
    return _delayed("guvectorize", args, options)


def cfunc(*args: Any, **options: Any) -> Any:
    """`numba.cfunc`: Numba makes the callback when it is first used."""
    return _delayed("cfunc", args, options)


def _delayed(decorator: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if len(args) == 1 and type(args[0]) is _Function and not options:
        return LazyObject(args[0], lambda numba: getattr(numba, decorator))

    def decorate(function: Any) -> Any:
        return LazyObject(function, lambda numba: getattr(numba, decorator)(*args, **options))

    return decorate
