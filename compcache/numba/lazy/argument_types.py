"""Describes the types of arguments as text, for keys and for display.

Two arguments have the same text only if Numba gives them the same type. The native half (`native/argument_types.c`) distinguishes at least
as many types.
"""

from __future__ import annotations

import sys

from compcache.numba.fingerprints.stand_ins import lazy_jitted_of
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.installation import has_extensions
from compcache.numba.registered.library import is_found_by_name
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["FUNCTION", "NUMBERS", "class_text", "is_derived_array", "learn_numpy", "scalar_name", "type_text_of_value"]

#: The types of numbers, as Numba prints them.
NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
#: The codes of scalar types. A Python scalar and a NumPy scalar of the same type share compiled code.
_SCALARS = dict(zip(NUMBERS, "b123i4567fdFD", strict=True))
_PYTHON_TYPES = {
    bool: "bool", int: "int64", float: "float64", complex: "complex128", type(None): "none", str: "unicode_type", bytes: "bytes",
}  # fmt: skip
_native_knows_numpy = False


def learn_numpy(*, is_needed: bool = False) -> None:
    """Make the native half recognize NumPy's objects, once NumPy is imported. `is_needed` is whether to import NumPy now.

    Raise `ImportError` if NumPy is needed and not installed, or compcache does not support the layout of its arrays.
    """
    global _native_knows_numpy  # noqa: PLW0603 - a process has one NumPy
    if is_needed:
        __import__("numpy")
    numpy = sys.modules.get("numpy")
    if _native_knows_numpy or numpy is None or not hasattr(numpy, "complex128"):
        return
    scalars = {getattr(numpy, name + "_" * (name == "bool")): ord(code) for name, code in _SCALARS.items()}
    _dispatch.set_array_types(numpy.ndarray, scalars)
    probe = numpy.zeros((2, 3), numpy.int16, order="F")
    probe.flags.writeable = False
    # The native codes of a read-only and of a writable array ("R", "A"), of int16, of two dimensions, and of the order.
    if _dispatch.type_of(probe) != b"R\3\2F" or _dispatch.type_of(probe[:1, 1:].copy()) != b"A\3\2C":
        raise ImportError(f"compcache does not support the array layout of NumPy {numpy.__version__}; install another version of NumPy")
    _native_knows_numpy = True


def type_text_of_value(value: Any, omitted: object, functions: list[Any]) -> str:
    """Return the text of an argument's type. The object `omitted` marks an omitted argument.

    The text of a number or an array is in Numba's notation. Jitted functions are appended to the list `functions`, because each of them has
    its own type. Raise `NotLazy` if compcache needs Numba for the type.
    """
    if value is omitted:
        return "omitted"
    kind = type(value)
    known_text = _PYTHON_TYPES.get(kind)
    if known_text is not None:
        return known_text
    if isinstance(value, tuple):
        inner = ", ".join([type_text_of_value(item, omitted, functions) for item in value])
        return f"{class_text(kind)}({inner})"
    numpy = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or is_derived_array(value, numpy)):
        flags = value.flags
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        if not flags.aligned:
            raise NotLazy(f"an argument is an unaligned array of {value.dtype}: pass an aligned copy")
        text = f"{'' if flags.writeable else 'readonly '}array({scalar_name(value.dtype)}, {value.ndim}d, {order})"
        if not isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
            _array_texts.add(text)
        elif text not in _array_texts:  # Numba accepts a masked array only if it has seen the same type for another array
            raise NotLazy("an argument is a masked array: pass its data as an array")
        return text
    return _scalar_or_function_text(value, numpy, functions)


def _scalar_or_function_text(value: Any, numpy: Any, functions: list[Any]) -> str:
    """Return the text of a NumPy scalar, or of a jitted function, which is added to `functions`. Raise `NotLazy` for other types."""
    kind = type(value)
    if numpy is not None and isinstance(value, numpy.generic) and kind.__module__ == "numpy":
        name: str = value.dtype.name
        if name in _SCALARS:
            return name
    function = lazy_jitted_of(value)
    if function is not None:
        functions.append(function)
        return FUNCTION
    raise NotLazy(
        f"an argument has the type {kind.__module__}.{kind.__qualname__}, for which compcache needs Numba: pass numbers, texts, arrays or "
        "tuples of these"
    )


#: The text for jitted functions.
FUNCTION = "function"


def is_derived_array(value: Any, numpy: Any) -> bool:
    """Return whether a value is an array, possibly of a derived class, that Numba treats as a plain array.

    The result is False if a package may have registered another type for derived classes. Raise `NotLazy` if the installed packages cannot
    be determined.
    """
    return isinstance(value, numpy.ndarray) and not has_extensions()


#: The texts of the arrays in calls so far.
_array_texts: set[str] = set()


def scalar_name(dtype: Any) -> str:
    """Return the name of the type of an array's items, in Numba's notation. Raise `NotLazy` if code for the dtype needs Numba."""
    name: str = dtype.name
    if name not in _SCALARS:
        raise NotLazy(f"an argument has the dtype {dtype}, for which compcache needs Numba: pass numbers of one of {', '.join(_SCALARS)}")
    if not dtype.isnative:
        raise NotLazy(f"an argument has the dtype {dtype}, whose byte order is not native: convert the array with astype({name!r})")
    return name


def class_text(kind: type) -> str:
    """Return the name of a class of tuples, with the names of its fields.

    Raise `NotLazy` if the class is not a plain named tuple, or other processes cannot import it by its name.
    """
    if kind is tuple:
        return "tuple"
    fields, name = getattr(kind, "_fields", None), f"{kind.__module__}.{kind.__qualname__}"
    if fields is None or kind.__bases__ != (tuple,):
        raise NotLazy(f"an argument has the class {name}, which is derived from a tuple: pass a tuple or a named tuple")
    if kind.__module__ == "__main__":
        raise NotLazy(f"an argument has the class {name}, which other processes cannot import: define the class in a module")
    if not is_found_by_name(kind):
        raise NotLazy(f"an argument has the class {name}, which its module does not contain under this name: assign the class to the name")
    return f"{name}{fields}"
