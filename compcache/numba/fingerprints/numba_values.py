"""Digests Numba's objects that functions read: jitted functions, types, stencils, signatures."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.fixed_code import fixed_code
from compcache.numba.fingerprints.numba_plain import feed_stencil
from compcache.numba.fingerprints.state import state_of
from compcache.numba.registered.library import find_by_name, is_library_function, is_library_module
from compcache.numba.registered.marks import is_marked
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from compcache.numba.fingerprints.walk import Walk

    Handler = Callable[[Walk, Any, str], None]

__all__ = ["declared_locals", "handlers", "is_plain_type", "name_of_class"]


def handlers() -> list[tuple[Any, Handler]]:
    """Return the handlers by type. The first match is used."""
    from llvmlite import ir
    from numba.core import types
    from numba.core.ccallback import CFunc
    from numba.core.dispatcher import Dispatcher, LiftedCode
    from numba.core.extending import _Intrinsic
    from numba.core.typing.templates import Signature
    from numba.np.ufunc.dufunc import DUFunc
    from numba.np.ufunc.gufunc import GUFunc
    from numba.np.ufunc.ufuncbuilder import UFuncDispatcher
    from numba.stencils.stencil import StencilFunc

    return [
        (LiftedCode, _lifted),
        ((Dispatcher, UFuncDispatcher), _jitted),
        (types.ExternalFunction, _external),
        (types.Type, _type),
        (DUFunc, _dufunc),
        (GUFunc, _gufunc),
        (CFunc, _cfunc),
        (_Intrinsic, _intrinsic),
        (StencilFunc, _stencil),
        (Signature, _signature),
        ((ir.Type, ir.Constant), _llvm),
    ]


# ---------------------------------------------------------------------- functions


def _jitted(walk: Walk, value: Any, where: str, *, is_frozen: bool = False) -> None:
    """Feed a dispatcher: the function that it compiles and its options, or what its code was compiled from if that is fixed."""
    function = value.py_func
    real = _real(value) if type(value) is not value.__class__ else value
    fixed = fixed_code(real, is_frozen=is_frozen) if real is not None else None
    if fixed is not None:
        walk.feed_compiled(fixed)
        return
    walk.token("jitted", value.__class__.__name__)  # a lazy function has the class of its dispatcher
    if is_library_function(function):
        walk.token("library function", function.__module__, function.__qualname__)
        return
    _options(walk, dict(value.targetoptions), where)
    for name, kind in sorted(declared_locals(value.locals).items()):
        walk.token("local", name)
        walk.value(kind, f"the type of {name!r} in {where}")
    compiler = getattr(value, "_compiler", None)
    if compiler is not None:
        walk.token("pipeline", compiler.pipeline_class.__module__, compiler.pipeline_class.__qualname__)
    walk.add_function(function, where, "named" if walk.mode == "named" else "compiled")
    is_itself = function is walk.compiled  # it may be in declaration: its signatures matter only to other readers
    if not getattr(value, "_can_compile", True) and not is_itself:
        walk.sequence(getattr(value, "nopython_signatures", ()), f"the signatures of {where}")


def _real(value: Any) -> Any:
    """Return Numba's own dispatcher for a lazy function; None while it is being created."""
    if not is_marked(type(value), "_compcache_real"):
        return None
    _ = value.targetoptions  # creates the dispatcher
    return type(value)._compcache_real(value)


def _lifted(walk: Walk, value: Any, where: str) -> None:
    walk.unknown(value, where)


def _options(walk: Walk, options: dict[str, Any], where: str) -> None:
    for key, option in sorted(options.items()):
        walk.token("option", key)
        value = getattr(option, "flags", option)  # fast-math flags in their wrapper
        walk.value(list(value) if isinstance(value, tuple) else value, f"option {key!r} of {where}")


def _intrinsic(walk: Walk, value: Any, where: str) -> None:
    walk.token("intrinsic", value._name, getattr(value, "_prefer_literal", ""))
    if is_library_function(value._defn):
        walk.token("library", value._defn.__module__, value._defn.__qualname__)
    else:
        mode, walk.mode = walk.mode, "named" if walk.mode == "named" else "run"
        walk.runs(value._defn, where)
        walk.mode = mode


def _dufunc(walk: Walk, value: Any, where: str) -> None:
    """Feed one of Numba's ufuncs: its loops in the order in which they are tried, and what further loops are compiled from."""
    walk.token("dufunc", value.identity, value._frozen)
    walk.sequence(value._dispatcher.overloads, f"the loops of {where}")
    _jitted(walk, value._dispatcher, where, is_frozen=value._frozen)


def _gufunc(walk: Walk, value: Any, where: str) -> None:
    builder = value.gufunc_builder
    walk.token("gufunc", value.signature, value.identity)
    walk.value(builder.nb_func, where)


def _cfunc(walk: Walk, value: Any, where: str) -> None:
    if walk.mode == "run":
        walk.unknown(value, where)  # such code contains its address
        return
    walk.token("cfunc")
    walk.value(value._sig, where)
    _options(walk, dict(value._compiler.targetoptions), where)
    walk.add_function(value._pyfunc, where, "named" if walk.mode == "named" else "compiled")


def _stencil(walk: Walk, value: Any, _where: str) -> None:
    feed_stencil(walk, value)


def _llvm(walk: Walk, value: Any, _where: str) -> None:
    walk.token("llvm", type(value).__qualname__, value)  # their text is complete, and the objects cache previous results


