"""Provides the addresses of Numba's C helpers, to which images refer by name."""

from __future__ import annotations

from compcache.errors import GlobalValidationError
from compcache.globals import GlobalDefinition, Storage, register
from compcache.numba.lazy import c_helpers
from compcache.numba.lazy.awaited import has_numba
from compcache.numba.lazy.c_helpers import THREADING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.globals import LoadContext

__all__ = ["HelperSymbol", "helper_address"]


def _validation_error(reason: str) -> GlobalValidationError:
    return GlobalValidationError(reason, reason=reason)


@register
class HelperSymbol(GlobalDefinition):
    """The address of a function that Numba registers with LLVM under a name that the dynamic linker does not know."""

    __slots__ = ("name",)
    name: str
    kind = "numba-symbol"

    def encode(self) -> bytes:
        """Return the name of the function in UTF-8."""
        return self.name.encode()

    @classmethod
    def decode(cls, payload: bytes) -> HelperSymbol:
        """Return the symbol whose name `encode` has returned."""
        return cls(payload.decode())

    def address(self) -> int:
        """Return the address of the function in this process.

        Raises:
            ImportError: this process has no function with this name.
        """
        address = helper_address(self.name)
        if not address:
            raise ImportError(f"Numba's C function {self.name!r} is not available in this process", name="numba")
        return address

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the bytes of the function's address in this process, in little-endian order, and None.

        Raises:
            GlobalValidationError: this process has no function with this name.
        """
        del context
        try:
            return self.address().to_bytes(storage.size, "little"), None
        except ImportError as error:
            raise _validation_error(f"the address of Numba's C function {self.name!r} cannot be determined: {error}") from error


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
    address = helpers.get(name.removeprefix("NRT_") if name.startswith("NRT_") else name, 0)
    address = address or binding.address_of_symbol(name)
    if not address and name in THREADING:
        from numba.np.ufunc.parallel import _launch_threads

        _launch_threads()
        address = binding.address_of_symbol(name)
    return address or 0
