"""Signatures of call targets: their text form, and the meaning of each type for a caller.

Grammar::

    signature = result "(" [parameter ("," parameter)*] ")"
    parameter = [name ":"] ["const"] type [buffer]              "const" with a buffer or ptr
    buffer    = "[:]" | "[" (":" ",")* "::1" "]"
    type      = bool | i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | ptr | cstr | object
    result    = type | void | "tuple[" type ("," type)* "]"

`T[:]` is a C-contiguous buffer with elements of this type, of any shape. The function gets a pointer and a 64-bit number of elements.
`T[::1]`, `T[:, ::1]` and so on are C-contiguous buffers of one, two, ... dimensions. The function gets a pointer and the 64-bit extent of
each dimension. A function whose result is a tuple (of scalars other than `ptr` and `cstr`) returns void, and gets a pointer to one 8-byte
slot per item as its first argument. `const T[:]` and `const ptr` promise that the function only reads, so read-only buffers are accepted.
`object` is any Python object. The function holds the GIL, gets a borrowed `PyObject *`, and returns a new reference, or NULL with an
exception set. Parameter names are optional. `help()` shows them, and comparisons ignore them.
"""

from __future__ import annotations

from compcache.errors import SignatureError
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

__all__ = [
    "BOOL", "CSTR", "FLOAT", "OBJECT", "POINTER", "SIGNED", "TUPLE", "UNSIGNED", "VOID", "Parameter", "Signature", "Type",
]  # fmt: skip

VOID, BOOL, SIGNED, UNSIGNED, FLOAT, POINTER, CSTR = "void", "bool", "signed", "unsigned", "float", "ptr", "cstr"
TUPLE, OBJECT = "tuple", "object"
_TUPLE_HEAD = "tuple["


class Type(Record):
    """A type in signatures: its name, its kind (one of the constants above), and its size in bytes."""

    __slots__ = ("name", "kind", "size")
    name: str
    kind: str
    size: int

    by_name: ClassVar[dict[str, Type]] = {}

    def items(self) -> tuple[Type, ...]:
        """Return the types of the items of a tuple type."""
        return tuple([Type.by_name[name] for name in self.name[len(_TUPLE_HEAD) : -1].split(", ")])

    def __str__(self) -> str:
        return self.name


for _type in (
    Type("void", VOID, 0),
    Type("bool", BOOL, 1),
    *(Type(f"i{8 * size}", SIGNED, size) for size in (1, 2, 4, 8)),
    *(Type(f"u{8 * size}", UNSIGNED, size) for size in (1, 2, 4, 8)),
    Type("f32", FLOAT, 4),
    Type("f64", FLOAT, 8),
    Type("ptr", POINTER, 8),
    Type("cstr", CSTR, 8),
    Type("object", OBJECT, 8),
):
    Type.by_name[_type.name] = _type


class Parameter(Record):
    """A parameter of a signature.

    `type` is its type, or the type of its elements if it is a buffer. `is_const` says that the function only reads it. `name` is empty for
    an unnamed parameter. `dimensions` is the required number of dimensions of a buffer; 0 accepts any number. Equality ignores `name`.
    """

    __slots__ = ("type", "is_buffer", "is_const", "name", "dimensions")
    type: Type
    is_buffer: bool
    is_const: bool
    name: str
    dimensions: int

    def __str__(self) -> str:
        shape = ", ".join([*[":"] * (self.dimensions - 1), "::1"]) if self.dimensions else ":"
        return f"{'const ' if self.is_const else ''}{self.type}{f'[{shape}]' if self.is_buffer else ''}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parameter):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Signature(Record):
    """The types of a function's parameters and of its result.

    Attributes:
        parameters: the parameters, in order.
        result: the type of the result.
    """

    __slots__ = ("parameters", "result")
    parameters: tuple[Parameter, ...]
    result: Type

    @staticmethod
    def parse(text: str) -> Signature:
        """Return the signature that `text` describes, for example ``f64(f64[:], i64)``.

        Args:
            text: the signature. Types are void, bool, i8 to i64, u8 to u64, f32, f64, ptr, cstr, object and buffers (``f64[:]``). ``const``
                precedes buffers and pointers that are only read.

        Raises:
            SignatureError: the text does not follow the grammar. The message names the invalid part.
        """
        if not isinstance(text, str):
            raise SignatureError(f"a signature must be a str like 'f64(f64[:], i64)', not {type(text).__name__}")
        head, bracket, tail = text.partition("(")
        parameter_list, end, trailing = tail.rpartition(")")
        if not bracket or not end or trailing.strip():
            raise SignatureError(f"the signature {text!r} does not have the form 'result(parameter, ...)'")
        result = _parse_result(head.strip(), text)
        if not parameter_list.strip():
            return Signature((), result)
        return Signature(tuple([_parse_parameter(part, text) for part in _split_parameters(parameter_list)]), result)

    def __str__(self) -> str:
        return f"{self.result}({', '.join(map(str, self.parameters))})"

    def text(self) -> str:
        """Return the text of the signature with the names of the parameters."""
        parts = [f"{parameter.name}: {parameter}" if parameter.name else str(parameter) for parameter in self.parameters]
        return f"{self.result}({', '.join(parts)})"

    def parameter_names(self) -> tuple[str, ...]:
        """Return a distinct Python identifier for every parameter: its name if that is valid and unique, otherwise ``arg`` and a number."""
        from keyword import iskeyword

        declared = [parameter.name for parameter in self.parameters]
        names: list[str] = []
        for number, name in enumerate(declared):
            if name in names or not name or iskeyword(name):
                name = f"arg{number}"  # noqa: PLW2901
                while name in declared:
                    name += "_"  # noqa: PLW2901
            names.append(name)
        return tuple(names)


