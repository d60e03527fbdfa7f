"""Describes the types of arguments and results in error messages, for NumPy, and in buffer formats."""

from __future__ import annotations

from typing import Any

__all__ = ["describe_type", "element_format", "element_text"]

_FORMATS = {
    "bool": "?", "boolean": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H",
    "uint32": "I", "uint64": "Q", "float32": "f", "float64": "d", "complex64": "Zf", "complex128": "Zd",
}  # fmt: skip
_ORDERS = {"C": " in C order", "F": " in Fortran order", "A": ""}


def element_format(dtype: Any) -> str:
    """Return the buffer format of array elements (PEP 3118), or "" if no format is known for their Numba type."""
    return _FORMATS.get(str(dtype), "")


def element_text(dtype: Any) -> str | None:
    """Return the text from which `numpy.dtype` creates the dtype for a Numba type: a name, or a dictionary display for a record.

    Return None if the dtype contains objects, or if NumPy has no dtype for the Numba type.
    """
    from numba.np import numpy_support

    try:
        numpy_dtype = numpy_support.as_dtype(dtype)
    except NotImplementedError:
        return None
    if numpy_dtype.hasobject:
        return None
    return str(numpy_dtype.str) if numpy_dtype.names is None else repr(_record_fields(numpy_dtype))


def _record_fields(dtype: Any) -> dict[str, Any]:
    """Return the dictionary from which `numpy.dtype` recreates a record's dtype."""
    fields = [dtype.fields[name] for name in dtype.names]
    record = {
        "names": list(dtype.names),
        "formats": [_make_format(field_dtype) for field_dtype, *_ in fields],
        "offsets": [int(offset) for _, offset, *_ in fields],
        "itemsize": int(dtype.itemsize),
    }
    return record | ({"aligned": True} if dtype.isalignedstruct else {})


def _make_format(dtype: Any) -> Any:
    """Return the format of a record's field, from which `numpy.dtype` recreates the field's dtype."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_make_format(base), tuple(map(int, shape)))
    return str(dtype.str) if dtype.names is None else _record_fields(dtype)


def describe_type(type_: Any) -> str:
    """Return a description, for error messages, of the values that a caller may pass for a parameter of this type."""
    from numba.core import types

    match type_:
        case types.Array():
            text = _describe_array(type_)
        case types.Optional():
            text = f"{describe_type(type_.type)} or None"
        case types.BaseNamedTuple():
            text = f"a {type_.instance_class.__qualname__} ({', '.join(map(str, type_))})"
        case types.BaseTuple():
            text = f"a tuple ({', '.join(map(str, type_))})"
        case types.List() | types.ListType():
            text = f"a list of {type_.dtype}"
        case types.DictType():
            text = f"a dictionary of {type_.key_type} to {type_.value_type}"
        case types.Set():
            text = f"a set of {type_.dtype}"
        case types.Record():
            text = f"a record of dtype {element_text(type_)}"
        case types.EnumMember():
            text = f"a member of {type_.instance_class.__qualname__}"
        case _:
            name, _, _ = str(type_).partition("(")
            text = {"unicode_type": "str", "none": "None"}.get(name, name)
    return text


def _describe_array(type_: Any) -> str:
    """Return the description of an array type for `describe_type`."""
    writable = "" if type_.mutable else "(writable or read-only) "
    plural = "" if type_.ndim == 1 else "s"
    order = _ORDERS[type_.layout] if type_.ndim > 1 or type_.layout == "A" else " in contiguous memory"
    return f"an array {writable}of {type_.dtype} with {type_.ndim} dimension{plural}{order}"
