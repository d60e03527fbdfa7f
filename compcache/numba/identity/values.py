"""How the values that a function reads are digested, one handler per kind of value."""

from __future__ import annotations

import sys
import types as python_types
from typing import TYPE_CHECKING, Any

from compcache.numba.identity.library_code import is_library_module
from compcache.numba.identity.type_text import type_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.numba.identity.fingerprint import Walk

    Handler = Callable[[Walk, Any, str], None]

__all__ = ["handler_of"]


def _plain_function(walk: Walk, value: Any, where: str) -> None:
    """A plain function: its own code is compiled only through an overload, but what it says may still matter."""
    walk.overloads(value, where)
    if is_library_module(value.__module__) and "<locals>" not in value.__qualname__:
        walk.token("library function", value.__module__, value.__qualname__)
    else:
        walk.add_function(value, where, soft=True)


def _sequence(walk: Walk, value: Any, where: str) -> None:
    kind = type(value)
    walk.token("items", kind.__name__)
    if kind not in (tuple, list):
        walk.value(kind, where)
    walk.sequence(value, f"an item of {where}")


def _set(walk: Walk, value: Any, where: str) -> None:
    walk.token("set", type(value).__name__)
    walk.sequence(sorted(value, key=lambda item: (type(item).__name__, repr(item))), f"an item of {where}")


def _dict(walk: Walk, value: Any, where: str) -> None:
    walk.token("dict", type(value).__name__, len(value))
    for key, item in value.items():
        walk.value(key, f"a key of {where}")
        walk.value(item, f"{where}[{key!r}]")


def _class(walk: Walk, value: Any, where: str) -> None:
    import enum

    walk.token("class", value.__module__, value.__qualname__)
    walk.overloads(value, where)
    if is_library_module(value.__module__):
        return
    if hasattr(value, "class_type"):
        walk.unknown(value, where + " (a jitclass)")
    elif issubclass(value, enum.Enum):
        walk.sequence([(name, member.value) for name, member in value.__members__.items()], where)
    elif issubclass(value, tuple) and hasattr(value, "_fields"):
        walk.sequence(value._fields, where)


def _array(walk: Walk, value: Any, where: str) -> None:
    if value.dtype.hasobject:
        walk.unknown(value, f"{where} (an array of objects)")
        return
    flags = value.flags
    walk.token("array", repr(value.dtype) if value.dtype.names else value.dtype.str, value.shape,
               flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable)  # fmt: skip
    walk.token("data", value.tobytes())


def _scalar(walk: Walk, value: Any, where: str) -> None:
    if value.dtype.hasobject:
        walk.unknown(value, where)
    else:
        walk.token("scalar", repr(value.dtype) if value.dtype.names else value.dtype.str, value.tobytes())


def _jitted(walk: Walk, value: Any, where: str) -> None:
    """A dispatcher: what it compiles, and how."""
    function = value.py_func
    walk.token("jitted", type(value).__name__)
    if is_library_module(function.__module__) and "<locals>" not in function.__qualname__:
        walk.token("library function", function.__module__, function.__qualname__)
        return
    options = dict(value.targetoptions)
    _options(walk, options, where)
    walk.token("locals", sorted((k, type_text(v)) for k, v in (value.locals or {}).items()))
    compiler = getattr(value, "_compiler", None)
    if compiler is not None:
        walk.token("pipeline", compiler.pipeline_class.__module__, compiler.pipeline_class.__qualname__)
    soft, walk._soft = walk._soft, False
    try:
        walk.add_function(value.py_func, where)
    finally:
        walk._soft = soft
    if not getattr(value, "_can_compile", True):
        walk.token("signatures", *[type_text(s) for s in getattr(value, "nopython_signatures", ())])


def _options(walk: Walk, options: dict[str, Any], where: str) -> None:
    for key, option in sorted(options.items()):
        walk.token("option", key)
        value = getattr(option, "flags", option)  # fast-math flags in their wrapper
        walk.value(list(value) if isinstance(value, tuple) else value, f"option {key!r} of {where}")


def _intrinsic(walk: Walk, value: Any, where: str) -> None:
    walk.token("intrinsic", value._name)
    if is_library_module(value._defn.__module__) and "<locals>" not in value._defn.__qualname__:
        walk.token("library", value._defn.__module__, value._defn.__qualname__)
    else:
        walk.add_function(value._defn, where)


