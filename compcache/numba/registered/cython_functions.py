"""The functions that Cython modules offer to compiled code of others (`__pyx_capi__`): which one is at an address, and at which address one is.

Programs take such an address with `numba.extending.get_cython_function_address`, and give it to Numba as a ctypes function or by
`numba.types.WrapperAddressProtocol`. It differs between processes; module, name and C type do not.
"""

from __future__ import annotations

import sys

from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["address_of", "function_at", "of_ctypes", "told_by"]

_API = "__pyx_capi__"
_capsules: list[Any] = []
#: The functions that were found, by address.
_known: dict[int, tuple[str, str, str]] = {}


def function_at(address: int) -> tuple[str, str, str] | None:
    """Module, name and type (as Cython writes it) of the function at an address; None if no imported Cython module offers it."""
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
    """The functions that a module offers: names, types and addresses."""
    offered: Any = getattr(module, "__dict__", {}).get(_API)
    if not isinstance(offered, dict):
        return
    name_of, pointer_of = _functions_of_capsules()
    for name, capsule in sorted(offered.items()):
        type_ = name_of(capsule)
        if b"(" in type_:  # not a variable
            yield name, type_.decode(), pointer_of(capsule, type_)


def address_of(module: str, name: str, type_: str) -> int:
    """The address of a function in this process; 0 where its module does not offer it with this type.

    Raises:
        ImportError: the module cannot be imported.
    """
    found = sys.modules.get(module)
    if found is None:
        from importlib import import_module

        found = import_module(module)
    return _address_in(found, name, type_)


def told_by(value: Any) -> tuple[tuple[str, str, str] | None, Any]:
    """The function whose address an object tells (`WrapperAddressProtocol`), and its signature; None where the object's methods fail."""
    try:
        return function_at(value.__wrapper_address__()), value.signature()
    except Exception as error:  # noqa: BLE001 - Numba will meet it, and report it
        reraise_interrupt(error)
        return None, None


def of_ctypes(value: Any) -> tuple[object, ...] | None:
    """What compiled code sees of a function of ctypes, which takes and gives numbers and plain addresses; None for others."""
    import ctypes

    known = function_at(ctypes.cast(value, ctypes.c_void_p).value or 0)
    if known is None or value.argtypes is None or not all(kind is None or _is_simple(kind) for kind in (value.restype, *value.argtypes)):
        return None
    return (*known, value._flags_, len(value.argtypes), *[getattr(kind, "__name__", "none") for kind in (value.restype, *value.argtypes)])


def _is_simple(kind: Any) -> bool:
    """Whether a type of ctypes is one of its own for numbers and plain addresses, which its name tells."""
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
    """Python's functions that read the name and the pointer of a capsule."""
    if not _capsules:
        from ctypes import PYFUNCTYPE, c_char_p, c_void_p, py_object, pythonapi

        _capsules.extend((
            PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", pythonapi)),
            PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi)),
        ))  # fmt: skip
    return _capsules
