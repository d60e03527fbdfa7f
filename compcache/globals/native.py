"""Definitions that are addresses of native symbols."""

from __future__ import annotations

from compcache.globals.definition import GlobalDefinition, Storage, invalid_error, pack_integer, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.globals.definition import LoadContext

__all__ = ["NativeSymbol"]


@register
class NativeSymbol(GlobalDefinition):
    """The address of a native symbol in the process or in a shared library, which is loaded if necessary.

    It can define an external global variable or a function that the module declares.

    Args:
        name: the name of the symbol.
        library: the shared library that defines the symbol; None for the process.
    """

    __slots__ = ("name", "library")
    name: str
    library: str | None
    kind = "native"

    def __init__(self, name: str, library: str | None = None) -> None:
        super().__init__(name, library)

    def encode(self) -> bytes:
        return f"{self.name}\0{self.library or ''}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> NativeSymbol:
        name, library = payload.decode().split("\0")
        return cls(name, library or None)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        address = context.find_symbol(self.name, self.library)
        if not address and self.library:
            raise invalid_error(f"the native symbol {self.name!r} is not defined in {self.library}: correct the symbol or the library")
        if not address:
            raise invalid_error(f"the native symbol {self.name!r} is not defined in this process: name its library")
        return pack_integer(address, storage), None
