"""Defines stand-ins for Numba's types: ``float64``, ``float64[:, ::1]``, ``int64(float64, float64)``.

Without Numba, a stand-in can be named, subscripted, called for a signature, printed, compared and hashed like Numba's type. Any other use
imports Numba and converts the stand-in: its class and its attributes become those of Numba's type, so all references refer to Numba's type.
"""

from __future__ import annotations

import sys
from _thread import RLock
from functools import partial

from compcache.numba.lazy import when_imported
from compcache.numba.lazy.stand_ins import is_probe, real_numba
from compcache.numba.registered.marks import original
from compcache.numba.registered.type_texts import array_text, signature_expression, text_of, tuple_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["CONSTRUCTORS", "LazySignature", "LazyType", "find_type", "infer_dtype_type", "infer_type"]

_WORD = 64 if sys.maxsize > 1 << 32 else 32
_SIZES = (("int", 8), ("int", 16), ("int", 32), ("int", 64), ("uint", 8), ("uint", 16), ("uint", 32), ("uint", 64))
#: The canonical name for each of Numba's type names. `_PRINTED_NAMES` contains the printed names that differ.
_NAMES = {name: name for name in ("none", "unicode_type", "pyobject", "voidptr", "boolean")}
_NAMES |= {f"{kind}{bits}": f"{kind}{bits}" for kind, bits in (*_SIZES, ("float", 32), ("float", 64), ("complex", 64), ("complex", 128))}
_NAMES |= {f"{kind[0]}{bits // 8}": f"{kind}{bits}" for kind, bits in _SIZES}
_NAMES |= {"b1": "boolean", "bool_": "boolean", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128"}
_NAMES |= {"double": "float64", "void": "none", "string": "unicode_type", "byte": "uint8", "char": "int8", "uchar": "uint8"}
_NAMES |= {"short": "int16", "ushort": "uint16", "intc": "int32", "uintc": "uint32", "longlong": "int64", "ulonglong": "uint64"}
_NAMES |= dict.fromkeys(("intp", "int_", "ssize_t"), f"int{_WORD}") | dict.fromkeys(("uintp", "uint", "size_t"), f"uint{_WORD}")
_NAMES |= {"long_": f"int{_WORD}", "ulong": f"uint{_WORD}"}
_PRINTED_NAMES = {"boolean": "bool", "voidptr": "void*"}
_set_class: Any = object.__dict__["__class__"].__set__  # the stand-ins define `__class__` as a property, which cannot be assigned
_lock = RLock()


class _Fields:
    """The properties of a type that are known without Numba.

    Attributes:
        text: the expression of the type.
        shown: the `str` and the `repr` of the type; None if only Numba knows them.
        key: the key of Numba's type; None if only Numba knows the key.
        attributes: the attributes of the type.
        is_scalar: whether array types may have items of this type.
        real: Numba's type; None until it is requested.
    """

    __slots__ = ("attributes", "is_scalar", "key", "real", "shown", "text")

    def __init__(self, text: str, shown: tuple[str, str] | None, key: Any, attributes: dict[str, Any], *, is_scalar: bool) -> None:
        self.attributes = attributes
        self.text = text
        self.shown = shown
        self.key = key
        self.is_scalar = is_scalar
        self.real: Any = None


class LazyType:
    """A type of Numba, represented by its expression."""

    # The `__dict__` is replaced by that of Numba's type, so it must not contain any attribute.

    def __call__(self, *args: Any) -> Any:
        """Return a signature with this result type, or convert a single value to this type."""
        if all(text_of(argument) is not None for argument in args):
            return LazySignature(self, args)
        fields = _fields[id(self)]
        if len(args) == 1 and fields.is_scalar and type(args[0]) in _CAST_CLASSES and fields.text in _CASTS:
            return _CASTS[fields.text](args[0])
        return convert_to_numba_type(self)(*args)

    def __getitem__(self, item: Any, /) -> Any:
        """Return an array type with items of this type. Other subscripts have the meaning that they have for Numba's type."""
        spec = _parse_array_slices(item) if _fields[id(self)].is_scalar else None
        return _array_type(self, *spec) if spec is not None else convert_to_numba_type(self)[item]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, LazyType) and all(_fields[id(type_)].key is not None for type_ in (self, other)):
            return False  # equal types with known keys are one object
        if not isinstance(other, LazyType) and not _has_types():
            return False
        return bool(convert_to_numba_type(self) == other)

    def __hash__(self) -> int:
        key = _fields[id(self)].key
        return hash(convert_to_numba_type(self)) if key is None else hash(key)

    def __repr__(self) -> str:
        shown = _fields[id(self)].shown
        return repr(convert_to_numba_type(self)) if shown is None else shown[1]

    def __str__(self) -> str:
        shown = _fields[id(self)].shown
        return str(convert_to_numba_type(self)) if shown is None else shown[0]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of Numba's type once Numba is imported. Before that, no caller can test for Numba's class."""
        return type(convert_to_numba_type(self)) if _has_types() else LazyType

    def __getattr__(self, name: str) -> Any:
        fields = _fields[id(self)]
        if (name.startswith("__") or is_probe(name)) and not _has_types():
            raise AttributeError(f"{fields.text!r} object has no attribute {name!r}")  # other libraries test for their protocols
        if name in fields.attributes and not _has_types():
            return fields.attributes[name]
        if fields.key is not None and name in _ARRAY_ATTRIBUTES:
            raise AttributeError(f"{fields.text!r} object has no attribute {name!r}")
        return getattr(convert_to_numba_type(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(convert_to_numba_type(self), name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return convert_to_numba_type(self).__reduce_ex__(protocol)

    def __dir__(self) -> list[str]:
        return dir(convert_to_numba_type(self))

    def __lt__(self, other: Any) -> Any:
        return convert_to_numba_type(self) < other

    def __le__(self, other: Any) -> Any:
        return convert_to_numba_type(self) <= other

    def __gt__(self, other: Any) -> Any:
        return convert_to_numba_type(self) > other

    def __ge__(self, other: Any) -> Any:
        return convert_to_numba_type(self) >= other

    def _compcache_text(self) -> str:
        """Return the expression of the type, in the form in which a signature contains it."""
        return _fields[id(self)].text

    def _compcache_original(self) -> Any:
        """Import Numba if necessary, and return its own type."""
        return _real_type(_fields[id(self)])

    def _compcache_content(self, walk: Any) -> None:
        """Feed the identity of the type to a walk."""
        walk.feed_token("numba type", _fields[id(self)].text)


class LazyContainerType(LazyType):
    """A container type. Only Numba knows the items of a tuple type."""

    def __len__(self) -> int:
        return len(convert_to_numba_type(self))

    def __iter__(self) -> Any:
        return iter(convert_to_numba_type(self))

    def __contains__(self, item: Any) -> bool:
        return item in convert_to_numba_type(self)

    def __bool__(self) -> bool:
        return bool(convert_to_numba_type(self))


#: All stand-ins by expression, and their fields by id. Like Numba's types, stand-ins are few and are never freed.
_stand_ins: dict[str, LazyType] = {}
_fields: dict[int, _Fields] = {}
#: The classes of values that a call of a type converts without Numba.
_CAST_CLASSES = frozenset((bool, int, float))
#: The attributes by which programs recognize array types. Other types do not have them, and no type has `shape`.
_ARRAY_ATTRIBUTES = frozenset(("dtype", "layout", "ndim", "shape"))


def _cast_with_numpy(name: str, value: Any) -> Any:
    """Return a value as a NumPy scalar of the type with this name. Import NumPy if necessary."""
    import numpy as np

    return getattr(np, name)(value)


_CASTS: dict[str, Callable[[Any], Any]] = {"boolean": bool} | {
    name: partial(_cast_with_numpy, name) for name in _NAMES.values() if name.startswith(("int", "uint", "float", "complex"))
}


def _intern(text: str, shown: tuple[str, str] | None = None, key: Any = None, *, is_scalar: bool = False, **attributes: Any) -> LazyType:
    """Return the stand-in with this expression. Create the stand-in if it does not exist. See `_Fields` for the arguments."""
    with _lock:
        stand_in = _stand_ins.get(text)
        if stand_in is None:
            stand_in = object.__new__(LazyType if key is not None else LazyContainerType)
            _fields[id(stand_in)] = _Fields(text, shown, key, attributes, is_scalar=is_scalar)
            _stand_ins[text] = stand_in
        return stand_in


def find_type(name: str) -> Any:
    """Return the stand-in for the type with this name in Numba's namespace, or None if the type has no stand-in."""
    text = _NAMES.get(name)
    if text is None:
        return None
    type_name = _PRINTED_NAMES.get(text, text)
    return _intern(text, (type_name, type_name), type_name, is_scalar=True, name=type_name, mutable=False)


