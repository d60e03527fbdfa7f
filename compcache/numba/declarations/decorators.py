"""Defines replacements for Numba's decorators, which import Numba only if it is needed.

`njit` and `jit` return lazy functions (`compcache.numba.lazy.function`). If a function has declared signatures, the decorator looks up its
code (`signatures`). If these decorators have replaced those of an imported Numba, they return Numba's objects.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from compcache.interrupts import suppress
from compcache.numba.fingerprints.stand_ins import record_real
from compcache.numba.lazy import has_numba, has_settings_file
from compcache.numba.lazy.function import is_lazy_function, make_lazy_function
from compcache.numba.lazy.stand_ins import are_decorators_replaced, numba_decorator, numbas_object, prange, real_numba
from compcache.numba.lazy.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["cfunc", "guvectorize", "jit", "njit", "prange", "stencil", "vectorize"]

_Function = type(lambda: 0)


def njit(*args: Any, **options: Any) -> Any:
    """Replace `numba.njit`. Return a lazy function, which runs stored code without importing Numba, or a decorator that returns one.

    Numba's own `njit` is used if compilation is disabled, or if only Numba can interpret the arguments or the options.

    Args:
        args: the arguments of `numba.njit`.
        options: the options of `numba.njit`.
    """
    if "nopython" in options or "forceobj" in options:
        return numba_decorator("njit")(*args, **options)  # Numba warns about these options
    return _decorate("njit", args, options)


def jit(*args: Any, **options: Any) -> Any:
    """Replace `numba.jit`. Return a lazy function, which runs stored code without importing Numba, or a decorator that returns one.

    Numba's own `jit` is used if compilation is disabled, or if only Numba can interpret the arguments.

    Args:
        args: the arguments of `numba.jit`.
        options: the options of `numba.jit`.
    """
    return _decorate("jit", args, options)


def _decorate(decorator: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Implement `njit` and `jit`: return the decorated function, or the decorator for it.

    Numba's own decorator is used if compilation is disabled, or if only Numba can interpret the arguments. Raise `ImportError` if Numba is
    needed and cannot be imported.
    """
    if not _is_jit_disabled() and "signature_or_function" not in options:
        if len(args) == 1 and type(args[0]) is _Function:
            return _decorate_function(decorator, None, options, args[0])
        signatures = _convert_signatures(args[0]) if len(args) == 1 else None
        if signatures is not None or not args or args == (None,):
            return partial(_decorate_function, decorator, signatures, options)
    return numba_decorator(decorator)(*args, **options)


def _decorate_function(decorator: str, signatures: tuple[Any, ...] | None, options: dict[str, Any], function: Any) -> Any:
    """Decorate a Python function. Any other object is decorated by Numba.

    Without Numba, a function with signatures that is not stored becomes the kernel that was packaged beside its module. Raise
    `ImportError` if Numba is needed and not installed.
    """
    state = _create_state(function, decorator, signatures, options)
    if state is not None and signatures is None:
        return _select_result(make_lazy_function(state))
    try:
        if state is not None and not state.reason:
            from compcache.numba.declarations.signatures import declare_function

            return _select_result(declare_function(state))
        if state is not None:
            return _real_dispatcher(make_lazy_function(state))
        decorator_args = () if signatures is None else (list(signatures),)
        return numba_decorator(decorator)(*decorator_args, **options)(function)
    except ModuleNotFoundError as error:
        if signatures is None or error.name != "numba":
            raise
        from compcache.numba.kernels.find import decorate_packaged

        return decorate_packaged(function)


def _create_state(function: Any, decorator: str, signatures: tuple[Any, ...] | None, options: dict[str, Any]) -> State | None:
    """Return the state of a decorated function, or None if Numba must decorate the object."""
    return State(function, decorator, signatures, dict(options), _real_dispatcher) if _is_decoratable(function) else None


def _is_decoratable(function: Any) -> bool:
    """Return whether an object is a Python function that stand-ins decorate: not one of Numba's while its decorators are replaced."""
    return type(function) is _Function and not (are_decorators_replaced() and str(function.__module__).startswith("numba."))


def _select_result(function: Any) -> Any:
    """Return the decorator's result for a lazy object: Numba's object if Numba's own decorators are replaced, otherwise the lazy object."""
    if not are_decorators_replaced():
        return function
    return record_real(_real_dispatcher(function), function) if is_lazy_function(function) else numbas_object(function)


def _real_dispatcher(function: Any) -> Any:
    """Return Numba's dispatcher for a lazy function (`takeover.dispatchers`)."""
    from compcache.numba.takeover.dispatchers import real_dispatcher

    return real_dispatcher(function)


def _convert_signatures(signature: Any) -> tuple[Any, ...] | None:
    """Return a signature or a list of signatures, as text if the types have texts; None for an empty list or any other object."""
    from compcache.numba.registered.type_texts import is_signature, signature_expression

    signatures = signature if isinstance(signature, list) else [signature]
    return tuple([signature_expression(item) or item for item in signatures]) if signatures and all(map(is_signature, signatures)) else None


