"""The parameters and results of exported kernels, and their text in compcache's signatures.

compcache's entry points convert numbers, tuples of numbers, and C-contiguous buffers. Everything else is an `object`, which the extension
module of exports converts according to the kernel's plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from compcache.errors import CompileError
from compcache.numba.compilation.plain_containers import carried_type
from compcache.numba.exports.plan import holds_arrays

__all__ = [
    "OBJECT", "Parameter", "Result", "given_types", "names_of_arguments", "parameters_of", "refusal", "result_of", "takes_any_number",
    "with_defaults",
]  # fmt: skip

OBJECT = "object"
_INTEGERS = {f"{'u' if prefix else ''}int{bits}": f"{prefix or 'i'}{bits}" for prefix in ("", "u") for bits in (8, 16, 32, 64)}
_VARIABLE_ARGUMENTS = 4  # inspect.CO_VARARGS
_SCALARS = {**_INTEGERS, "float32": "f32", "float64": "f64", "bool": "bool", "boolean": "bool"}


class Parameter(NamedTuple):
    """A parameter: its name, its Numba type, its text in compcache's signature, and the type that a caller passes.

    The two types differ if lists stand for Numba's containers.
    """

    name: str
    type: Any
    text: str
    meant: Any

    @property
    def is_object(self) -> bool:
        """Whether the extension module converts it."""
        return self.text == OBJECT


class Result(NamedTuple):
    """A result: its text in compcache's signature, and the Numba type that a caller receives."""

    text: str
    meant: Any

    @property
    def is_object(self) -> bool:
        """Whether the extension module creates it."""
        return self.text == OBJECT


def refusal(func_name: str, reason: str) -> CompileError:
    """Return the exception for a function that cannot be exported."""
    return CompileError(f"{func_name} cannot be exported: {reason}")


def takes_any_number(function: Any) -> bool:
    """Return whether a function has a parameter ``*args``."""
    return bool(function.__code__.co_flags & _VARIABLE_ARGUMENTS)


def given_types(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of the arguments that a call passes, for a signature that may be one of a dispatcher's list.

    In that list, omitted parameters have types of their own, and the arguments for ``*args`` are one tuple.
    """
    from numba.core import types

    positional = function.__code__.co_argcount
    if takes_any_number(function) and len(args) == positional + 1 and isinstance(args[-1], types.BaseTuple):
        args = (*args[:-1], *args[-1])
    while args and isinstance(args[-1], types.Omitted):
        args = args[:-1]
    return args


def names_of_arguments(function: Any, func_name: str, number: int) -> list[str]:
    """Return names for `number` arguments of a function with ``*args``.

    Raises:
        CompileError: there are too few arguments.
    """
    import inspect

    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    required = sum(parameter.default is parameter.empty for parameter in parameters) - 1
    if number < required:
        raise refusal(func_name, f"it has {required} parameters and more, but the signature has {number}")
    (rest,) = [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL]
    while any(name.startswith(rest) for name in names):
        rest += "_"
    return [*names, *[f"{rest}{place}" for place in range(number - len(names))]][:number]


def with_defaults(function: Any, func_name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of all parameters. Those that a signature omits have their default values.

    Raises:
        CompileError: there are too many types, or an omitted parameter has no default.
    """
    import inspect

    from numba.core import types

    parameters = list(inspect.signature(function).parameters.values())
    lacking = parameters[len(args) :]
    if len(args) > len(parameters) or any(parameter.default is parameter.empty for parameter in lacking):
        raise refusal(func_name, f"it has {len(parameters)} parameters, but the signature has {len(args)}")
    return (*args, *[types.Omitted(parameter.default) for parameter in lacking])


def parameters_of(function: Any, args: tuple[Any, ...], result: Any) -> list[Parameter]:
    """Return the parameters of a function for these argument types.

    Args:
        result: Numba's type of the result, which may refer to arrays among the arguments.
    """
    import inspect

    names = inspect.signature(function).parameters
    may_return = holds_arrays(result)
    return [Parameter(n, carried_type(t), _parameter_text(t, may_return=may_return), t) for n, t in zip(names, args, strict=False)]


def _parameter_text(type_: Any, *, may_return: bool) -> str:
    from numba.core import types

    if not isinstance(type_, types.Array):
        return _SCALARS.get(str(type_), OBJECT)
    element = _SCALARS.get(str(type_.dtype))
    if may_return or element is None or type_.ndim == 0 or type_.layout != "C":
        return OBJECT
    return f"{'' if type_.mutable else 'const '}{element}[{', '.join([*[':'] * (type_.ndim - 1), '::1'])}]"


def result_of(func_name: str, type_: Any) -> Result:
    """Return the result for this Numba type. Raises `CompileError` if it is a generator."""
    from numba.core import types

    if isinstance(type_, types.Generator):
        raise refusal(func_name, "it is a generator")
    return Result(_result_text(type_), type_)


def _result_text(type_: Any) -> str:
    from numba.core import types

    if type_ == types.none:
        return "void"
    if isinstance(type_, (types.Tuple, types.UniTuple)) and type_.count:
        items = [_SCALARS.get(str(types.unliteral(item))) for item in type_]
        if None not in items:
            return f"tuple[{', '.join(map(str, items))}]"
    return _SCALARS.get(str(types.unliteral(type_)), OBJECT)
