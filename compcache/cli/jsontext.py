"""JSON output with one item per line, for `grep` and `diff`."""

from __future__ import annotations

import json
import math
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from compcache.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fields_of", "json_option", "jsonl_option", "print_json", "print_json_lines"]

_ITEMS_PER_WRITE = 1_000

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
jsonl_option = click.option("--jsonl", "as_lines", is_flag=True, help="Print JSON Lines: an object on each line, for long lists.")


def print_json_lines(values: Iterable[Any]) -> None:
    """Print each value as JSON on its own line (https://jsonlines.org). Raise `TypeError` for a type that JSON cannot represent."""
    texts = map(_json_text, values)
    while batch := list(islice(texts, _ITEMS_PER_WRITE)):
        sys.stdout.write("\n".join(batch) + "\n")


def print_json(value: Any) -> None:
    """Print a value as JSON. Each item of a list and each field of a dict or record is on its own line.

    Records (`Record`, dataclasses and named tuples) become objects. Infinities and NaN, which JSON lacks, become strings.

    Raise `TypeError` if the value contains a type that JSON cannot represent.
    """
    if _field_names(type(value)):
        value = fields_of(value)
    if isinstance(value, dict):
        _write_lines("{}", (f"{json.dumps(str(key))}: {_field_text(item)}" for key, item in value.items()))
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
    while batch := list(islice(remaining, _ITEMS_PER_WRITE)):
        sys.stdout.write(separator + ",\n  ".join(batch))
        separator = ",\n  "
    sys.stdout.write(f"{brackets}\n" if separator == start else f"\n{closing}\n")


def _field_text(value: Any) -> str:
    """Return the JSON text of a top-level field. If the field is a list of records, each record is on its own line."""
    if isinstance(value, (list, tuple)) and value and (isinstance(value[0], dict) or _field_names(type(value[0]))):
        return "[\n    {}\n  ]".format(",\n    ".join(map(_json_text, value)))
    return _json_text(value)


def _json_text(value: Any) -> str:
    """Return a value as JSON on one line. Raise `TypeError` if the value contains a type that JSON cannot represent."""
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    """Return a value with dicts in place of records, which `json` would write as lists, and texts in place of infinities and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (str, int)) or value is None:
        return value
    if names := _field_names(type(value)):
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
