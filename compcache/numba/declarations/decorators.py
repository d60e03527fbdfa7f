"""The decorators of Numba, which import Numba only if it is needed.

`njit` and `jit` give lazy functions (`compcache.numba.lazy.function`). With signatures, their code is looked for when they are
declared (`signatures`).
"""

from __future__ import annotations

import os
from functools import partial

from compcache.numba.declarations.signatures import declare_function, texts_of
from compcache.numba.lazy.function import make_lazy_function
from compcache.numba.lazy.stand_ins import LazyObject, prange, real_numba
from compcache.numba.lazy.state import State

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
    if _is_disabled() or "signature_or_function" in options:
        return getattr(real_numba(), decorator)(*args, **options)
    if len(args) == 1 and type(args[0]) is _Function and not options:
        return make_lazy_function(State(args[0], decorator, None, {}))
    if not args or args == (None,):
        return partial(_decorate_function, decorator, None, options)
    texts = texts_of(args[0]) if len(args) == 1 else None
    if texts is not None:
        return partial(_decorate_function, decorator, texts, options)
    try:
        numba = real_numba()
    except ImportError as error:
        return _packaged(error)
    return getattr(numba, decorator)(*args, **options)


def _decorate_function(decorator: str, signatures: tuple[str, ...] | None, options: dict[str, Any], function: Any) -> Any:
    """Decorate a function, or what Numba knows to decorate."""
    state = State(function, decorator, signatures, dict(options)) if type(function) is _Function else None
    if state is not None and signatures is None:
        return make_lazy_function(state)
    try:
        if state is not None and not state.reason:
            return declare_function(state)
        given = () if signatures is None else (list(signatures),)
        return getattr(real_numba(), decorator)(*given, **options)(function)
    except ModuleNotFoundError as error:
        if signatures is None or error.name != "numba":
            raise
        return _packaged(error)(function)


def _packaged(error: ImportError) -> Any:
    from compcache.numba.kernels.find import decorate_packaged

    return decorate_packaged(error)


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
