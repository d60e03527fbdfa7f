"""Definitions that are numbers or booleans. The variable contains the value."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class

from compcache.globals.definition import GlobalDefinition, Storage, describe_integer, misfit_error, pack_integer, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.globals.definition import LoadContext

__all__ = ["Boolean", "Float", "Integer"]

_F32 = Struct("<f")
_F64 = Struct("<d")


@register
class Integer(GlobalDefinition):
    """An integer, for integer and pointer variables that can represent it, and, rounded, for floating-point variables.

    Args:
        value: the number.
    """

    __slots__ = ("value",)
    value: int
    kind = "integer"

    def encode(self) -> bytes:
        return b"%d" % self.value

    @classmethod
    def decode(cls, payload: bytes) -> Integer:
        return cls(int(payload))

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if storage.form == "float":
            try:
                number = float(self.value)
            except OverflowError:
                raise misfit_error(describe_integer(self.value), storage) from None
            return Float(number).load(storage, context)
        return pack_integer(self.value, storage), None


@register
class Boolean(GlobalDefinition):
    """A boolean, for integer variables, as 0 or 1.

    Args:
        value: the boolean.
    """

    __slots__ = ("value",)
    value: bool
    kind = "boolean"

    def encode(self) -> bytes:
        return b"1" if self.value else b"0"

    @classmethod
    def decode(cls, payload: bytes) -> Boolean:
        return cls({b"0": False, b"1": True}[payload])

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return pack_integer(int(self.value), storage), None


@register
class Float(GlobalDefinition):
    """A floating-point number, for `float` or `double` variables.

    Args:
        value: the number.
    """

    __slots__ = ("value",)
    value: float
    kind = "float"

    def encode(self) -> bytes:
        return _F64.pack(self.value)

    @classmethod
    def decode(cls, payload: bytes) -> Float:
        return cls(*_F64.unpack(payload))

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if storage.form != "float":
            raise misfit_error(f"the float {self.value}", storage)
        try:
            return (_F32 if storage.size == _F32.size else _F64).pack(self.value), None
        except (OverflowError, StructError):
            raise misfit_error(f"the float {self.value}", storage) from None
