"""Plans: what the C side of exports (`native/`) needs to know of a kernel's parameters and result, as bytes in its code.

A plan is a head, nodes of 48 bytes and texts that end with NUL, all little-endian; `native/objects.h` declares the same. Node
numbers begin with the parameters; the items of a node follow each other.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from compcache.numba.exports.type_names import describe_type, element_format, element_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Unsupported", "encode_plan", "holds_arrays"]

_MAGIC, _VERSION, _NO_NODE = 0x504E4343, 1, 0xFFFFFFFF
#: How many functions of the table (`native/module.c`) an exporter of this version knows.
_FUNCTIONS = 47
(
    _NONE, _BOOL, _SIGNED, _UNSIGNED, _FLOAT, _COMPLEX, _OPTIONAL, _TUPLE, _NAMED_TUPLE, _ARRAY, _TEXT, _BYTES, _LIST,
) = range(13)  # fmt: skip
_LAYOUTS = {"C": 1, "F": 2, "A": 0}
_READ_ONLY, _OWNED = 4, 8
#: What precedes the items of a list: size, allocated size, and whether it was changed.
_PAYLOAD_HEAD = 17


class Unsupported(Exception):  # noqa: N818 - a reason, which becomes a CompileError
    """There is no conversion for a type; the message says for which."""


class _Node:
    """The fields of a node, in their order."""

    def __init__(self, kind: int, size: int, **fields: int) -> None:
        self.kind = kind
        self.offset = 0
        self.size = size
        self.first = self.count = self.detail = self.flags = self.itemsize = 0
        self.name = self.wish = self.text = self.format = 0
        self.__dict__.update(fields)

    def encode(self) -> bytes:
        return struct.pack("<12I", *vars(self).values())


def encode_plan(
    function: str, context: Any, parameters: Sequence[tuple[str, Any]], result: Any
) -> bytes:
    """The plan for parameters that are objects, (name, Numba type) each, and for a result that is one, or None.

    Raises:
        Unsupported: there is no conversion for one of the types.
    """
    planner = _Planner(context, is_owned=result is not None and holds_arrays(result))
    for name, type_ in parameters:
        planner.add_parameter(name, type_)
    planner.finish_parameters()
    number = _NO_NODE if result is None else planner.add_result(result)
    name_at = planner.text(function)
    head = struct.pack(
        "<8I", _MAGIC, _VERSION, _FUNCTIONS, len(planner.nodes), len(parameters), number, name_at, 0
    )
    return b"".join([head, *[node.encode() for node in planner.nodes], bytes(planner.texts)])


def holds_arrays(type_: Any) -> bool:
    """Whether a value of this type may refer to an array."""
    from numba.core import types

    if isinstance(type_, types.Optional):
        return holds_arrays(type_.type)
    if isinstance(type_, types.BaseTuple):
        return any(map(holds_arrays, type_))
    if isinstance(type_, types.List):
        return holds_arrays(type_.dtype)
    return isinstance(type_, (types.Array, types.Bytes))


class _Planner:
    """Nodes and texts so far."""

    def __init__(self, context: Any, *, is_owned: bool) -> None:
        self.nodes: list[_Node] = []
        self.texts = bytearray(b"\0")
        self._context = context
        self._flags = _OWNED if is_owned else 0
        self._waiting: list[tuple[str, _Node, Any]] = []

    def text(self, text: str, *more: str) -> int:
        """The offset of a text, or of several after each other."""
        at = len(self.texts)
        for part in (text, *more):
            self.texts += part.encode("utf-8", "surrogatepass") + b"\0"
        return at

    def add_parameter(self, name: str, type_: Any) -> None:
        """Add the node of a parameter; its items wait for `finish_parameters`."""
        try:
            node = self._node(type_, is_parameter=True)
        except Unsupported as error:
            raise Unsupported(f"there is no conversion for its parameter {name!r}, of {error}") from None
        node.name, node.wish = self.text(name), self.text(describe_type(type_))
        self.nodes.append(node)
        self._waiting.append((name, node, type_))

    def finish_parameters(self) -> None:
        """Add the items of the parameters."""
        for name, node, type_ in self._waiting:
            try:
                self._add_items(node, type_, is_parameter=True)
            except Unsupported as error:
                raise Unsupported(f"there is no conversion for its parameter {name!r}, because of {error}") from None

    def add_result(self, type_: Any) -> int:
        """The number of the result's node."""
        number = len(self.nodes)
        try:
            node = self._node(type_, is_parameter=False)
            self.nodes.append(node)
            self._add_items(node, type_, is_parameter=False)
        except Unsupported as error:
            raise Unsupported(f"there is no conversion for its result, of {error}") from None
        return number

    def _size(self, type_: Any) -> int:
        return int(self._context.get_abi_sizeof(self._context.get_data_type(type_)))

    def _alignment(self, type_: Any) -> int:
        return int(self._context.get_abi_alignment(self._context.get_data_type(type_)))

    def _node(self, type_: Any, *, is_parameter: bool) -> _Node:
        from numba.core import types

        size = 0 if type_ == types.none else self._size(type_)
        if isinstance(type_, types.Array):
            return self._array(type_, size, is_parameter=is_parameter)
        if isinstance(type_, types.BaseNamedTuple):
            return _Node(_NAMED_TUPLE, size, text=self._class_text(type_.instance_class))
        for known, kind in (
            (types.Boolean, _BOOL), (types.Float, _FLOAT), (types.Complex, _COMPLEX), (types.Optional, _OPTIONAL),
            (types.BaseTuple, _TUPLE), (types.UnicodeType, _TEXT), (types.Bytes, _BYTES),
        ):  # fmt: skip
            if isinstance(type_, known):
                return _Node(kind, size)
        if type_ == types.none:
            return _Node(_NONE, 0)
        if isinstance(type_, types.Integer):
            return _Node(_SIGNED if type_.signed else _UNSIGNED, size)
        if isinstance(type_, types.List):
            return self._list(type_, size, is_parameter=is_parameter)
        raise Unsupported(f"type {type_}")

    def _array(self, type_: Any, size: int, *, is_parameter: bool) -> _Node:
        flags = _LAYOUTS[type_.layout] | (0 if type_.mutable else _READ_ONLY) | (self._flags if is_parameter else 0)
        text = element_text(type_.dtype)
        if text is None:
            raise Unsupported(f"type array of {type_.dtype}")
        return _Node(
            _ARRAY, size, detail=type_.ndim, flags=flags, itemsize=self._size(type_.dtype), text=self.text(text),
            format=self.text(element_format(type_.dtype)),
        )  # fmt: skip

    def _list(self, type_: Any, size: int, *, is_parameter: bool) -> _Node:
        from numba.core import types

        if is_parameter and not isinstance(type_.dtype, (types.Number, types.Boolean)):
            raise Unsupported(f"type list of {type_.dtype}")
        at = _PAYLOAD_HEAD + -_PAYLOAD_HEAD % self._alignment(type_.dtype)
        return _Node(_LIST, size, detail=at, itemsize=self._size(type_.dtype))

    def _class_text(self, cls: Any) -> int:
        import sys

        found: Any = sys.modules.get(cls.__module__)
        for part in cls.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not cls:
            raise Unsupported(f"type {cls.__qualname__}, a named tuple that is not found under its name in {cls.__module__}")
        return self.text(cls.__module__, cls.__qualname__)

    def _add_items(self, node: _Node, type_: Any, *, is_parameter: bool) -> None:
        from numba.core import types

        if isinstance(type_, types.Optional):
            items = [type_.type]
            node.detail = self._size(type_.type)
        elif isinstance(type_, types.BaseTuple):
            items = list(type_)
        elif isinstance(type_, types.List):
            items = [type_.dtype]
        else:
            return
        nodes = [self._node(item, is_parameter=is_parameter) for item in items]
        node.first, node.count = len(self.nodes), len(nodes)
        at = 0
        for item, made in zip(items, nodes, strict=True):
            if not isinstance(type_, types.List):
                at += -at % self._alignment(item)
                made.offset = at
                at += self._size(item)
        self.nodes += nodes
        for item, made in zip(items, nodes, strict=True):
            self._add_items(made, item, is_parameter=is_parameter)