def _parse_array_slices(item: Any) -> tuple[int, str] | None:
    """Return the number of dimensions and the layout that slices give to an array type; None for any other subscript."""
    is_single = not isinstance(item, (tuple, list))
    slices = (item,) if is_single else item
    if not slices or any(type(part) is not slice or part.start is not None or part.stop is not None for part in slices):
        return None
    if not is_single and slices[0].step == 1:
        return len(slices), "F"
    return len(slices), "C" if slices[-1].step == 1 else "A"


def _array_type(dtype: Any, ndim: int, layout: str, *, readonly: bool = False) -> LazyType:
    """Return the stand-in for an array type. `readonly` arrays are not mutable."""
    name = f"{'readonly ' * readonly}array({dtype}, {ndim}d, {layout})"
    shown_texts = name, f"Array({dtype!r}, {ndim}, {layout!r}, {readonly}, aligned=True)"
    return _intern(
        array_text(str(text_of(dtype)), ndim, layout, readonly=readonly), shown_texts, (dtype, ndim, layout, not readonly, True),
        name=name, dtype=dtype, ndim=ndim, layout=layout, mutable=not readonly, aligned=True,
    )  # fmt: skip


_NAMES_BY_CLASS = {bool: "boolean", float: "float64", complex: "complex128", str: "unicode_type", type(None): "none"}