def _parse_type(name: str, text: str) -> Type:
    """Return the type with this name. Raise `SignatureError` if there is none; `text` is the whole signature."""
    parsed = Type.by_name.get(name)
    if parsed is None:
        valid_names = ", ".join(Type.by_name)
        raise SignatureError(
            f"the signature {text!r} has the unknown type {name!r}: use {valid_names}, or an array of one of these, like f64[:]"
        )
    return parsed


def _parse_result(name: str, text: str) -> Type:
    """Return the type of a result. Raise `SignatureError` if the type is unknown, or the item of a tuple is not a number or bool."""
    if not (name.startswith(_TUPLE_HEAD) and name.endswith("]")):
        return _parse_type(name, text)
    items = [_parse_type(item.strip(), text) for item in name[len(_TUPLE_HEAD) : -1].split(",")]
    if any(item.kind in (VOID, POINTER, CSTR, OBJECT) for item in items):
        raise SignatureError(
            f"the signature {text!r} has a result tuple with an item that is not a number or bool: use only these types in tuples"
        )
    return Type(f"{_TUPLE_HEAD}{', '.join(map(str, items))}]", TUPLE, 8 * len(items))


def _split_parameters(inner: str) -> list[str]:
    """Split the text of a parameter list at commas outside of brackets."""
    parts: list[str] = []
    for piece in inner.split(","):
        if parts and parts[-1].count("[") > parts[-1].count("]"):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def _dimension_count(buffer: str, text: str) -> int:
    """Return the number of dimensions in the brackets of a buffer; 0 for any number. Raise `SignatureError` for invalid brackets."""
    axes = [axis.strip() for axis in buffer.split(",")]
    if axes == [":"]:
        return 0
    if axes[-1] != "::1" or any(axis != ":" for axis in axes[:-1]):
        raise SignatureError(f"the signature {text!r} has an invalid buffer [{buffer}]: use [:], [::1], [:, ::1] and so on")
    return len(axes)


def _reject_c_order(part: str, text: str) -> None:
    """Raise `SignatureError` with advice if a parameter has its name after its type, like ``f64[:] data`` in C."""
    type_text, _, name = (piece.strip() for piece in part.strip().rpartition(" "))
    base = type_text.removeprefix("const ").partition("[")[0].strip()
    if name.isidentifier() and base in Type.by_name:
        raise SignatureError(
            f"the signature {text!r} has the parameter {part.strip()!r}, in which the name follows the type: write '{name}: {type_text}'"
        ) from None


def _parse_parameter(part: str, text: str) -> Parameter:
    """Return a parameter. Raise `SignatureError` if it is not valid. If the name follows the type, the message says how to write it."""
    try:
        return _read_parameter(part, text)
    except SignatureError:
        _reject_c_order(part, text)
        raise


def _read_parameter(part: str, text: str) -> Parameter:
    """Return a parameter. Raise `SignatureError` if it is not valid."""
    stem, bracket, buffer = part.partition("[")
    name, colon, type_text = stem.rpartition(":")
    name = name.strip()
    is_buffer = bool(bracket)
    dimensions = 0
    if is_buffer:
        if not buffer.rstrip().endswith("]"):
            raise SignatureError(f"the signature {text!r} has the parameter {part.strip()!r}, whose bracket is not closed: add ']'")
        dimensions = _dimension_count(buffer.rstrip()[:-1], text)
    if colon and not name.isidentifier():
        raise SignatureError(f"the signature {text!r} has the parameter name {name!r}: use letters, digits and _")
    words = type_text.split()
    is_const = words[:1] == ["const"]
    type_ = _parse_type(" ".join(words[1:] if is_const else words), text)
    if type_.kind == VOID:
        problem = "but only results may be void"
    elif is_buffer and type_.kind in (POINTER, CSTR, OBJECT):
        problem = "but the elements of buffers must be numbers or bool"
    elif is_const and not is_buffer and type_.kind != POINTER:
        problem = "but only buffers and ptr may be const"
    else:
        return Parameter(type_, is_buffer, is_const, name, dimensions)
    raise SignatureError(f"the signature {text!r} has the parameter {part.strip()!r}, {problem}")
