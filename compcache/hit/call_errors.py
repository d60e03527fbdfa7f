"""Help texts and error messages of call targets, and the rarer kinds of pointers. Successful calls do not import this file."""

from __future__ import annotations

import math
import operator
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from compcache.errors import ArgumentBufferError, NotCachedError, TargetUnloadedError, UntrustedDirectoryError
from compcache.identity import label_of
from compcache.interrupts import reraise_interrupt
from compcache.signature import CSTR, FLOAT, OBJECT, POINTER, TUPLE
from compcache.wording import plural, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.hit.target import TypedCallTarget
    from compcache.signature import Parameter

__all__ = [
    "describe", "match_arguments", "missing_function_error", "missing_key_error", "pointer_address", "raise_not_copyable", "raise_unloaded",
    "raise_value",
]  # fmt: skip

_MAX_SHOWN = 60
_PYTHON_TYPES = {"signed": "int", "unsigned": "int", "float": "float", "bool": "bool", "void": "None", CSTR: "str", OBJECT: "object"}


def describe(target: TypedCallTarget) -> str:
    """Return the text that `help()` shows for a call target that is not unloaded."""
    signature = target.signature
    names = signature.parameter_names()
    head = ", ".join(f"{name}: {parameter}" for name, parameter in zip(names, signature.parameters, strict=True))
    lines = [f"{target._name}({head}) -> {signature.result}", "", "A compiled function.", ""]
    for name, parameter in zip(names, signature.parameters, strict=True):
        lines.append(f"    {name}: {_explain(parameter)}")
    result = _PYTHON_TYPES.get(signature.result.kind, "int") if signature.result.kind != TUPLE else str(signature.result)
    lines.append(f"    returns: {result}{' or None' if signature.result.kind == CSTR else ''}")
    lines += ["", f"From module {target.module_id} of the cache {target._context.cache_path}."]
    return "\n".join(lines)


def _explain(parameter: Parameter) -> str:
    """Return the description of a parameter: the values that it accepts."""
    if parameter.is_buffer:
        shape = f" of {plural(parameter.dimensions, 'dimension')}" if parameter.dimensions else ""
        return f"a C-contiguous buffer of {parameter.type} elements{shape}"
    if parameter.type.kind == CSTR:
        return "str (passed as UTF-8) or bytes, without NUL"
    if parameter.type.kind == OBJECT:
        return "a Python object"
    if parameter.type.kind == POINTER:
        buffer = "a buffer" if parameter.is_const else "a writable buffer (a read-only one if the function is known to only read)"
        return f"an address: int, None, a ctypes object, a call target or {buffer}"
    return f"{_PYTHON_TYPES[parameter.type.kind]} ({parameter.type})"


def raise_unloaded(target: TypedCallTarget) -> NoReturn:
    """Raise `TargetUnloadedError` for a call target that was unloaded."""
    name = target._name
    raise TargetUnloadedError(
        f"the compiled function {name!r} was unloaded: request it again from an open cache with get_target({name!r})", func_name=name
    )


