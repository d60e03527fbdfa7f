"""Encodes plans, which describe a kernel's parameters and result for the C code of exports (`native/`).

A plan consists of a head, nodes of 48 bytes, and texts that end with NUL. All numbers are little-endian. `native/objects.h` declares the
same layout. The first nodes describe the parameters. The items of a node have consecutive nodes.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numba.core import types
from numba.np import numpy_support

from compcache.numba.compilation.plain_containers import contains_type, item_types, replace_containers
from compcache.numba.registered.library import is_found_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Unsupported", "encode_plan", "holds_arrays"]

_FORMATS = {
    "bool": "?", "boolean": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H",
    "uint32": "I", "uint64": "Q", "float32": "f", "float64": "d", "complex64": "Zf", "complex128": "Zd",
}  # fmt: skip
_ORDERS = {"C": " in C order", "F": " in Fortran order", "A": ""}
_MAGIC, _VERSION, _NO_NODE = 0x504E4343, 2, 0xFFFFFFFF
#: The number of functions that this version requires in the table (`native/module.c`).
_FUNCTIONS = 47
(
    _NONE, _BOOL, _SIGNED, _UNSIGNED, _FLOAT, _COMPLEX, _OPTIONAL, _TUPLE, _NAMED_TUPLE, _ARRAY, _TEXT, _BYTES, _LIST,
    _DATE, _RECORD, _ENUM, _FIXED_TEXT, _FIXED_BYTES, _TYPED_LIST, _DICTIONARY, _SET,
) = range(21)  # fmt: skip
_LISTS = (_LIST, _TYPED_LIST, _DICTIONARY, _SET)
_LAYOUTS = {"C": 1, "F": 2, "A": 0}
_READ_ONLY, _OWNED = 4, 8
#: The size in bytes of the header before the items of a list: size, allocated size, and whether the list was changed.
_PAYLOAD_HEAD = 17
#: The size in bytes of a record parameter's variable: the address of the record, and the object that owns the record.
_RECORD_PLACE = 16


class Unsupported(Exception):  # noqa: N818 - its message becomes a CompileError
    """Raised if a type has no conversion. The message names the type."""


class _Node:
    """The fields of a node, in the order in which `encode` writes them."""

    def __init__(self, kind: int, size: int, **fields: int) -> None:
        self.kind = kind
        self.offset = 0
        self.size = size
        self.first = self.count = self.detail = self.flags = self.itemsize = 0
        self.name = self.expected = self.text = self.format = 0
        self.__dict__.update(fields)

    def encode(self) -> bytes:
        """Return the encoded node."""
        return struct.pack("<12I", *vars(self).values())


def encode_plan(function: str, context: Any, parameters: Sequence[tuple[str, Any]], result: Any) -> bytes:
    """Return the encoded plan of a kernel. Raise `Unsupported` if one of the types has no conversion.

    `function` is the func_name, for error messages. `parameters` are the name and the Numba type of each parameter that is an object.
    `result` is the Numba type of a result that is an object; None for any other result.
    """
    planner = _Planner(context, is_owned=result is not None and holds_arrays(result))
    for name, type_ in parameters:
        planner.add_parameter(name, type_)
    planner.finish_parameters()
    number = _NO_NODE if result is None else planner.add_result(result)
    name_at = planner.add_text(function)
    head = struct.pack("<8I", _MAGIC, _VERSION, _FUNCTIONS, len(planner.nodes), len(parameters), number, name_at, 0)
    return b"".join([head, *[node.encode() for node in planner.nodes], bytes(planner.texts)])


def holds_arrays(type_: Any) -> bool:
    """Return whether a value of this type may refer to an array or to bytes."""
    return contains_type(type_, (types.Array, types.Bytes))


class _Planner:
    """Collects the nodes and texts of a plan. `is_owned` is whether the result may refer to an argument, which must then stay alive."""

    def __init__(self, context: Any, *, is_owned: bool) -> None:
        self.nodes: list[_Node] = []
        self.texts = bytearray(b"\0")
        self._context = context
        self._array_flags = _OWNED if is_owned else 0
        self._unfinished: list[tuple[str, _Node, Any]] = []

    def add_text(self, text: str, *more: str) -> int:
        """Add one or more consecutive texts, and return the offset of the first text."""
        offset = len(self.texts)
        for part in (text, *more):
            self.texts += part.encode("utf-8", "surrogatepass") + b"\0"
        return offset

    def add_parameter(self, name: str, type_: Any) -> None:
        """Add a parameter's node. `finish_parameters` adds the nodes of its items. Raise `Unsupported` if the type has no conversion."""
        with _name_in_errors(f"parameter {name!r}"):
            node = self._create_node(type_, is_parameter=True)
        node.name, node.expected = self.add_text(name), self.add_text(_describe_type(type_))
        self.nodes.append(node)
        self._unfinished.append((name, node, type_))

    def finish_parameters(self) -> None:
        """Add the nodes of the parameters' items. The caller calls this method once, after the last `add_parameter`.

        Raise `Unsupported` if the type of an item has no conversion.
        """
        for name, node, type_ in self._unfinished:
            with _name_in_errors(f"parameter {name!r}"):
                self._add_items(node, type_, is_parameter=True)

    def add_result(self, type_: Any) -> int:
        """Add the node of the result and the nodes of its items, and return the number of the result's node.

        Raise `Unsupported` if the type of the result or of an item has no conversion.
        """
        number = len(self.nodes)
        with _name_in_errors("the result"):
            node = self._create_node(type_, is_parameter=False)
            self.nodes.append(node)
            self._add_items(node, type_, is_parameter=False)
        return number

    def _size_of(self, type_: Any) -> int:
        """Return the size in bytes of a value of this type in memory, with lists in place of containers."""
        return int(self._context.get_abi_sizeof(self._context.get_data_type(replace_containers(type_))))

    def _alignment_of(self, type_: Any) -> int:
        """Return the alignment in bytes of a value of this type in memory, with lists in place of containers."""
        return int(self._context.get_abi_alignment(self._context.get_data_type(replace_containers(type_))))

    def _create_node(self, type_: Any, *, is_parameter: bool, in_list: bool = False) -> _Node:
        """Return a new node for a type, without its items. Raise `Unsupported` if the type has no conversion.

        `is_parameter` is whether the node is part of a parameter, not of the result. `in_list` is whether the value is inside a list.
        """
        kind = _find_kind(type_)
        if kind is None or (is_parameter and kind in (_FIXED_TEXT, _FIXED_BYTES)):
            raise Unsupported(f"exports do not support the type {type_}")
        size = 0 if kind == _NONE else self._size_of(type_)
        if kind == _ARRAY:
            return self._create_array_node(type_, size, is_parameter=is_parameter, in_list=in_list)
        if kind in _LISTS:
            return self._create_list_node(kind, replace_containers(type_), size, is_parameter=is_parameter)
        size = _RECORD_PLACE if kind == _RECORD and is_parameter else size
        return _Node(kind, size, **self._add_fields(kind, type_, is_item=is_parameter and in_list))

    def _add_fields(self, kind: int, type_: Any, *, is_item: bool) -> dict[str, int]:
        """Return the fields of a node other than its kind and size, and add the texts to which the fields refer.

        `is_item` is whether the value is in a list of a parameter, which owns its texts and bytes. Raise `Unsupported` if the type has no
        conversion.
        """
        if kind == _NAMED_TUPLE:
            return {"text": self._add_class_name(type_.instance_class, "a named tuple")}
        if kind == _ENUM:
            return {"text": self._add_class_name(type_.instance_class, "an enumeration")}
        if kind in (_DATE, _RECORD):
            return {"text": self.add_text(_require_text(_element_text(type_), type_))}
        if kind in (_FIXED_TEXT, _FIXED_BYTES):
            return {"detail": type_.count}
        return {"flags": _OWNED} if kind in (_TEXT, _BYTES) and is_item else {}

    def _create_array_node(self, type_: Any, size: int, *, is_parameter: bool, in_list: bool) -> _Node:
        """Return a new node for an array. See `_create_node` for the flags and the exception."""
        flags = _LAYOUTS[type_.layout] | (0 if type_.mutable else _READ_ONLY)
        if is_parameter:
            flags |= _OWNED if in_list else self._array_flags
        text = _require_text(_element_text(type_.dtype), f"array of {type_.dtype}")
        return _Node(
            _ARRAY, size, detail=type_.ndim, flags=flags, itemsize=self._size_of(type_.dtype), text=self.add_text(text),
            format=self.add_text(_FORMATS.get(str(type_.dtype), "")),
        )  # fmt: skip

    def _create_list_node(self, kind: int, type_: Any, size: int, *, is_parameter: bool) -> _Node:
        """Return a new node for a list, or for a container that is passed as a list.

        Raise `Unsupported` if the list is part of a parameter (`is_parameter`), and contains records or lists.
        """
        if is_parameter and (isinstance(type_.dtype, types.Record) or contains_type(type_.dtype, (types.List,))):
            raise Unsupported(f"exports do not support lists of {type_.dtype} in parameters")
        items_offset = _PAYLOAD_HEAD + -_PAYLOAD_HEAD % self._alignment_of(type_.dtype)
        return _Node(kind, size, detail=items_offset, itemsize=self._size_of(type_.dtype))

    def _add_class_name(self, cls: Any, description: str) -> int:
        """Add the module and the name of a class, and return the offset of these two texts.

        Raise `Unsupported` if the module does not define the class under this name. The message says with `description` what the class is.
        """
        if not is_found_by_name(cls):
            raise Unsupported(f"the module {cls.__module__} does not define {cls.__qualname__}, {description}, under this name")
        return self.add_text(cls.__module__, cls.__qualname__)

    def _add_items(self, node: _Node, type_: Any, *, is_parameter: bool, in_list: bool = False) -> None:
        """Add the nodes of a node's items and, recursively, of the items' items. See `_create_node` for the flags.

        Raise `Unsupported` if the type of an item has no conversion, or a parameter contains a record.
        """
        items = item_types(type_)
        if not items:
            return
        is_list = node.kind in _LISTS
        if node.kind == _OPTIONAL:
            node.detail = self._size_of(type_.type)
        nodes = [self._create_node(item, is_parameter=is_parameter, in_list=in_list or is_list) for item in items]
        if is_parameter and any(item_node.kind == _RECORD for item_node in nodes):
            raise Unsupported(f"{type_} contains a record, which exports do not support in parameters")
        node.first, node.count = len(self.nodes), len(nodes)
        offset = 0
        for item, item_node in zip(items, nodes, strict=True):
            if not is_list:
                offset += -offset % self._alignment_of(item)
                item_node.offset = offset
                offset += self._size_of(item)
        self.nodes += nodes
        for item, item_node in zip(items, nodes, strict=True):
            self._add_items(item_node, item, is_parameter=is_parameter, in_list=in_list or is_list)


