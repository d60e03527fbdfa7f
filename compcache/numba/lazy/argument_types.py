"""Argument types as text, for keys and for display. Two arguments have the same text only if Numba gives them the same type. The native
half (`native/argument_types.c`) distinguishes at least as many types.
"""

from __future__ import annotations

import sys

from compcache.numba.fingerprints.stand_ins import jitted
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.installation import has_extensions
from compcache.numba.registered.library import find_by_name
from compcache.numba.registered.refusals import NotLazy
from compcache.numba.registered.type_texts import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["FUNCTION", "class_text", "is_derived_array", "learn_numpy", "scalar_name", "type_text"]

#: The codes of scalars. Python's and NumPy's scalars of one type share compiled code.
_SCALARS = dict(zip(NUMBERS, "b123i4567fdFD", strict=True))
_PYTHONS = {
    bool: "bool", int: "int64", float: "float64", complex: "complex128", type(None): "none", str: "unicode_type",
    bytes: "bytes",
}  # fmt: skip
_known_to_native = False


def learn_numpy(*, is_needed: bool = False) -> None:
    """Let the native half recognize NumPy's objects once NumPy is imported; import NumPy if it is needed."""
    global _known_to_native  # noqa: PLW0603 - NumPy is one per process
    if is_needed:
        __import__("numpy")
    numpy = sys.modules.get("numpy")
    if _known_to_native or numpy is None or not hasattr(numpy, "complex128"):
        return
    scalars = {getattr(numpy, name + "_" * (name == "bool")): ord(code) for name, code in _SCALARS.items()}
    _dispatch.set_array_types(numpy.ndarray, scalars)
    probe = numpy.zeros((2, 3), numpy.int16, order="F")
    probe.flags.writeable = False
    if _dispatch.type_of(probe) != b"R\3\2F" or _dispatch.type_of(probe[:1, 1:].copy()) != b"A\3\2C":
        raise ImportError(f"the arrays of NumPy {numpy.__version__} have a layout that compcache does not support")
    _known_to_native = True


def type_text(value: Any, omitted: object, given: list[Any]) -> str:
    """Return the type of an argument in Numba's words. `omitted` stands for arguments that are not given.

    Jitted functions are appended to `given`, because Numba has a type for each one.

    Raises:
        NotLazy: only Numba supports its type.
    """
    if value is omitted:
        return "omitted"
    kind = type(value)
    known = _PYTHONS.get(kind)
    if known is not None:
        return known
    if isinstance(value, tuple):
        inner = ", ".join([type_text(item, omitted, given) for item in value])
        return f"{class_text(kind)}({inner})"
    numpy = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or is_derived_array(value, numpy)):
        flags = value.flags
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        if not flags.aligned:
            raise NotLazy(f"an argument is an array of {value.dtype} that is not aligned")
        text = f"{'' if flags.writeable else 'readonly '}array({scalar_name(value.dtype)}, {value.ndim}d, {order})"
        if not _is_masked(value):
            _seen.add(text)
        elif text not in _seen:
            raise NotLazy("an argument is a masked array")  # Numba accepts one only if it has seen its type for another array
        return text
    return _other_text(value, numpy, given)


def _other_text(value: Any, numpy: Any, given: list[Any]) -> str:
    kind = type(value)
    if numpy is not None and isinstance(value, numpy.generic) and kind.__module__ == "numpy":
        name: str = value.dtype.name
        if name in _SCALARS:
            return name
    function = jitted(value)
    if function is not None:
        given.append(function)
        return FUNCTION
    raise NotLazy(f"an argument is of type {kind.__module__}.{kind.__qualname__}")


#: The text for jitted functions.
FUNCTION = "function"


def is_derived_array(value: Any, numpy: Any) -> bool:
    """Return whether this is an array of a derived class. Numba treats it as a plain array, unless a package registers
    another type for it.
    """
    return isinstance(value, numpy.ndarray) and not has_extensions()


#: The types of the arrays in calls so far.
_seen: set[str] = set()


def _is_masked(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def scalar_name(dtype: Any) -> str:
    """Return the type of an array's items in Numba's words. Raises `NotLazy`."""
    name: str = dtype.name
    if name not in _SCALARS or not dtype.isnative:
        raise NotLazy(f"an argument is an array of {dtype}")
    return name


def class_text(kind: type) -> str:
    """Return the name of a class of tuples. Raises `NotLazy` if it cannot be found under that name."""
    if kind is tuple:
        return "tuple"
    fields = getattr(kind, "_fields", None)
    if fields is None or kind.__module__ == "__main__" or not find_by_name(kind) or kind.__bases__ != (tuple,):
        raise NotLazy(f"an argument is of the class {kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__}.{kind.__qualname__}{fields}"
