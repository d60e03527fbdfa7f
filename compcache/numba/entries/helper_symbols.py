"""Provides the addresses of Numba's C helpers, which images refer to by name."""

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


def _invalid(reason: str) -> GlobalValidationError:
    return GlobalValidationError(reason, reason=reason)


@register
class HelperSymbol(GlobalDefinition):
    """The address of a function that Numba registers with LLVM by name; the dynamic linker does not know it."""

    __slots__ = ("name",)
    name: str
    kind = "numba-symbol"

    def encode(self) -> bytes:
        """Return the name."""
        return self.name.encode()

    @classmethod
    def decode(cls, payload: bytes) -> HelperSymbol:
        """Decode the symbol."""
        return cls(payload.decode())

    def address(self) -> int:
        """Return the address in this process. Raises `ImportError`."""
        address = helper_address(self.name)
        if not address:
            raise ImportError(f"Numba has no function {self.name!r} in this process", name="numba")
        return address

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the address in this process."""
        del context
        try:
            return self.address().to_bytes(storage.size, "little"), None
        except ImportError as error:
            raise _invalid(f"it is Numba's function {self.name!r}, which is not there: {error}") from error


def helper_address(name: str) -> int:
    """Return the address at which Numba has a C function; 0 if it has none.

    Functions of the runtime are read from Numba's own table: it registers them with LLVM only when it first
    compiles, which a hit avoids. A process without Numba does without it (`compcache.numba.lazy`).
    """
    if not has_numba():
        return c_helpers.helper_address(name)
    from llvmlite import binding
    from numba.core.runtime import _nrt_python

    helpers: dict[str, Any] = _nrt_python.c_helpers
    found = helpers.get(name.removeprefix("NRT_") if name.startswith("NRT_") else name, 0)
    found = found or binding.address_of_symbol(name)
    if not found and name in THREADING:
        from numba.np.ufunc.parallel import _launch_threads

        _launch_threads()
        found = binding.address_of_symbol(name)
    return found or 0