@contextmanager
def _name_in_errors(subject: str) -> Iterator[None]:
    """Add to the message of an `Unsupported` error of the block the name of the parameter or result, and advice."""
    try:
        yield
    except Unsupported as error:
        raise Unsupported(f"{subject} cannot be converted: {error}; use another type") from None


def _find_kind(type_: Any) -> int | None:
    """Return the kind of the node for a Numba type, or None if the type has no conversion."""
    if isinstance(type_, types.Integer):
        return _SIGNED if type_.signed else _UNSIGNED
    kinds = {
        types.NoneType: _NONE, types.Boolean: _BOOL, types.Float: _FLOAT, types.Complex: _COMPLEX, types.Optional: _OPTIONAL,
        types.BaseNamedTuple: _NAMED_TUPLE, types.BaseTuple: _TUPLE, types.Array: _ARRAY, types.UnicodeType: _TEXT,
        types.Bytes: _BYTES, types.List: _LIST, types.NPDatetime: _DATE, types.NPTimedelta: _DATE, types.Record: _RECORD,
        types.EnumMember: _ENUM, types.UnicodeCharSeq: _FIXED_TEXT, types.CharSeq: _FIXED_BYTES, types.ListType: _TYPED_LIST,
        types.DictType: _DICTIONARY, types.Set: _SET,
    }  # fmt: skip
    return next((kind for cls, kind in kinds.items() if isinstance(type_, cls)), None)