def infer_type(value: Any) -> Any:
    """Return the type of a plain value, a NumPy scalar, an array of numbers, or a tuple of these; None if only Numba can determine it."""
    kind = type(value)
    if kind.__module__ == "numpy":
        return _infer_numpy_type(value)
    if kind is int:
        return find_type("int64") if -(1 << 63) <= value < 1 << 63 else None
    if kind is tuple:
        types = [infer_type(item) for item in value]
        return _make_tuple(types) if None not in types else None
    return find_type(_NAMES_BY_CLASS.get(kind, ""))


def _infer_numpy_type(value: Any) -> Any:
    """Return the type of a NumPy scalar or array, or None if only Numba can determine the type."""
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, numpy.generic):
        return infer_dtype_type(value.dtype)
    if type(value) is not numpy.ndarray or not value.flags.aligned:
        return None
    flags = value.flags
    order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    dtype = infer_dtype_type(value.dtype)
    return None if dtype is None else _array_type(dtype, value.ndim, order, readonly=not flags.writeable)


def infer_dtype_type(dtype: Any) -> Any:
    """Return the item type for a NumPy dtype; None if only Numba can determine the type, or if the value is not a dtype."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(dtype, numpy.dtype) or not dtype.isnative:
        return None
    name = "boolean" if dtype.name == "bool" else dtype.name
    return find_type(name) if name in _ITEM_NAMES else None


_ITEM_NAMES = frozenset(name for name in _NAMES.values() if name[-1].isdigit()) | {"boolean"}


# -------------------------------------------------------------------------------------- conversion to Numba types


def _has_types() -> bool:
    """Return whether all of Numba's types are defined."""
    # Numba assigns `all_str` after the types, so a module that is being imported may lack it. `sys` stands for no module, and never has it.
    return "all_str" in vars(sys.modules.get("numba.core.types", sys))


def _real_type(fields: _Fields) -> Any:
    """Return Numba's own type for a stand-in. Import Numba if necessary."""
    if fields.real is None:
        real_numba()
        from numba.core import types

        fields.real = eval(fields.text, {}, vars(types))  # noqa: S307 - this module created the expression
    return fields.real


def convert_to_numba_type(lazy: Any) -> Any:
    """Convert a stand-in to Numba's own type, unless it was converted already, and return it. Import Numba if necessary."""
    real = _real_type(_fields[id(lazy)])  # Numba's interned type, whose class and attributes the stand-in gets
    with _lock:
        if hasattr(type(lazy), "_compcache_text"):
            object.__setattr__(lazy, "__dict__", vars(real))
            _set_class(lazy, type(real))
    return lazy


def _convert_all_types() -> None:
    """Convert all stand-ins for types to Numba's own types."""
    for lazy in list(_stand_ins.values()):
        convert_to_numba_type(lazy)


when_imported(_convert_all_types)


# -------------------------------------------------------------------------------------------------- signatures


class LazySignature:
    """A signature. Uses that need more than its types convert it to Numba's own signature."""

    __slots__ = ("_args", "_pysig", "_recvr", "_return_type")  # a change of the class requires the slots of Numba's class
    _compcache_is_signature = True
    recvr = pysig = None  # as in Numba's plain signatures

    def __init__(self, return_type: Any, args: tuple[Any, ...]) -> None:
        self._return_type = return_type
        self._args = args
        self._recvr = self._pysig = None

    @property
    def return_type(self) -> Any:
        """The type of the result."""
        return self._return_type

    @property
    def args(self) -> tuple[Any, ...]:
        """The types of the arguments."""
        return self._args

    def __eq__(self, other: object) -> Any:
        if isinstance(other, LazySignature):
            return self.args == other.args and self.return_type == other.return_type
        return convert_to_numba_signature(self) == other if _has_types() else None  # like Numba's, for an object without types

    def __hash__(self) -> int:
        return hash((self.args, self.return_type))

    def __repr__(self) -> str:
        return f"{self.args} -> {self.return_type}"

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of Numba's signatures once Numba is imported.

        The property is still necessary after the class has changed, because `isinstance` does not notice a class that changes meanwhile.
        """
        templates = sys.modules.get("numba.core.typing.templates")
        return getattr(templates, "Signature", LazySignature) if _has_types() else LazySignature

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not _has_types():
            raise AttributeError(f"'Signature' object has no attribute {name!r}")
        return getattr(convert_to_numba_signature(self), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return convert_to_numba_signature(self).__reduce_ex__(protocol)

    def __dir__(self) -> list[str]:
        return dir(convert_to_numba_signature(self))

    def _compcache_original(self) -> Any:
        """Import Numba if necessary, and return its own signature."""
        return convert_to_numba_signature(self)


def convert_to_numba_signature(lazy: Any) -> Any:
    """Convert a stand-in to Numba's own signature, and return it. Import Numba if necessary."""
    real_numba()
    from numba.core.typing.templates import Signature

    with _lock:
        if hasattr(type(lazy), "_compcache_is_signature"):
            lazy._return_type = original(lazy._return_type)
            lazy._args = tuple(map(original, lazy._args))
            _set_class(lazy, Signature)
    return lazy


