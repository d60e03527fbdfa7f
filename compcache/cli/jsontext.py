"""JSON output with one item per line, for `grep` and `diff`.

Listings may have a hundred thousand records. Writing them with the `json` module takes as long as reading them: it needs
a dictionary for each record, and formats the keys each time. It also rejects infinities. Here each record type becomes a template.
"""

from __future__ import annotations

import math
import sys
from itertools import islice
from json.encoder import encode_basestring_ascii as quote
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from compcache.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["fields_of", "json_option", "jsonl_option", "print_json", "print_json_lines"]

_BATCH = 1_000  # items per write

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


jsonl_option = click.option("--jsonl", "as_lines", is_flag=True, help="Print JSON Lines: an object on each line, for long lists.")


def print_json_lines(values: Iterable[Any]) -> None:
    """Print each value as JSON on its own line (https://jsonlines.org). Raise `TypeError` for a type that JSON cannot represent."""
    texts = map(_json_text, values)
    while batch := list(islice(texts, _BATCH)):
        sys.stdout.write("\n".join(batch) + "\n")


def print_json(value: Any) -> None:
    """Print a value as JSON. Each item of a list and each field of a dict or record is on its own line.

    Records (`Record`, dataclasses and named tuples) become objects. Infinities and NaN, which JSON lacks, become strings.

    Raise `TypeError` if the value contains a type that JSON cannot represent.
    """
    if _field_names(type(value)):
        value = fields_of(value)
    if isinstance(value, dict):
        _write_lines("{}", (f"{quote(str(key))}: {_field_text(item)}" for key, item in value.items()))
    elif isinstance(value, (list, tuple)):
        _write_lines("[]", map(_json_text, value))
    else:
        sys.stdout.write(f"{_json_text(value)}\n")


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, a named tuple or a `Record` by name. The values are not copied."""
    return {name: getattr(record, name) for name in _field_names(type(record))}


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the field names of a record type; an empty tuple for other types."""
    if issubclass(kind, Record):
        return kind.__slots__
    return getattr(kind, "_fields", ()) if issubclass(kind, tuple) else tuple(getattr(kind, "__dataclass_fields__", ()))


def _write_lines(brackets: str, texts: Iterable[str]) -> None:
    """Write an array or object with each text on its own line. `brackets` are its opening and closing character."""
    remaining = iter(texts)
    opening, closing = brackets[:1], brackets[1:]
    start = separator = f"{opening}\n  "
    while batch := list(islice(remaining, _BATCH)):
        sys.stdout.write(separator + ",\n  ".join(batch))
        separator = ",\n  "
    sys.stdout.write(f"{brackets}\n" if separator == start else f"\n{closing}\n")


def _field_text(value: Any) -> str:
    """Return the JSON text of a top-level field. If the field is a list of records, each record is on its own line."""
    if isinstance(value, (list, tuple)) and value and (isinstance(value[0], dict) or _field_names(type(value[0]))):
        return "[\n    {}\n  ]".format(",\n    ".join(map(_json_text, value)))
    return _json_text(value)


class _Encoders(dict[type, "Callable[[Any], str]"]):
    """The function that encodes values of a type as JSON, by type. It is made at the first look-up of the type."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        self[kind] = encoder = _make_encoder(kind)
        return encoder


_encoders = _Encoders()


def _json_text(value: Any) -> str:
    """Return a value as JSON on one line."""
    return _encoders[type(value)](value)


def _make_encoder(kind: type) -> Callable[[Any], str]:
    """Return a function that encodes values of a type as JSON. Raise `TypeError` for a type that JSON cannot represent."""
    if _field_names(kind):
        return _make_record_encoder(kind)
    for value_type, encoder in _ENCODERS_BY_TYPE.items():
        if issubclass(kind, value_type):
            return encoder
    raise TypeError(f"JSON cannot represent a value of type {kind.__name__}")


def _make_record_encoder(kind: type) -> Callable[[Any], str]:
    """Return a function that encodes records of a type as JSON objects."""
    names, encoders = _field_names(kind), _encoders
    template = f"{{{', '.join([f'{quote(name)}: %s' for name in names])}}}"
    if issubclass(kind, tuple):
        return lambda record: template % tuple([encoders[type(value)](value) for value in record])
    if len(names) == 1:  # then `attrgetter` returns the value itself, not a tuple
        return lambda record: template % _json_text(getattr(record, names[0]))
    values = attrgetter(*names)
    return lambda record: template % tuple([encoders[type(value)](value) for value in values(record)])


def _float_text(value: float) -> str:
    """Return the JSON text of a float. Infinities and NaN become strings."""
    return float.__repr__(value) if math.isfinite(value) else quote(repr(value))


def _list_text(value: Iterable[Any]) -> str:
    return f"[{', '.join(map(_json_text, value))}]"


def _dict_text(value: dict[Any, Any]) -> str:
    fields = [f"{quote(str(key))}: {_json_text(item)}" for key, item in value.items()]
    return f"{{{', '.join(fields)}}}"


_ENCODERS_BY_TYPE: dict[type | tuple[type, ...], Callable[[Any], str]] = {
    str: quote,
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: _float_text,
    type(None): lambda _: "null",
    dict: _dict_text,
    (list, tuple): _list_text,
}
