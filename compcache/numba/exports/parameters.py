"""Describes the parameters and results of exported kernels in the notation of compcache's signatures.

compcache's entry points convert numbers, tuples of numbers, and C-contiguous buffers. Every other value is an `object`, which the extension
module `_objects` converts according to the kernel's plan.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from numba.core import types

from compcache.errors import CompileError
from compcache.numba.compilation.plain_containers import replace_containers
from compcache.numba.exports.plan import holds_arrays
from compcache.wording import plural

__all__ = [
    "OBJECT", "Parameter", "Result", "add_default_types", "describe_parameters", "describe_result", "export_error",
    "has_variable_arguments", "make_argument_names", "normalize_argument_types",
]  # fmt: skip

OBJECT = "object"
_INTEGERS = {f"{'u' if prefix else ''}int{bits}": f"{prefix or 'i'}{bits}" for prefix in ("", "u") for bits in (8, 16, 32, 64)}
_SCALARS = {**_INTEGERS, "float32": "f32", "float64": "f64", "bool": "bool", "boolean": "bool"}


class Parameter(NamedTuple):
    """A parameter of a kernel.

    Attributes:
        name: the name of the parameter.
        type: the Numba type that the kernel receives.
        text: the type in the notation of compcache's signatures.
        caller_type: the Numba type that a caller passes. It differs from `type` if the kernel receives a list in place of a container.
    """

    name: str
    type: Any
    text: str
    caller_type: Any

    @property
    def is_object(self) -> bool:
        """Whether the extension module converts the argument."""
        return self.text == OBJECT


class Result(NamedTuple):
    """The result of a kernel: the type in the notation of compcache's signatures, and the Numba type that a caller receives."""

    text: str
    caller_type: Any

    @property
    def is_object(self) -> bool:
        """Whether the extension module creates the result."""
        return self.text == OBJECT


def export_error(func_name: str, reason: str) -> CompileError:
    """Return the exception for a function that cannot be exported for a reason."""
    return CompileError(f"{func_name} cannot be exported: {reason}")


def has_variable_arguments(function: Any) -> bool:
    """Return whether a function has a parameter ``*args``."""
    return bool(function.__code__.co_flags & inspect.CO_VARARGS)


def normalize_argument_types(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of the arguments that a call of a function with this signature passes.

    In a signature from a dispatcher's `nopython_signatures`, omitted parameters at the end have types of their own, and the arguments for
    ``*args`` are one tuple. The result contains neither.
    """
    positional = function.__code__.co_argcount
    if has_variable_arguments(function) and len(args) == positional + 1 and isinstance(args[-1], types.BaseTuple):
        args = (*args[:-1], *args[-1])
    while args and isinstance(args[-1], types.Omitted):
        args = args[:-1]
    return args


def make_argument_names(function: Any, func_name: str, number: int) -> list[str]:
    """Return names for `number` positional arguments of a function with ``*args``.

    Raise `CompileError` if `number` is less than the number of required parameters.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    required = sum(parameter.default is parameter.empty for parameter in parameters) - 1
    if number < required:
        raise export_error(
            func_name, f"its signature declares {plural(number, 'argument type')}, but the function requires at least {required}"
        )
    (prefix,) = [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL]
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return [*names, *[f"{prefix}{index}" for index in range(number - len(names))]][:number]


def add_default_types(function: Any, func_name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of all parameters. A parameter that the signature omits gets the type of its default value.

    Raise `CompileError` if the signature has more types than parameters, or an omitted parameter has no default value.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if len(args) > len(parameters):
        declared, accepted = plural(len(args), "argument type"), plural(len(parameters), "parameter")
        raise export_error(
            func_name, f"its signature declares {declared}, but the function has {accepted}; declare one type for each parameter"
        )
    omitted = parameters[len(args) :]
    for parameter in omitted:
        if parameter.default is parameter.empty:
            message = f"its signature declares no type for the parameter {parameter.name!r}; declare a type, or give it a default value"
            raise export_error(func_name, message)
    return (*args, *[types.Omitted(parameter.default) for parameter in omitted])


def describe_parameters(function: Any, args: tuple[Any, ...], result: Any) -> list[Parameter]:
    """Return a parameter for each argument type of a function. If the type `result` may refer to an array, all arrays are objects."""
    names = inspect.signature(function).parameters
    may_return = holds_arrays(result)
    return [
        Parameter(name, replace_containers(type_), _format_parameter_type(type_, may_return=may_return), type_)
        for name, type_ in zip(names, args, strict=False)
    ]


def _format_parameter_type(type_: Any, *, may_return: bool) -> str:
    """Return the type of a parameter in the notation of compcache's signatures. `may_return` is whether a result may refer to an array."""
    if not isinstance(type_, types.Array):
        return _SCALARS.get(str(type_), OBJECT)
    element = _SCALARS.get(str(type_.dtype))
    if may_return or element is None or type_.ndim == 0 or type_.layout != "C":
        return OBJECT
    return f"{'' if type_.mutable else 'const '}{element}[{', '.join([*[':'] * (type_.ndim - 1), '::1'])}]"


def describe_result(func_name: str, type_: Any) -> Result:
    """Return the description of a result of this Numba type. Raise `CompileError` if the type is a generator."""
    if isinstance(type_, types.Generator):
        raise export_error(
            func_name, "it is a generator, but only functions that return a value can be exported; return an array or list instead"
        )
    return Result(_format_result_type(type_), type_)


def _format_result_type(type_: Any) -> str:
    """Return the type of a result in the notation of compcache's signatures."""
    if type_ == types.none:
        return "void"
    if isinstance(type_, (types.Tuple, types.UniTuple)) and type_.count:
        items = [_SCALARS.get(str(types.unliteral(item))) for item in type_]
        if None not in items:
            return f"tuple[{', '.join(map(str, items))}]"
    return _SCALARS.get(str(types.unliteral(type_)), OBJECT)