def match_arguments(target: TypedCallTarget, passed: int, names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Match the arguments of a call to the parameters. Raise `TypeError` if their number or a name is wrong.

    Args:
        target: the call target.
        passed: the number of arguments passed by position.
        names: the names of the other arguments, or None.

    Returns:
        The number of the argument for each parameter, if there are names; otherwise None.
    """
    parameters = target.signature.parameters
    function = _shown_name(target)
    if names:
        return _match_names(target, passed, names)
    if passed != len(parameters):
        expected = f"{plural(len(parameters), 'argument')}, {_list_parameters(target)}" if parameters else "no arguments"
        raise TypeError(f"{function}() takes {expected}; {passed} given{_length_hint(target, passed)}")
    return None


def _match_names(target: TypedCallTarget, passed: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the number of the argument for each parameter, if some arguments are passed by name.

    Raise `TypeError` if the parameters have no names, or an argument is superfluous, repeated or missing, or a name is unknown.
    """
    function = _shown_name(target)
    parameters = [parameter.name for parameter in target.signature.parameters]
    if not any(parameters):
        raise TypeError(
            f"{function}() takes no keyword arguments: the parameters of {target.signature.text()} have no names "
            "(a signature can name them: 'f64(x: f64)')"
        )
    if passed > len(parameters):
        raise TypeError(
            f"{function}() takes {plural(len(parameters), 'argument')}, {_list_parameters(target)}; {passed + len(names)} given"
        )
    places = {number: number for number in range(passed)}
    for number, name in enumerate(names, passed):
        if name not in parameters:
            raise TypeError(f"{function}() has no parameter {name!r}: it takes {_list_parameters(target)}")
        if parameters.index(name) in places:
            raise TypeError(f"{function}() got multiple values for argument {name!r}")
        places[parameters.index(name)] = number
    missing = [_name_parameter(target, number) for number in range(len(parameters)) if number not in places]
    if missing:
        raise TypeError(f"{function}() is missing {' and '.join(missing)}")
    return tuple([places[number] for number in range(len(parameters))])


def _length_hint(target: TypedCallTarget, passed: int) -> str:
    """Return a hint for callers who pass a buffer for an address and omit its length, or "" if it does not apply."""
    kinds = [("buffer" if parameter.is_buffer else parameter.type.kind) for parameter in target.signature.parameters]
    has_length = any(first == POINTER and second in ("signed", "unsigned") for first, second in pairwise(kinds))
    if passed >= len(kinds) or not has_length:
        return ""
    return "; one buffer is passed as an address and a length if the signature has 'const u8[:]' in place of 'ptr, i64'"


def _shown_name(target: TypedCallTarget) -> str:
    """Return the function's name for messages: the label of a content name, another name as it is."""
    return label_of(target._name) or target._name


def _list_parameters(target: TypedCallTarget) -> str:
    """Return the parameters with their names and types, separated by commas."""
    return ", ".join(f"{parameter.name}: {parameter}" if parameter.name else str(parameter) for parameter in target.signature.parameters)


def _name_parameter(target: TypedCallTarget, index: int) -> str:
    """Return the name of a parameter, or its number if it has none."""
    return target.signature.parameters[index].name or f"argument {index + 1}"


def raise_value(target: TypedCallTarget, index: int, value: object) -> NoReturn:
    """Raise the error for an argument with a wrong type or value.

    Raises:
        TypeError, ValueError, OverflowError, ArgumentBufferError: which one depends on the parameter's type and the value.
    """
    parameter = target.signature.parameters[index]
    problem = f"{_shown_name(target)}(): {_name_parameter(target, index)} must be"
    given = type(value).__name__
    if parameter.is_buffer:
        raise ArgumentBufferError(f"{problem} {_describe_buffers(parameter, value)}")
    if parameter.type.kind == CSTR:
        if isinstance(value, (str, bytes)):
            raise ValueError(f"{problem} text without NUL or lone surrogates ({parameter.type})")
        raise TypeError(f"{problem} str or bytes, not {given}")
    if parameter.type.kind == POINTER:
        if isinstance(value, int):
            raise OverflowError(f"{problem} a 64-bit address (-2**63 to 2**64-1, {parameter.type}), not {_shorten_value(value)}")
        raise _pointer_error(target, index, value, problem)
    if parameter.type.kind == FLOAT:
        if _converts(math.fabs, value):
            raise OverflowError(f"{problem} a number that {parameter.type} can hold, not {_shorten_value(value)}")
        raise TypeError(f"{problem} a number ({parameter.type}), not {given}")
    if not _converts(operator.index, value):
        raise TypeError(f"{problem} an integer ({parameter.type}), not {given}")
    low, high = _value_range(parameter.type.size, signed=parameter.type.kind == "signed")
    raise OverflowError(f"{problem} between {low} and {high} ({parameter.type}), not {_shorten_value(value)}")


def _converts(convert: Callable[[Any], object], value: object) -> bool:
    """Return whether a value has the type that a conversion takes, even if its size is too large."""
    try:
        convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        reraise_interrupt(error)
        return isinstance(error, OverflowError)
    return True


def _pointer_error(target: TypedCallTarget, index: int, value: object, problem: str) -> TypeError:
    """Return the error for a value that is neither an address nor a suitable buffer."""
    parameter = target.signature.parameters[index]
    given = type(value).__name__
    try:
        with memoryview(value) as view:  # type: ignore[arg-type]
            contiguous = view.c_contiguous
    except (TypeError, ValueError, BufferError) as error:
        reraise_interrupt(error)
        reason = _exporter_reason(error)
        return TypeError(f"{problem} an address (int, None, a ctypes object, a call target) or a buffer, not {given}{reason}")
    if not contiguous:
        return ArgumentBufferError(f"{problem} an address or C-contiguous buffer, not a non-contiguous {given}: pass an address or a copy")
    declared = f"{parameter.name}: const ptr" if parameter.name else "const ptr"
    return ArgumentBufferError(
        f"{problem} an address or a writable buffer, not a read-only {given}: declare it '{declared}' if the function does not write to it"
    )


def _exporter_reason(error: Exception) -> str:
    """Return the reason why an object cannot give a buffer, as the end of a message; "" if its type has no buffers."""
    return "" if isinstance(error, TypeError) else f" ({error})"


def _shorten_value(value: object) -> str:
    """Return the representation of a value, at most `_MAX_SHOWN` characters of it, or "this" and its type if `repr` fails."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a value of the caller's, or an integer that Python refuses to print
        reraise_interrupt(error)
        return f"this {type(value).__name__}"
    return shorten(text, _MAX_SHOWN)


def _value_range(size: int, *, signed: bool) -> tuple[int, int]:
    """Return the least and the greatest value of a signed or unsigned integer type of `size` bytes."""
    bits = 8 * size
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _describe_buffers(parameter: Parameter, value: object) -> str:
    """Return a description of the buffer that a parameter requires and of the value given: "a C-contiguous f64 buffer, not list"."""
    required = f"C-contiguous {parameter.type} buffer"
    if parameter.dimensions:
        required += f" of {plural(parameter.dimensions, 'dimension')}"
    try:
        with memoryview(value) as view:  # type: ignore[arg-type]
            passed = f"{type(value).__name__} of format {view.format!r}"
            if parameter.dimensions:
                passed += f" and {plural(view.ndim, 'dimension')}"
            if view.readonly and not parameter.is_const:
                required, passed = f"writable {required}", f"read-only {passed}"
            if not view.c_contiguous:
                passed = f"non-contiguous {passed}"
    except (TypeError, ValueError, BufferError) as error:
        reraise_interrupt(error)
        return f"a {required}, not {type(value).__name__}{_exporter_reason(error)}"
    return f"a {required}, not {'an' if passed[0] in 'aeiou' else 'a'} {passed}"


def pointer_address(value: object) -> int | None:
    """Return the value of a NumPy integer, or the address in a ctypes pointer. Return None for any other value.

    The caller passes the buffers of other values. A NumPy integer is not passed as a buffer, which would contain a copy of the number.
    """
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, getattr(numpy, "integer", ())) and not isinstance(value, numpy.timedelta64):  # a duration is an integer, too
        return int(value)  # type: ignore[call-overload, no-any-return]
    ctypes = sys.modules.get("ctypes")
    if ctypes is None:
        return None
    if isinstance(value, (ctypes._Pointer, ctypes._CFuncPtr, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)):
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    if type(value).__name__ == "CArgObject":  # the result of ctypes.byref(); it has no public class
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    return None


def missing_key_error(path: str, func_name: str, variable: str) -> UntrustedDirectoryError:
    """Return the error for a pickled target from a cache whose signing key this process does not have."""
    return UntrustedDirectoryError(
        f"a pickled call target refers to function {func_name!r} of the cache {path}, whose modules are signed, but "
        f"this process has no key: open Cache({path!r}, signing_key=...) first, or set {variable}",
        path=path,
    )


def missing_function_error(path: str, func_name: str, error: NotCachedError) -> NotCachedError:
    """Return the error for a pickled target whose function its cache cannot provide any more. `error` is the error of the look-up."""
    reason = f" ({error.__cause__})" if error.__cause__ is not None else ""
    return NotCachedError(
        f"a pickled call target refers to function {func_name!r}, which the cache {path} cannot provide any more{reason}: compile it again",
        func_name=func_name,
        cache_dir=path,
    )


def raise_not_copyable() -> NoReturn:
    """Raise the `TypeError` for copying or pickling a cache."""
    raise TypeError(
        "a Cache cannot be copied or pickled, because it holds open files and loaded code: pass its path, and open the path with the "
        "settings of the other process (call targets can be pickled)"
    )