def _external(walk: Walk, value: Any, where: str) -> None:
    walk.token("external", value.symbol)
    walk.value(value.sig, where)


# ---------------------------------------------------------------------- types


def _signature(walk: Walk, value: Any, where: str) -> None:
    walk.token("signature")
    walk.sequence([value.return_type, value.recvr, *value.args], where)


_SCALARS = frozenset((
    "Integer", "IntegerLiteral", "Float", "Complex", "Boolean", "BooleanLiteral", "NoneType", "UnicodeType", "StringLiteral",
    "Bytes", "NPDatetime", "NPTimedelta", "RawPointer", "Opaque", "VoidType", "SliceType",
))  # fmt: skip


def is_plain_type(value: Any) -> bool:
    """Return whether the text of a type identifies it: numbers, and arrays of numbers."""
    kind = type(value)
    if not kind.__module__.startswith("numba.core.types"):
        return False
    if kind.__name__ == "Array":
        return is_plain_type(value.dtype)
    if kind.__name__ in ("UniTuple", "Tuple"):
        return all(map(is_plain_type, value.types))
    return kind.__name__ in _SCALARS


def _type(walk: Walk, value: Any, where: str) -> None:
    """Feed a type by its structure. The name is not enough: for example, that of a namedtuple lacks the fields."""
    kind = type(value)
    walk.token("type", kind.__module__, kind.__qualname__)
    if is_plain_type(value):
        walk.token("text", value)
        return
    if walk.is_again(value):
        return
    if not is_library_module(kind.__module__) and walk.mode != "run":
        _extension_type(walk, value, where)
    _structure(walk, value, where)


def _structure(walk: Walk, value: Any, where: str) -> None:
    """Feed that by which Numba's own code knows a type."""
    kind = type(value)
    dispatcher = getattr(value, "dispatcher", None)
    if dispatcher is not None:
        walk.value(dispatcher, where)
        return
    if kind.__name__ in ("ClassType", "ClassInstanceType"):
        _jitclass(walk, value, where)
        return
    if hasattr(value, "typing_key"):
        walk.value(value.typing_key, where)
        return
    if kind.__name__ == "Omitted" or hasattr(value, "literal_value"):
        # The key of a value that cannot be hashed is its address.
        _component(walk, value.value if kind.__name__ == "Omitted" else value.literal_value, where)
        return
    key = value.key
    if key == value.name:
        walk.token("text", _text(value, where))
    else:
        _component(walk, key, where)
    for name, part in sorted(vars(value).items()):
        if name != "name" and _is_structure(part):
            walk.token("component", name)
            _component(walk, part, where)


def _extension_type(walk: Walk, value: Any, where: str) -> None:
    """Feed what a user's code that runs while Numba compiles can read from an instance of its type, even if the type's name contains it."""
    for name, part in sorted(state_of(value).items()):
        if name != "name" and not _is_structure(part) and not _is_derived(type(value), name):
            walk.token("attribute", name)
            walk.value(part, f"{where}, {name!r}")


def _is_derived(kind: type, name: str) -> bool:
    """Return whether an attribute is a result that an instance keeps after the first request."""
    return any(isinstance(vars(base).get(name), functools.cached_property) for base in kind.__mro__)


def _component(walk: Walk, part: Any, where: str) -> None:
    """Feed a part of a type. A class must be found in its module, because types are pickled by name."""
    for item in part if isinstance(part, (tuple, list)) else [part]:
        if isinstance(item, type) and not is_library_module(item.__module__):
            name = name_of_class(item)
            if name is None:
                raise Unidentifiable(
                    f"{where} has a type with the class {item.__module__}.{item.__qualname__}, "
                    "which cannot be found in its module under any name"
                )
            if name != item.__qualname__:
                walk.token("found as", name)
    walk.value(part, where)


def declared_locals(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the types that a program gives to variables with ``locals=``.

    A compilation adds the versions of these variables (``result.1``) to the same dictionary.
    """
    return {name: kind for name, kind in (given or {}).items() if "." not in name}


def name_of_class(cls: type) -> str | None:
    """Return the name under which a class is found in its module: its own, or that of a variable; None if there is none.

    For example, the class of ``Rows = namedtuple("Row", ...)`` has another name than its variable.
    """
    if find_by_name(cls):
        return cls.__qualname__
    variables = vars(sys.modules[cls.__module__]).copy() if cls.__module__ in sys.modules else {}  # other threads may set some
    names = [name for name, value in variables.items() if value is cls]
    return min(names) if names else None


def _is_structure(part: Any) -> bool:
    from numba.core import types

    if isinstance(part, (tuple, list)):
        return any(map(_is_structure, part))
    if isinstance(part, dict):
        return any(map(_is_structure, part.values()))
    return isinstance(part, (types.Type, type))


def _jitclass(walk: Walk, value: Any, where: str) -> None:
    kind = getattr(value, "class_type", value)
    walk.token("jitclass", kind.class_name)
    if kind is not value and walk.is_again(kind):
        return
    walk.value(dict(kind.struct), f"the fields of {where}")
    for table in (kind.jit_methods, kind.jit_props, kind.jit_static_methods):
        walk.value(dict(table), f"the methods of {where}")


def _text(value: Any, where: str) -> str:
    text = str(value)
    if " at 0x" in text or "object at " in text:
        raise Unidentifiable(f"{where} has the type {text}, which differs between processes")
    return text
