"""Functions that Cython modules export to other compiled code (`__pyx_capi__`): finds the function at an address, and the address of a
function.

Programs get such an address from `numba.extending.get_cython_function_address`, and pass it to Numba as a ctypes function or through
`numba.types.WrapperAddressProtocol`. It differs between processes; module, name and C type do not.
"""

from __future__ import annotations

import sys

from compcache.errors import GlobalValidationError
from compcache.files import reraise_interrupt
from compcache.globals import GlobalDefinition, Storage, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from compcache.globals import LoadContext

__all__ = ["CythonFunction", "function_at", "of_ctypes", "told_by"]

_API = "__pyx_capi__"
_capsules: list[Any] = []
#: The functions found so far, by address.
_known: dict[int, tuple[str, str, str]] = {}


def function_at(address: int) -> tuple[str, str, str] | None:
    """Return module, name and type (in Cython's spelling) of the function at an address; None if no imported Cython module exports it."""
    known = _known.get(address)
    if known is None or _address_in(sys.modules.get(known[0]), *known[1:]) != address:
        found: dict[int, tuple[str, str, str]] = {}
        for module_name in sorted(sys.modules):
            for name, type_, there in _functions_of(sys.modules.get(module_name)):
                found.setdefault(there, (module_name, name, type_))
        _known.update(found)
        known = found.get(address)
    return known


def _functions_of(module: Any) -> Iterator[tuple[str, str, int]]:
    """Yield the functions that a module exports: names, types and addresses."""
    offered: Any = getattr(module, "__dict__", {}).get(_API)
    if not isinstance(offered, dict):
        return
    name_of, pointer_of = _functions_of_capsules()
    for name, capsule in sorted(offered.items()):
        type_ = name_of(capsule)
        if b"(" in type_:  # not a variable
            yield name, type_.decode(), pointer_of(capsule, type_)


@register
class CythonFunction(GlobalDefinition):
    """The address of a function that a Cython module exports, as `numba.extending.get_cython_function_address` finds it; its C type is
    checked.
    """

    __slots__ = ("module", "name", "type")
    module: str
    name: str
    type: str
    kind = "cython-function"

    def encode(self) -> bytes:
        """Encode module, name and type."""
        return f"{self.module}\0{self.name}\0{self.type}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> CythonFunction:
        """Decode the function."""
        module, name, type_ = payload.decode().split("\0")
        return cls(module, name, type_)

    def address(self) -> int:
        """Return the address in this process.

        Raises:
            ImportError: the module does not exist, or does not export the function with this type.
        """
        module = sys.modules.get(self.module)
        if module is None:
            from importlib import import_module

            module = import_module(self.module)
        found = _address_in(module, self.name, self.type)
        if not found:
            raise ImportError(f"{self.module} exports no function {self.name!r} of type {self.type}", name=self.module)
        return found

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the address in this process."""
        del context
        try:
            return self.address().to_bytes(storage.size, "little"), None
        except ImportError as error:
            raise GlobalValidationError(str(error), reason=str(error)) from error


def told_by(value: Any) -> tuple[tuple[str, str, str] | None, Any]:
    """Return the function whose address an object provides (`WrapperAddressProtocol`), and its signature; None if the object's methods
    fail.
    """
    try:
        return function_at(value.__wrapper_address__()), value.signature()
    except Exception as error:  # noqa: BLE001 - Numba will meet it, and report it
        reraise_interrupt(error)
        return None, None


def of_ctypes(value: Any) -> tuple[object, ...] | None:
    """Return what compiled code sees of a ctypes function with numbers and plain addresses as parameters and result; None for others."""
    import ctypes

    known = function_at(ctypes.cast(value, ctypes.c_void_p).value or 0)
    if known is None or value.argtypes is None or not all(kind is None or _is_simple(kind) for kind in (value.restype, *value.argtypes)):
        return None
    return (*known, value._flags_, len(value.argtypes), *[getattr(kind, "__name__", "none") for kind in (value.restype, *value.argtypes)])


def _is_simple(kind: Any) -> bool:
    """Return whether a ctypes type is one of its own for numbers and plain addresses, which the name tells."""
    import ctypes

    return isinstance(kind, type) and issubclass(kind, ctypes._SimpleCData) and getattr(ctypes, kind.__name__, None) is kind


def _address_in(module: Any, name: str, type_: str) -> int:
    offered: Any = getattr(module, _API, None)
    capsule = offered.get(name) if isinstance(offered, dict) else None
    name_of, pointer_of = _functions_of_capsules()
    if capsule is None or name_of(capsule) != type_.encode():
        return 0
    address: int = pointer_of(capsule, type_.encode())
    return address


def _functions_of_capsules() -> list[Any]:
    """Return the functions of Python's C API that read the name and the pointer of a capsule."""
    if not _capsules:
        from ctypes import PYFUNCTYPE, c_char_p, c_void_p, py_object, pythonapi

        _capsules.extend((
            PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", pythonapi)),
            PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi)),
        ))  # fmt: skip
    return _capsules