def _require_text(text: str | None, type_: Any) -> str:
    """Return a text. Raise `Unsupported` if the text is None. The message names the type."""
    if text is None:
        raise Unsupported(f"exports do not support the type {type_}")
    return text


def _element_text(dtype: Any) -> str | None:
    """Return the text from which `numpy.dtype` creates the dtype for a Numba type: a name, or a dictionary display for a record.

    Return None if the dtype contains objects, or if NumPy has no dtype for the Numba type.
    """
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


def _describe_type(type_: Any) -> str:
    """Return a description, for error messages, of the values that a caller may pass for a parameter of this type."""
    match type_:
        case types.Array():
            text = _describe_array(type_)
        case types.Optional():
            text = f"{_describe_type(type_.type)} or None"
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
            text = f"a record of dtype {_element_text(type_)}"
        case types.EnumMember():
            text = f"a member of {type_.instance_class.__qualname__}"
        case _:
            name, _, _ = str(type_).partition("(")
            text = {"unicode_type": "str", "none": "None"}.get(name, name)
    return text


def _describe_array(type_: Any) -> str:
    """Return the description of an array type for `_describe_type`."""
    writable = "" if type_.mutable else "(writable or read-only) "
    plural = "" if type_.ndim == 1 else "s"
    order = _ORDERS[type_.layout] if type_.ndim > 1 or type_.layout == "A" else " in contiguous memory"
    return f"an array {writable}of {type_.dtype} with {type_.ndim} dimension{plural}{order}"
