"""Signatures of call targets: their text form and what each type means to a caller.

Grammar::

    signature = result "(" [parameter ("," parameter)*] ")"
    parameter = [name ":"] ["const"] type ["[:]"]
    type      = bool | i8 | i16 | i32 | i64 | u8 | u16 | u32 | u64 | f32 | f64 | ptr | cstr
    result    = type | void

`T[:]` is a C-contiguous buffer of that element type; the function gets a pointer and a 64-bit count of elements.
`const T[:]` says that the function only reads, so that read-only buffers serve. Names are for people: they show
in `help()` and do not take part in comparisons.
"""

from __future__ import annotations

from compcache.errors import SignatureError
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

__all__ = ["BOOL", "CSTR", "FLOAT", "POINTER", "SIGNED", "UNSIGNED", "VOID", "Parameter", "Signature", "Type"]

VOID, BOOL, SIGNED, UNSIGNED, FLOAT, POINTER, CSTR = "void", "bool", "signed", "unsigned", "float", "ptr", "cstr"


class Type(Record):
    """A scalar type: its name in signatures, its kind (one of the constants above), its size in bytes."""

    __slots__ = ("name", "kind", "size")
    name: str
    kind: str
    size: int

    by_name: ClassVar[dict[str, Type]] = {}

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
):
    Type.by_name[_type.name] = _type


class Parameter(Record):
    """One parameter: its (element) type, whether it is a buffer, whether it is only read, its name."""

    __slots__ = ("type", "is_buffer", "is_const", "name")
    type: Type
    is_buffer: bool
    is_const: bool
    name: str

    def __str__(self) -> str:
        return f"{'const ' if self.is_const else ''}{self.type}{'[:]' if self.is_buffer else ''}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parameter):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Signature(Record):
    """The types of a function's parameters and of its result."""

    __slots__ = ("parameters", "result")
    parameters: tuple[Parameter, ...]
    result: Type

    @staticmethod
    def parse(text: str) -> Signature:
        """The signature that `text` describes, for example ``f64(f64[:], i64)``.

        Raises:
            SignatureError: the text does not follow the grammar; the message says where.
        """
        head, bracket, tail = text.partition("(")
        inner, end, rest = tail.rpartition(")")
        if not bracket or not end or rest.strip():
            raise SignatureError(f"signature {text!r} is not of the form 'result(parameter, ...)'")
        result = _parse_type(head.strip(), text)
        if not inner.strip():
            return Signature((), result)
        return Signature(tuple([_parse_parameter(part, text) for part in inner.split(",")]), result)

    def __str__(self) -> str:
        return f"{self.result}({', '.join(map(str, self.parameters))})"

    def text(self) -> str:
        """The signature with the parameters' names."""
        parts = [f"{p.name}: {p}" if p.name else str(p) for p in self.parameters]
        return f"{self.result}({', '.join(parts)})"

    def parameter_names(self) -> tuple[str, ...]:
        """A distinct Python identifier for every parameter."""
        names: list[str] = []
        for number, parameter in enumerate(self.parameters):
            usable = parameter.name and parameter.name not in names
            names.append(parameter.name if usable else f"arg{number}")
        return tuple(names)


def _parse_type(name: str, text: str) -> Type:
    found = Type.by_name.get(name)
    if found is None:
        known = " ".join(Type.by_name)
        raise SignatureError(f"signature {text!r} has the unknown type {name!r}; the types are {known} and T[:]")
    return found


def _parse_parameter(part: str, text: str) -> Parameter:
    name, colon, type_text = part.rpartition(":") if not part.rstrip().endswith("[:]") else _split_buffer(part)
    name = name.strip()
    if colon and not name.isidentifier():
        raise SignatureError(f"signature {text!r} has the parameter name {name!r}, which is no identifier")
    words = type_text.split()
    is_const = words[:1] == ["const"]
    type_name = "".join(words[1:] if is_const else words)
    is_buffer = type_name.endswith("[:]")
    type_ = _parse_type(type_name.removesuffix("[:]"), text)
    if type_.kind == VOID or (is_buffer and type_.kind in (POINTER, CSTR)) or (is_const and not is_buffer):
        raise SignatureError(f"signature {text!r} has a parameter {part.strip()!r}, which no argument can be")
    return Parameter(type_, is_buffer, is_const, name)


def _split_buffer(part: str) -> tuple[str, str, str]:
    name, colon, type_text = part.rstrip()[:-3].rpartition(":")
    return name, colon, type_text + "[:]"
