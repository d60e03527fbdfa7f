"""Provides the addresses of Numba's C helpers, to which images refer by name."""

from __future__ import annotations

from compcache.globals import register
from compcache.numba.lazy.c_helpers import helper_address
from compcache.numba.registered.address_definition import AddressDefinition

__all__ = ["HelperSymbol"]


@register
class HelperSymbol(AddressDefinition):
    """The address of a function that Numba registers with LLVM under a name that the dynamic linker does not know."""

    __slots__ = ("name",)
    name: str
    kind = "numba-symbol"

    def find(self) -> tuple[int, object]:
        """Return the address of the function in this process, and None, because it needs no object to stay alive.

        Raise `ImportError` if this process has no function with this name.
        """
        address = helper_address(self.name)
        if not address:
            raise ImportError(f"Numba's C function {self.name!r} does not exist: install the Numba that compiled the code", name="numba")
        return address, None
