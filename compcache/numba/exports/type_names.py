"""Describes types of arguments and results for their readers: people, NumPy, and the struct module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["describe_type", "element_format", "element_text"]

_FORMATS = {
    "bool": "?", "boolean": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H",
    "uint32": "I", "uint64": "Q", "float32": "f", "float64": "d", "complex64": "Zf", "complex128": "Zd",
}  # fmt: skip
_ORDERS = {"C": " in C order", "F": " in Fortran order", "A": ""}


def element_format(dtype: Any) -> str:
    """Return the format of elements in buffers (PEP 3118); empty if only NumPy can describe them."""
    return _FORMATS.get(str(dtype), "")


def element_text(dtype: Any) -> str | None:
    """Return the text from which `numpy.dtype` creates the dtype: a name, or a literal for records; None if there is none."""
    from numba.np import numpy_support

    try:
        made = numpy_support.as_dtype(dtype)
    except NotImplementedError:
        return None
    if made.hasobject:
        return None
    return str(made.str) if made.names is None else repr(_fields(made))


def _fields(dtype: Any) -> dict[str, Any]:
    """Return the argument of `numpy.dtype` that recreates this record."""
    fields = [dtype.fields[name] for name in dtype.names]
    made = {
        "names": list(dtype.names),
        "formats": [_field(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "itemsize": int(dtype.itemsize),
    }
    return made | ({"aligned": True} if dtype.isalignedstruct else {})


def _field(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_field(base), tuple(map(int, shape)))
    return str(dtype.str) if dtype.names is None else _fields(dtype)


def describe_type(type_: Any) -> str:
    """Describe what a caller passes for this type."""
    from numba.core import types

    if isinstance(type_, types.Array):
        return _describe_array(type_)
    descriptions: dict[Any, Callable[[], str]] = {
        types.Optional: lambda: f"{describe_type(type_.type)} or None",
        types.BaseNamedTuple: lambda: f"a {type_.instance_class.__qualname__} ({', '.join(map(str, type_))})",
        types.BaseTuple: lambda: f"a tuple ({', '.join(map(str, type_))})",
        types.List: lambda: f"a list of {type_.dtype}",
        types.ListType: lambda: f"a list of {type_.dtype}",
        types.DictType: lambda: f"a dictionary of {type_.key_type} to {type_.value_type}",
        types.Set: lambda: f"a set of {type_.dtype}",
        types.Record: lambda: f"a record of dtype {element_text(type_)}",
        types.EnumMember: lambda: f"a member of {type_.instance_class.__qualname__}",
    }
    for known, describe in descriptions.items():
        if isinstance(type_, known):
            return describe()
    return {"unicode_type": "str", "none": "None"}.get(str(type_), str(type_).partition("(")[0])


def _describe_array(type_: Any) -> str:
    writable = "" if type_.mutable else "(read-only or not) "
    plural = "" if type_.ndim == 1 else "s"
    order = _ORDERS[type_.layout] if type_.ndim > 1 or type_.layout == "A" else " without gaps"
    return f"an array {writable}of {type_.dtype} with {type_.ndim} dimension{plural}{order}"
