"""Docstrings of the public interface name every parameter and every field, once."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

import compcache

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODULES = ("compcache", *(f"compcache.{name}" for name in ("batch", "globals", "frontend", "errors", "dask", "numba")))
_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)+)", re.MULTILINE)


def _described(docstring: str | None) -> list[str]:
    """The names in the sections on parameters and fields."""
    sections = "".join(_SECTION.findall(inspect.cleandoc(docstring or "")))
    lines = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", sections, re.MULTILINE)
    return [name.strip("* ") for line in lines for name in line.split(",")]


def _public(value: Any) -> Iterator[tuple[str, Any]]:
    """A public value and, of a class, its own methods that no base describes."""
    yield value.__qualname__, value
    if inspect.isclass(value):
        for name, member in vars(value).items():
            function = getattr(member, "__func__", member)
            inherited = any(name in vars(base) for base in value.__mro__[1:])
            if inspect.isfunction(function) and not name.startswith("_") and not inherited:
                yield function.__qualname__, function


def _parameters(value: Any) -> set[str]:
    if inspect.isclass(value) and issubclass(value, compcache.record.Record):
        return set(value.__slots__)  # its constructor takes them by position or name
    try:
        names = set(inspect.signature(value).parameters)
    except (TypeError, ValueError):  # of a builtin; of a class whose objects have signatures
        return set()
    return {name for name in names if not name.startswith("_") and name not in ("self", "cls")}


@pytest.mark.parametrize("name", _MODULES)
def test_every_parameter_and_field_is_described(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError:
        pytest.skip("needs a package that is not here")
    common = set(re.findall(r"`(\w+)`", compcache.errors.__doc__ or ""))
    missing = {}
    for public in module.__all__:
        exported = getattr(module, public)
        for where, value in _public(exported) if callable(exported) else ():
            described = _described(value.__doc__)
            assert len(described) == len(set(described)), f"{where} describes a parameter twice"
            if inspect.isclass(value) and issubclass(value, BaseException):
                described += [*common, *re.findall(r"`(\w+)`", value.__doc__ or "")]
            if lacking := _parameters(value) - set(described):
                missing[where] = sorted(lacking)
    assert missing == {}
