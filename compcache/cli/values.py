"""Values on the command line: arguments of calls, definitions of global variables, results."""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING

import click

from compcache.cli.output import plural
from compcache.signature import BOOL, CSTR, FLOAT, OBJECT, POINTER, SIGNED, UNSIGNED

if TYPE_CHECKING:
    from typing import Any

    from compcache.signature import Parameter, Signature, Type

__all__ = ["parse_argument", "parse_arguments", "parse_global", "result_text"]

_FORMATS = {
    (BOOL, 1): "?",
    (SIGNED, 1): "b", (SIGNED, 2): "h", (SIGNED, 4): "i", (SIGNED, 8): "q",
    (UNSIGNED, 1): "B", (UNSIGNED, 2): "H", (UNSIGNED, 4): "I", (UNSIGNED, 8): "Q",
    (FLOAT, 4): "f", (FLOAT, 8): "d",
}  # fmt: skip
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_NULLS = ("null", "none", "nullptr")
_MAX_ELEMENTS = 1 << 28


def parse_arguments(signature: Signature, texts: tuple[str, ...], name: str) -> list[Any]:
    """Parse the arguments of a call of the function `name` with this signature.

    Raise `click.UsageError` if the number of arguments is wrong, or an argument cannot be parsed (`parse_argument`).
    """
    parameters = signature.parameters
    if len(texts) != len(parameters):
        raise click.UsageError(
            f"{name!r} takes {plural(len(parameters), 'argument')}, not {len(texts)}: its signature is {signature.text()}"
        )
    names = signature.parameter_names()
    values = []
    for number, (parameter, text) in enumerate(zip(parameters, texts, strict=True)):
        try:
            values.append(parse_argument(parameter, text))
        except (ValueError, OverflowError, struct.error, OSError) as error:
            message = f"argument {number + 1} ({names[number]}: {parameter}) cannot be {text[:40]!r}: {error}"
            raise click.UsageError(message) from error
    return values


def parse_argument(parameter: Parameter, text: str) -> Any:
    """Parse the argument for one parameter.

    Raises:
        ValueError: the text is not a value of the parameter's type.
        OverflowError, struct.error: the elements of a buffer are out of the range of their type.
        OSError: the file of an ``@FILE`` argument cannot be read.
    """
    return _parse_buffer(parameter.type, text) if parameter.is_buffer else _parse_scalar(parameter.type, text)


def _parse_scalar(type_: Type, text: str) -> Any:
    """Return the value of a parameter that is not a buffer. See `parse_argument` for the exceptions."""
    if type_.kind == CSTR:
        return os.fsencode(text)
    if type_.kind == POINTER:
        return _parse_pointer(text)
    if type_.kind == OBJECT:
        return _parse_literal(text)
    if type_.kind == BOOL:
        return _parse_bool(text)
    return _parse_float(text) if type_.kind == FLOAT else _parse_integer(text)


def _parse_literal(text: str) -> Any:
    """Return the value of a Python literal; the text itself if it is not a literal."""
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _parse_pointer(text: str) -> Any:
    """Return an address, None for null, or a buffer: ``text:TEXT`` with a NUL, or the bytes of ``@FILE``. Errors: see `parse_argument`."""
    if text.startswith("text:"):
        return memoryview(bytearray(os.fsencode(text.removeprefix("text:")) + b"\0"))
    if text.startswith("@"):
        return memoryview(_read_file(text[1:]))
    return None if text.lower() in _NULLS else _parse_integer(text)


def _parse_integer(text: str) -> int:
    """Return an integer from decimal, hexadecimal, octal or binary text; raise `ValueError` for other text."""
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("expected an integer, like 42 or 0x2a") from None


def _parse_float(text: str) -> float:
    """Return a float from decimal or hexadecimal text; raise `ValueError` for other text."""
    try:
        return float.fromhex(text) if "0x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise ValueError("expected a number, like 0.5 or 1e-3") from None


def _parse_bool(text: str) -> bool:
    """Return a Boolean from text like "true" or "0"; raise `ValueError` for other text."""
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


def _parse_buffer(type_: Type, text: str) -> Any:
    """Return a writable buffer: the elements of ``1,2,0*98``, or the bytes of ``@FILE`` (``@-``: standard input).

    Raise `ValueError` for a file that ends within an element. See `parse_argument` for other exceptions.
    """
    format_: Any = _FORMATS[type_.kind, type_.size]
    if text.startswith("@"):
        data = _read_file(text[1:])
        if len(data) % type_.size:
            raise ValueError(f"the file has {len(data)} bytes, but must have a multiple of {type_.size} bytes, the size of an element")
    else:
        values = _parse_elements(type_, text)
        data = bytearray(struct.pack(f"={len(values)}{format_}", *values))
    # An empty view cannot be cast, so cast one element and slice it off.
    return memoryview(data or bytearray(type_.size)).cast(format_)[: len(data) // type_.size]


def _read_file(path: str) -> bytearray:
    """Return the bytes of a file; of standard input for "-". Raise `OSError` if the file cannot be read."""
    if path == "-":
        return bytearray(sys.stdin.buffer.read())
    with open(path, "rb") as file:
        return bytearray(file.read())


def _parse_elements(type_: Type, text: str) -> list[Any]:
    """Return the elements of a list like ``1,2,0*98``. Raise `ValueError` for an invalid list."""
    if not text.strip():
        return []
    values: list[Any] = []
    for element in text.split(","):
        value, star, count = element.strip().partition("*")
        times = _parse_integer(count) if star else 1
        if times < 0:
            raise ValueError(f"cannot repeat {value!r} {times} times: give a count of 0 or more")
        if len(values) + times > _MAX_ELEMENTS:
            raise ValueError(f"the list has {len(values) + times} elements or more: a buffer has at most {_MAX_ELEMENTS}")
        values += [_parse_scalar(type_, value)] * times
    return values


def result_text(value: Any) -> str:
    """Return the result of a call as text, in the form of arguments."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def parse_global(text: str) -> Any:
    """Parse ``VALUE`` of ``--global NAME=VALUE`` to the definition of a global variable.

    Raise `ValueError` if `text` is not a valid definition, or `OSError` if the file of an ``@FILE`` definition cannot be read.
    """
    from compcache import globals as kinds

    prefix, colon, content = text.partition(":")
    if colon and prefix == "text":
        return kinds.Text(content)
    if colon and prefix == "bytes":
        return kinds.Bytes(bytes.fromhex(content))
    if colon and prefix == "native":
        name, _, library = content.partition("@")
        return kinds.NativeSymbol(name, library or None)
    if colon and prefix == "object":
        module, _, qualname = content.partition(":")
        return kinds.PythonObject(module, qualname)
    if text.startswith("@"):
        return kinds.Bytes(bytes(_read_file(text[1:])))
    return _parse_number_or_bool(text)


def _parse_number_or_bool(text: str) -> Any:
    """Return an integer, a float or a Boolean; raise `ValueError` for other text."""
    if text in ("true", "false"):
        return text == "true"
    for parse in (_parse_integer, _parse_float):
        try:
            return parse(text)
        except ValueError:
            continue
    raise ValueError("expected a number, true, false, or a value that starts with text:, bytes:, native:, object: or @")
