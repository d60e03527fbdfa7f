"""The parameter and result types that exported kernels may have, and their text in compcache's signatures."""

from __future__ import annotations

from typing import Any, NamedTuple

from compcache.errors import CompileError

__all__ = ["Parameter", "parameters_of", "refusal", "result_text"]

_INTEGERS = {
    f"{'u' if prefix else ''}int{bits}": f"{prefix or 'i'}{bits}"
    for prefix in ("", "u")
    for bits in (8, 16, 32, 64)
}


_SCALARS = {**_INTEGERS, "float32": "f32", "float64": "f64", "bool": "bool", "boolean": "bool"}


class Parameter(NamedTuple):
    """One parameter: its name, its Numba type, and its text in compcache's signature."""

    name: str
    type: Any
    text: str


def refusal(func_name: str, reason: str) -> CompileError:
    """The exception for a function that cannot be exported."""
    return CompileError(f"{func_name} cannot be exported: {reason}")


def parameters_of(function: Any, func_name: str, args: tuple[Any, ...]) -> list[Parameter]:
    """The parameters of a function for these argument types. Raises `CompileError` if one is not supported."""
    import inspect

    names = list(inspect.signature(function).parameters)
    if len(names) != len(args):
        raise refusal(func_name, f"it has {len(names)} parameters, but the signature has {len(args)}")
    return [Parameter(n, t, _parameter_text(func_name, n, t)) for n, t in zip(names, args, strict=True)]


def _parameter_text(func_name: str, name: str, type_: Any) -> str:
    from numba.core import types

    if isinstance(type_, types.Array):
        element = _SCALARS.get(str(type_.dtype))
        if type_.ndim == 0:
            raise refusal(func_name, f"parameter {name!r} is an array without dimensions")
        if type_.layout == "F" and type_.ndim > 1:
            raise refusal(func_name, f"parameter {name!r} is an array in Fortran order")
        if element is None:
            raise refusal(func_name, f"parameter {name!r} is an array of {type_.dtype}")
        return (
            f"{'' if type_.mutable else 'const '}{element}[{', '.join([*[':'] * (type_.ndim - 1), '::1'])}]"
        )
    text = _SCALARS.get(str(type_))
    if text is None:
        raise refusal(
            func_name,
            f"parameter {name!r} is of type {type_}; scalars and arrays are supported",
        )
    return text


def result_text(func_name: str, type_: Any) -> str:
    """The result type in compcache's signature. Raises `CompileError` if it is not supported."""
    from numba.core import types

    if isinstance(type_, types.Generator):
        raise refusal(func_name, "it is a generator")
    if type_ == types.none:
        return "void"
    if isinstance(type_, (types.Tuple, types.UniTuple)) and type_.count:
        items = [_SCALARS.get(str(types.unliteral(item))) for item in type_]
        if None not in items:
            return f"tuple[{', '.join(map(str, items))}]"
    text = _SCALARS.get(str(types.unliteral(type_)))
    if text is None:
        raise refusal(
            func_name, f"its result is of type {type_}; scalars, tuples of scalars and None are supported"
        )
    return text
