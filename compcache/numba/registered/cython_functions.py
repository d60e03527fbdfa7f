"""Finds functions that Cython modules export to other compiled code (`__pyx_capi__`), by address and by name.

Programs get such an address from `numba.extending.get_cython_function_address`, and pass it to Numba as a ctypes function or through
`numba.types.WrapperAddressProtocol`. The address differs between processes. The module, the name and the C type do not.
"""

from __future__ import annotations

import functools
import sys

from compcache.globals import register
from compcache.interrupts import suppress
from compcache.numba.registered.address_definition import AddressDefinition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["CythonFunction", "describe_ctypes_function", "function_and_signature_of", "function_at"]

_API = "__pyx_capi__"
#: The capsules that all modules exported when they were last read, by module; and the functions among the capsules, by address.
_latest: list[dict[Any, Any]] = [{}, {}]


def function_at(address: int) -> tuple[str, str, str] | None:
    """Return the module, the name and the type, in Cython's spelling, of the function at an address.

    The result is None if no imported Cython module exports a function at this address.
    """
    latest_exports, functions = _latest
    function: tuple[str, str, str] | None = functions.get(address)
    if function is None or _address_in(sys.modules.get(function[0]), *function[1:]) != address:
        exports = {name: exported.copy() for name in list(sys.modules) if (exported := _exports_of(sys.modules.get(name)))}
        if exports != latest_exports:  # most addresses are not Cython's, and programs ask for many of them
            functions = {}
            for module_name in sorted(exports):
                for name, type_, function_address in _functions_among(exports[module_name]):
                    functions.setdefault(function_address, (module_name, name, type_))
            _latest[:] = exports, functions
        function = functions.get(address)
    return function


def _exports_of(module: Any) -> dict[str, Any]:
    """Return the capsules that a module exports, by name; empty for modules that are not Cython's."""
    exported = getattr(module, "__dict__", {}).get(_API)
    return exported if isinstance(exported, dict) else {}


def _functions_among(exported: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield the functions among the capsules that a module exports, each with its name, its type and its address."""
    name_of, pointer_of = _capsule_readers()
    for name, capsule in sorted(exported.items()):
        type_ = name_of(capsule)
        if b"(" in type_:  # variables have no parameters
            yield name, type_.decode(), pointer_of(capsule, type_)


@register
class CythonFunction(AddressDefinition):
    """The address of a function that a Cython module exports. The C type is checked when the function is loaded."""

    __slots__ = ("module", "name", "type")
    module: str
    name: str
    type: str
    kind = "cython-function"

    def find(self) -> tuple[int, object]:
        """Return the address in this process, and None.

        Raise `ImportError` if the module does not exist, or does not export the function with this type. The module is imported if
        necessary; exceptions of its code are raised unchanged.
        """
        module = sys.modules.get(self.module)
        if module is None:
            from importlib import import_module

            module = import_module(self.module)
        address = _address_in(module, self.name, self.type)
        if not address:
            reason = f"the module {self.module} exports no function {self.name!r} of type {self.type}"
            raise ImportError(f"{reason}: install the version of the module for which the code was compiled", name=self.module)
        return address, None


def function_and_signature_of(value: Any) -> tuple[tuple[str, str, str] | None, Any]:
    """Return the function whose address an object provides by the methods of `WrapperAddressProtocol`, and the object's signature.

    The function is None if no Cython module exports it. Both are None if the object's methods fail.
    """
    with suppress(Exception):  # Numba will encounter and report the error
        return function_at(value.__wrapper_address__()), value.signature()
    return None, None


def describe_ctypes_function(value: Any) -> tuple[object, ...] | None:
    """Return the properties of a ctypes function that compiled code can use.

    Returns:
        A tuple: the module and the name of the function, its type in Cython's spelling, ctypes' flags, the number of parameters, the name
        of the result's type ("none" for no result), and the name of each parameter's type.

        None if no Cython module exports the function, its `argtypes` are not declared, or a parameter or the result is neither a number
        nor a plain address.
    """
    import ctypes

    function = function_at(ctypes.cast(value, ctypes.c_void_p).value or 0)
    if function is None or value.argtypes is None:
        return None
    types = value.restype, *value.argtypes
    if not all(type_ is None or _is_simple(type_) for type_ in types):
        return None
    return (*function, value._flags_, len(value.argtypes), *[getattr(type_, "__name__", "none") for type_ in types])


def _is_simple(type_: Any) -> bool:
    """Return whether a type is one of ctypes' own types for numbers and plain addresses, so that its name identifies it."""
    import ctypes

    return isinstance(type_, type) and issubclass(type_, ctypes._SimpleCData) and getattr(ctypes, type_.__name__, None) is type_


def _address_in(module: Any, name: str, type_: str) -> int:
    """Return the address of an exported function, or 0 if the module does not export it with this type."""
    capsule = _exports_of(module).get(name)
    name_of, pointer_of = _capsule_readers()
    if capsule is None or name_of(capsule) != type_.encode():
        return 0
    address: int = pointer_of(capsule, type_.encode())
    return address


@functools.cache
def _capsule_readers() -> tuple[Any, Any]:
    """Return the functions of Python's C API that read the name and the pointer of a capsule."""
    from ctypes import PYFUNCTYPE, c_char_p, c_void_p, py_object, pythonapi

    name_of = PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", pythonapi))
    return name_of, PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))