def _ufunc(walk: Walk, value: Any, where: str) -> None:
    inner = getattr(value, "_dispatcher", None)
    if inner is not None:
        walk.token("dufunc", value.identity)
        walk.value(inner, where)
        return
    walk.token("ufunc", getattr(value, "__name__", ""), *value.types)
    if is_library_module(getattr(value, "__module__", "numpy")):
        return
    walk.overloads(value, where)


def _gufunc(walk: Walk, value: Any, where: str) -> None:
    builder = value.gufunc_builder
    walk.token("gufunc", value.signature, value.identity)
    walk.value(builder.nb_func, where)


def _cfunc(walk: Walk, value: Any, where: str) -> None:
    walk.token("cfunc", type_text(value._sig))
    _options(walk, dict(value._compiler.targetoptions), where)
    walk.add_function(value._pyfunc, where)


def _numba_type(walk: Walk, value: Any, where: str) -> None:
    dispatcher = getattr(value, "dispatcher", None)
    if dispatcher is not None:
        walk.token("type of")
        walk.value(dispatcher, where)
        return
    walk.token("type", f"{type(value).__module__}.{type(value).__qualname__}", type_text(value, where))


def _external(walk: Walk, value: Any, where: str) -> None:
    walk.token("external", value.symbol, type_text(value.sig, where))


def _signature(walk: Walk, value: Any, where: str) -> None:
    walk.token("signature", type_text(value, where))


def _dtype(walk: Walk, value: Any, where: str) -> None:
    if value.hasobject:
        walk.unknown(value, where)
    else:
        walk.token("dtype", repr(value) if value.names else value.str, value.itemsize, value.isalignedstruct)


def _library_object(walk: Walk, value: Any, where: str) -> None:
    walk.by_name(value, where)
    walk.overloads(value, where)


def _unknown(walk: Walk, value: Any, where: str) -> None:
    walk.overloads(value, where)
    walk.unknown(value, where)


def _range(walk: Walk, value: Any, _where: str) -> None:
    walk.token("repr", type(value).__name__, repr(value))


def _enum_member(walk: Walk, value: Any, where: str) -> None:
    walk.value(type(value), where)
    walk.token("member", value.name)


_HANDLERS: dict[type, Callable[[Walk, Any, str], None]] = {
    python_types.FunctionType: _plain_function,
    python_types.BuiltinFunctionType: _library_object,
    python_types.MethodDescriptorType: _library_object,
    python_types.WrapperDescriptorType: _library_object,
    python_types.GetSetDescriptorType: _library_object,
    tuple: _sequence,
    list: _sequence,
    set: _set,
    frozenset: _set,
    dict: _dict,
    range: _range,
    slice: _range,
}


def handler_of(value: Any) -> Callable[[Walk, Any, str], None]:
    """What digests a value."""
    known = _HANDLERS.get(type(value))
    if known is not None:
        return known
    for test, handler in _late_handlers():
        if isinstance(value, test):
            return handler
    if is_library_module(type(value).__module__) and _is_found_by_name(value):
        return _library_object
    return _unknown


def _is_found_by_name(value: Any) -> bool:
    """Whether a library holds this very object under the name that it bears."""
    module, name = (
        getattr(value, "__module__", None),
        getattr(value, "__qualname__", getattr(value, "__name__", None)),
    )
    if not is_library_module(module) or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


_late: list[tuple[Any, Callable[[Walk, Any, str], None]]] = []


def _late_handlers() -> list[tuple[Any, Callable[[Walk, Any, str], None]]]:
    if not _late:
        import enum

        import numpy as np
        from numba.core import types
        from numba.core.ccallback import CFunc
        from numba.core.dispatcher import Dispatcher
        from numba.core.extending import _Intrinsic
        from numba.core.typing.templates import Signature
        from numba.np.ufunc.gufunc import GUFunc
        from numba.np.ufunc.ufuncbuilder import UFuncDispatcher

        _late.extend(
            [
                ((Dispatcher, UFuncDispatcher), _jitted),
                (types.ExternalFunction, _external),
                (types.Type, _numba_type),
                (np.ndarray, _array),
                (np.generic, _scalar),
                (np.dtype, _dtype),
                (np.ufunc, _ufunc),
                (GUFunc, _gufunc),
                (CFunc, _cfunc),
                (_Intrinsic, _intrinsic),
                (Signature, _signature),
                (type, _class),
                ((tuple, list), _sequence),
                (enum.Enum, _enum_member),
            ]
        )
    return _late
