"""Converts Numba's types to expressions that denote them in the text of a signature: ``float64[:, ::1]``, ``UniTuple(int64, 2)``.

Keys contain these texts, for Numba's types and for their stand-ins (`compcache.numba.declarations.types`).
"""

from __future__ import annotations

from compcache.numba.registered.marks import is_marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["SCALARS", "array_text", "is_signature", "signature_expression", "text_of", "tuple_text"]

#: Types that Numba prints in another way than it names them.
_NAMES = {"bool": "boolean", "void*": "voidptr"}
#: The classes of Numba types whose text is a name.
SCALARS = frozenset(("Boolean", "Complex", "Float", "Integer", "NoneType", "PyObject", "RawPointer", "UnicodeType"))
#: Other types whose text follows from the texts of their parts, which are attributes.
_PARTS = {
    "CPointer": ("dtype",), "DictType": ("key_type", "value_type"), "FunctionType": ("signature",), "ListType": ("item_type",),
    "Optional": ("type",),
}  # fmt: skip


def array_text(dtype: str, ndim: int, layout: str, *, readonly: bool) -> str:
    """Return the text of an array type: with slices, or in the long form if slices cannot express the type, as for `readonly`."""
    if readonly or ndim < 1 or (ndim == 1 and layout == "F"):
        return f"Array({dtype}, {ndim}, {layout!r}{', readonly=True' if readonly else ''})"
    slices = [":"] * ndim
    if layout != "A":
        slices[0 if layout == "F" else -1] = "::1"
    return f"{dtype}[{', '.join(slices)}]"


def tuple_text(items: list[str]) -> str:
    """Return the text of a tuple type. Numba has a separate type for tuples whose items have the same type."""
    if items and len(set(items)) == 1:
        return f"UniTuple({items[0]}, {len(items)})"
    return f"Tuple(({''.join(item + ', ' for item in items).rstrip()}))"


def text_of(value: Any) -> str | None:
    """Return the text of a type, or None for a type without a text, and for any other object."""
    text: str | None = type(value)._compcache_text(value) if is_marked(type(value), "_compcache_text") else _text_of_numba_type(value)
    return text


def _text_of_numba_type(value: Any) -> str | None:
    """Return the text of a Numba type, or None for a type without a text, and for any other object."""
    kind = type(value)
    if not kind.__module__.startswith("numba.core.types."):
        return None
    name = kind.__name__
    if name in SCALARS:
        text = str(value)
        return _NAMES.get(text, text)
    if name in _PARTS and getattr(value, "initial_value", None) is None:
        parts = [getattr(value, part) for part in _PARTS[name]]
        texts = [signature_expression(part) if type(part).__name__.endswith("Signature") else text_of(part) for part in parts]
        return f"{name}({', '.join(map(str, texts))})" if None not in texts else None
    if name in ("Array", "Bytes"):
        return _text_of_buffer(value)
    items = [text_of(item) for item in value] if name in ("Tuple", "UniTuple") else [None]
    return tuple_text(list(map(str, items))) if None not in items else None


def _text_of_buffer(value: Any) -> str | None:
    """Return the text of an array type or of a type of bytes, or None if the text does not say everything about the type."""
    dtype = text_of(value.dtype)
    if dtype is None or not value.aligned or value.layout not in ("A", "C", "F"):
        return None
    if type(value).__name__ == "Bytes":
        return f"Bytes({dtype}, {value.ndim}, {value.layout!r})"  # all of these types are read-only
    return array_text(dtype, value.ndim, value.layout, readonly=not value.mutable)


def signature_expression(value: Any) -> str | None:
    """Return the text of a signature, which may be a text, a signature of Numba, its stand-in, or a tuple of types.

    The result is None for any other object, for signatures of methods, and for types without a text.
    """
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is tuple:
        return _join_types("", value)
    if not is_signature(value):
        return None
    result = text_of(value.return_type)
    return _join_types(result, value.args) if result is not None and value.recvr is None else None


def is_signature(value: Any) -> bool:
    """Return whether an object is a signature: a text, a tuple of types, or a signature of Numba or its stand-in."""
    kind = type(value)
    is_numbas = (kind.__module__, kind.__name__) == ("numba.core.typing.templates", "Signature")
    return is_numbas or kind in (str, tuple) or hasattr(kind, "_compcache_is_signature")


def _join_types(result: str, types: tuple[Any, ...]) -> str | None:
    """Return the text of a signature with this result ("" for none) and these parameter types, or None if a type has no text."""
    texts = [text_of(type_) for type_ in types]
    if None in texts:
        return None
    inner = ", ".join([text for text in texts if text])
    return f"{result}({inner}{',' * (not result and len(texts) == 1)})"
