"""Provides the addresses of Numba's C helpers, to which images refer by name."""

from __future__ import annotations

from compcache.globals import register
from compcache.numba.lazy import c_helpers
from compcache.numba.lazy.awaited import has_numba
from compcache.numba.lazy.c_helpers import THREADING
from compcache.numba.registered.address_definition import AddressDefinition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["HelperSymbol", "helper_address"]


@register
class HelperSymbol(AddressDefinition):
    """The address of a function that Numba registers with LLVM under a name that the dynamic linker does not know."""

    __slots__ = ("name",)
    name: str
    kind = "numba-symbol"

    def find(self) -> tuple[int, object]:
        """Return the address of the function in this process, and None.

        Raise `ImportError` if this process has no function with this name.
        """
        address = helper_address(self.name)
        if not address:
            raise ImportError(f"Numba's C function {self.name!r} is not available in this process", name="numba")
        return address, None


def helper_address(name: str) -> int:
    """Return the address of one of Numba's C functions, or 0 if no function has this name. Start Numba's threads for their functions.

    The functions of the memory runtime are read from Numba's own table, because Numba registers them with LLVM only before its first
    compilation, which a hit avoids. A process without Numba uses the helpers in `compcache.numba.lazy`.
    """
    if not has_numba():
        return c_helpers.helper_address(name)
    from llvmlite import binding
    from numba.core.runtime import _nrt_python

    helpers: dict[str, Any] = _nrt_python.c_helpers
    address = helpers.get(name.removeprefix("NRT_"), 0)
    address = address or binding.address_of_symbol(name)
    if not address and name in THREADING:
        from numba.np.ufunc.parallel import _launch_threads

        _launch_threads()
        address = binding.address_of_symbol(name)
    return address or 0
