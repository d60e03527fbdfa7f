"""What call targets have to say: help texts, the wording of errors, and the rarer kinds of pointers.

None of it is needed as long as nothing is wrong and nobody asks, hence it is a file of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from compcache.errors import ArgumentBufferError, TargetUnloadedError
from compcache.signature import CSTR, POINTER, TUPLE

if TYPE_CHECKING:
    from compcache.hit.target import TypedCallTarget
    from compcache.signature import Parameter

__all__ = ["describe", "find_pointer", "raise_arity", "raise_unloaded", "raise_value"]

_PYTHON_TYPES = {"signed": "int", "unsigned": "int", "float": "float", "bool": "bool", "void": "None", CSTR: "str"}


def describe(target: TypedCallTarget) -> str:
    """What `help()` shows of one target."""
    signature = target.signature
    names = signature.parameter_names()
    head = ", ".join(f"{n}: {p}" for n, p in zip(names, signature.parameters, strict=True))
    lines = [f"{target._name}({head}) -> {signature.result}", "", "A compiled function.", ""]
    for name, parameter in zip(names, signature.parameters, strict=True):
        lines.append(f"    {name}: {_explain(parameter)}")
    result = _PYTHON_TYPES.get(signature.result.kind, "int") if signature.result.kind != TUPLE else str(signature.result)
    lines.append(f"    returns: {result}{' or None' if signature.result.kind == CSTR else ''}")
    lines += ["", f"From module {target.module_id} of the cache {target._context.cache_path}."]
    return "\n".join(lines)


def _explain(parameter: Parameter) -> str:
    if parameter.is_buffer:
        shape = f" of {_dimensions(parameter.dimensions)}" if parameter.dimensions else ""
        return f"a C-contiguous buffer of {parameter.type} elements{shape}"
    if parameter.type.kind == CSTR:
        return "str (passed as UTF-8) or bytes, without NUL"
    if parameter.type.kind == POINTER:
        return "an address: int, None, a ctypes object, a call target or a buffer"
    return f"{_PYTHON_TYPES[parameter.type.kind]} ({parameter.type})"


def raise_unloaded(target: TypedCallTarget) -> NoReturn:
    """Say that a target was unloaded, and what to do."""
    name = target._name
    raise TargetUnloadedError(
        f"the compiled function {name!r} was unloaded: Cache.unload() was called for its module, or its cache was "
        f"closed; ask an open cache for it again with get_target({name!r})",
        func_name=name,
    )


def raise_arity(target: TypedCallTarget, given: int, names: tuple[str, ...] | None) -> None:
    """Say that the number or kind of arguments is wrong, unless it is right after all."""
    expected = len(target.signature.parameters)
    name = target._name
    if names:
        raise TypeError(f"{name}() takes no keyword arguments")
    if given != expected:
        if expected == 0:
            raise TypeError(f"{name}() takes no arguments ({given} given)")
        plural = "" if expected == 1 else "s"
        raise TypeError(f"{name}() takes exactly {expected} argument{plural} ({given} given)")


def raise_value(target: TypedCallTarget, index: int, value: object) -> NoReturn:
    """Say what is wrong with one argument."""
    parameter = target.signature.parameters[index]
    where = f"{target._name}() argument {index + 1}"
    kind = type(value).__name__
    if parameter.is_buffer:
        raise ArgumentBufferError(f"{where} must be {_buffer_wish(target, index)}, not {_buffer_offer(value, parameter.dimensions)}")
    if parameter.type.kind == CSTR:
        raise TypeError(f"{where} must be str or bytes, not {kind}")
    if parameter.type.kind == POINTER:
        raise TypeError(f"{where} must be int, None, a ctypes object, a call target or a buffer, not {kind}")
    low, high = _range(parameter.type.kind == "signed", parameter.type.size)
    raise OverflowError(f"{where} must be between {low} and {high} ({parameter.type}), not {value!r}")


def _range(signed: bool, size: int) -> tuple[int, int]:
    bits = 8 * size
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _buffer_wish(target: TypedCallTarget, index: int) -> str:
    parameter = target.signature.parameters[index]
    shape = f" of {_dimensions(parameter.dimensions)}" if parameter.dimensions else ""
    return f"a C-contiguous buffer of {parameter.type}{shape}"


def _dimensions(count: int) -> str:
    return f"{count} dimension{'' if count == 1 else 's'}"


def _buffer_offer(value: object, dimensions: int) -> str:
    try:
        with memoryview(value) as view:  # type: ignore[arg-type]
            shape = [] if view.c_contiguous else ["non-contiguous"]
            shape += ["read-only"] if view.readonly else []
            count = f" and {_dimensions(view.ndim)}" if dimensions else ""
            return f"a {' '.join([*shape, type(value).__name__])} of format {view.format!r}{count}"
    except (TypeError, ValueError, BufferError):
        return type(value).__name__


def find_pointer(value: object) -> int | None:
    """The address that a pointer-like object stands for; None where it is its buffer, or nothing."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is None:
        return None
    if isinstance(value, (ctypes._Pointer, ctypes._CFuncPtr, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)):
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    if type(value).__name__ == "CArgObject":  # what ctypes.byref() returns; it has no public class
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    return None