def _is_jit_disabled() -> bool:
    """Return whether compilation is disabled: by Numba's setting if Numba is imported, otherwise by $NUMBA_DISABLE_JIT.

    If the current directory has a file of settings, import Numba, which reads it.
    """
    if not has_numba() and has_settings_file():
        with suppress(ImportError):  # packaged kernels need no Numba
            real_numba()
    setting = getattr(sys.modules.get("numba.core.config"), "DISABLE_JIT", None) if has_numba() else None
    return bool(setting) if setting is not None else os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def vectorize(*args: Any, **options: Any) -> Any:
    """Replace `numba.vectorize`. Return a ufunc of stored loops, or a decorator that returns one. Numba compiles loops that are not stored.

    The ufunc or decorator is Numba's own if compilation is disabled, or only Numba can interpret the arguments.

    Args:
        args: the arguments of `numba.vectorize`.
        options: the options of `numba.vectorize`.
    """
    if _is_jit_disabled() or len(args) > 1 or "ftylist_or_function" in options:
        return numba_decorator("vectorize")(*args, **options)
    if args and type(args[0]) is _Function and not options:
        return _decorate_ufunc("vectorize", None, {}, (), args[0])
    signatures: Any = args[0] if args else []
    texts = _convert_signatures(list(signatures) if type(signatures) is tuple else signatures)
    if signatures and texts is None:
        return numba_decorator("vectorize")(*args, **options)
    return partial(_decorate_ufunc, "vectorize", texts, options, args)


def guvectorize(*args: Any, **options: Any) -> Any:
    """Replace `numba.guvectorize`. Return a decorator that returns a ufunc of stored loops. Numba compiles loops that are not stored.

    The decorator is Numba's own if compilation is disabled, or only Numba can interpret the arguments or the options. The ufunc is Numba's
    own if only Numba can run the function, or if it is parallel and has no signatures.

    Args:
        args: the arguments of `numba.guvectorize`.
        options: the options of `numba.guvectorize`.

    Raises:
        ImportError: Numba is needed and cannot be imported.
    """
    if _is_jit_disabled() or len(args) not in (1, 2) or type(args[-1]) is not str:
        return numba_decorator("guvectorize")(*args, **options)
    texts = None if len(args) == 1 else _convert_signatures(list(args[0]) if type(args[0]) is tuple else args[0])
    is_supported = texts is not None or (len(args) == 1 and _is_layout(args[0]))
    if not is_supported or "signature" in options or "is_dynamic" in options:
        return numba_decorator("guvectorize")(*args, **options)
    return partial(_decorate_ufunc, "guvectorize", texts, {**options, "signature": args[-1]}, args)


def _is_layout(text: str) -> bool:
    """Return whether a text is a valid layout in which every dimension of a result is a dimension of an argument."""
    import re

    operand = r"\((\w+(,\w+)*)?\)"
    layout = text.replace(" ", "")
    arguments, _, results = layout.partition("->")
    if re.fullmatch(f"{operand}(,{operand})*->{operand}(,{operand})*", layout) is None:
        return False
    return set(re.findall(r"\w+", results)) <= set(re.findall(r"\w+", arguments))


def cfunc(*args: Any, **options: Any) -> Any:
    """Replace `numba.cfunc`. Return a decorator that returns a callback of stored code. Numba compiles code that is not stored.

    The decorator is Numba's own if compilation is disabled, or only Numba can interpret the arguments.

    Args:
        args: the arguments of `numba.cfunc`.
        options: the options of `numba.cfunc`.
    """
    texts = _convert_signatures(args[0]) if len(args) == 1 and not isinstance(args[0], list) else None
    if _is_jit_disabled() or texts is None:
        return numba_decorator("cfunc")(*args, **options)
    return partial(_decorate_callback, texts[0], options)


def stencil(func_or_mode: Any = "constant", **options: Any) -> Any:
    """Replace `numba.stencil`. Return a stencil that stored functions call, or a decorator that returns one.

    The stencil or decorator is Numba's own if compilation is disabled, Numba is imported, or only Numba can interpret the arguments.

    Args:
        func_or_mode: the first argument of `numba.stencil`.
        options: the options of `numba.stencil`.
    """
    function = func_or_mode if type(func_or_mode) is _Function else None
    is_plain = function is not None or func_or_mode == "constant"
    if _is_jit_disabled() or not is_plain or not _STENCIL_OPTIONS.issuperset(options):
        return numba_decorator("stencil")(func_or_mode, **options)
    return _decorate_stencil(options, function) if function is not None else partial(_decorate_stencil, options)


_STENCIL_OPTIONS = frozenset(("cval", "neighborhood", "standard_indexing"))


def _decorate_stencil(options: dict[str, Any], function: Any) -> Any:
    """Return the stencil of a function. It is Numba's own stencil if Numba is imported, or if `_is_decoratable` is false."""
    if not _is_decoratable(function):
        return numba_decorator("stencil")("constant", **options)(function)
    from compcache.numba.declarations.stencils import declare_stencil

    lazy = declare_stencil(function, options)
    return record_real(numba_decorator("stencil")("constant", **options)(function), lazy) if has_numba() else lazy


def _decorate_ufunc(
    decorator: str, signatures: tuple[Any, ...] | None, options: dict[str, Any], args: tuple[Any, ...], function: Any
) -> Any:
    """Return the ufunc of a decorated function: Numba's own if it is parallel without signatures, or if only Numba can run it."""
    if decorator == "vectorize" and is_lazy_function(function):
        function = function.py_func
    state = _create_state(function, decorator, signatures, options)
    if state is not None and not state.reason:
        from compcache.numba.declarations.ufuncs import declare_ufunc

        if not state.is_parallel:
            return _select_result(declare_ufunc(state))
        if signatures:
            return declare_ufunc(state)  # a plain NumPy ufunc, not a lazy object
    numba_options = {name: value for name, value in options.items() if decorator == "vectorize" or name != "signature"}
    return numba_decorator(decorator)(*args, **numba_options)(function)


def _decorate_callback(signature: Any, options: dict[str, Any], function: Any) -> Any:
    """Return the callback of a decorated function. The callback is Numba's own if only Numba can interpret the object or the options."""
    state = _create_state(function, "cfunc", (signature,), options)
    if state is not None and not state.reason:
        from compcache.numba.declarations.callbacks import declare_callback

        return _select_result(declare_callback(state))
    return numba_decorator("cfunc")(signature, **options)(function)