# -------------------------------------------------------------------------------------- classes of Numba types


def _make_array(dtype: Any, ndim: Any, layout: Any, readonly: Any = False) -> Any:
    """Return the stand-in of an array type, or None if only Numba can check the arguments."""
    is_valid = _are_buffer_arguments(dtype, ndim, layout) and type(readonly) is bool
    return _array_type(dtype, ndim, layout, readonly=readonly) if is_valid else None


def _make_bytes(dtype: Any, ndim: Any, layout: Any) -> Any:
    """Return the stand-in of a type of bytes, or None if only Numba can check the arguments."""
    return _intern(f"Bytes({text_of(dtype)}, {ndim}, {layout!r})") if _are_buffer_arguments(dtype, ndim, layout) else None


def _are_buffer_arguments(dtype: Any, ndim: Any, layout: Any) -> bool:
    """Return whether these are a scalar type, a number of dimensions and a layout, so that a buffer type can have them."""
    return type(ndim) is int and layout in ("A", "C", "F") and type(dtype) is LazyType and _fields[id(dtype)].is_scalar


def _make_uniform_tuple(dtype: Any, count: Any) -> Any:
    """Return the stand-in of a tuple type with equal items, or None if only Numba can check the arguments."""
    text = text_of(dtype)
    is_valid = text is not None and type(count) is int and count >= 1
    return _intern(tuple_text([str(text)] * count), dtype=dtype, count=count) if is_valid else None


def _make_tuple(types: Any) -> Any:
    """Return the stand-in of a tuple type, or None if only Numba can check the arguments."""
    texts = [text_of(type_) for type_ in types] if isinstance(types, (tuple, list)) else [None]
    return _intern(tuple_text(list(map(str, texts)))) if None not in texts else None


def _make_wrapper(name: str, inner: Any) -> Any:
    """Return the stand-in of a type with one inner type, or None if only Numba can check the argument."""
    return _intern(f"{name}({text_of(inner)})") if type(inner) is LazyType else None


def _make_list(item: Any) -> Any:
    """Return the stand-in of a list type, or None if only Numba can check the argument."""
    return _intern(f"ListType({text_of(item)})") if _is_item(item) else None


def _make_dict(key: Any, value: Any) -> Any:
    """Return the stand-in of a dictionary type, or None if only Numba can check the arguments."""
    return _intern(f"DictType({text_of(key)}, {text_of(value)})") if type(key) is LazyType and _is_item(value) else None


def _is_item(type_: Any) -> bool:
    """Return whether Numba is known to accept items of this type in typed lists and dictionaries. It rejects optional items."""
    return type(type_) is LazyType or (type(type_) is LazyContainerType and str(text_of(type_)).startswith(_ITEM_PREFIXES))


_ITEM_PREFIXES = ("DictType(", "ListType(", "Tuple(", "UniTuple(")


def _make_function(signature: Any) -> Any:
    """Return the stand-in of a function type, or None if only Numba can check the signature."""
    text = signature_expression(signature) if type(signature) is LazySignature else None
    return _intern(f"FunctionType({text})", signature=signature) if text is not None else None


#: The module of each class of Numba types, and a function that returns a stand-in for a type, or None if only Numba can construct the type.
CONSTRUCTORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "Array": ("npytypes", _make_array),
    "Bytes": ("containers", _make_bytes),
    "UniTuple": ("containers", _make_uniform_tuple),
    "Tuple": ("containers", _make_tuple),
    "DictType": ("containers", _make_dict),
    "FunctionType": ("function_type", _make_function),
    "CPointer": ("misc", lambda inner: _make_wrapper("CPointer", inner)),
    "ListType": ("containers", _make_list),
    "Optional": ("misc", lambda inner: _make_wrapper("Optional", inner)),
}
