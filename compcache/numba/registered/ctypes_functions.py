"""Identifies ctypes functions, whose addresses differ between processes.

Compiled code contains the address, and calls the function by the C types that its object declares. Stored code names the address instead,
by the function's name in its library. A load uses the address of the function that got this name when the code was identified.
"""

from __future__ import annotations

from compcache.digest import blake2b
from compcache.globals import register
from compcache.numba.registered.address_definition import AddressDefinition
from compcache.numba.registered.cython_functions import function_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["CtypesFunction", "addresses", "describe_ctypes_function"]

FUNCTION = "function"
#: The addresses of named functions. A name belongs to one address.
_addresses: dict[str, int] = {}
#: The name of each function, by its name in its library ("" for a callback) and its address.
_names: dict[tuple[str, int], str] = {}


def describe_ctypes_function(value: Any) -> tuple[str, tuple[object, ...]] | None:
    """Return the properties of a ctypes function that compiled code can use, or None if a type is neither a number nor an address.

    Returns:
        The kind of the function, and a tuple: its identity, ctypes' flags, the number of parameters, the name of the result's type ("none"
        for no result), and the name of each parameter's type.

        The identity is the module, the name and the type in Cython's spelling if a Cython module exports the function, otherwise its name
        in stored code.
    """
    import ctypes

    if value.argtypes is None:
        return None
    types = [_type_text(kind) for kind in (value.restype, *value.argtypes)]
    if None in types:
        return None
    address = ctypes.cast(value, ctypes.c_void_p).value or 0
    symbol = getattr(value, "__name__", "")
    name = _names.get((symbol, address))
    function = function_at(address) if name is None else None  # reads what all modules export if it does not know the address
    identity = function or (name or _name_function(symbol, address),)
    kind = "function of Cython, by ctypes" if function else "function by ctypes"
    return kind, (*identity, value._flags_, len(value.argtypes), *types)


def _type_text(kind: Any) -> str | None:
    """Return the name of one of ctypes' own types for numbers and addresses, or of a pointer to one; None for any other type."""
    import ctypes

    if kind is None:
        return "none"
    if isinstance(kind, type) and issubclass(kind, ctypes._Pointer):
        text = _type_text(kind._type_)
        return None if text is None else f"pointer to {text}"
    is_simple = isinstance(kind, type) and issubclass(kind, ctypes._SimpleCData) and getattr(ctypes, kind.__name__, None) is kind
    return kind.__name__ if is_simple else None


def _name_function(symbol: str, address: int) -> str:
    """Return the name of a function in stored code: a digest of its name in its library (of "" for a callback), and a number."""
    digest, number = blake2b(symbol.encode(), digest_size=16).hexdigest(), 0
    while _addresses.setdefault(f"{digest}-{number}", address) != address:
        number += 1
    return _names.setdefault((symbol, address), f"{digest}-{number}")


def addresses() -> dict[int, tuple[str, str]]:
    """Return the addresses of named functions, each with `FUNCTION` and all names of the address."""
    names: dict[int, list[str]] = {}
    for name, address in list(_addresses.items()):
        names.setdefault(address, []).append(name)
    return {address: (FUNCTION, ",".join(sorted(found))) for address, found in names.items()}


@register
class CtypesFunction(AddressDefinition):
    """The address of a function that the program calls through ctypes.

    A library may have one function under several names. The code contains one address, so its import has all names that the address had
    when the code was stored, in one text. The key of the code contains the name that the code uses.
    """

    __slots__ = ("names",)
    names: str
    kind = "ctypes-function"

    def find(self) -> tuple[int, object]:
        """Return the address in this process, and None.

        Raise `ImportError` if this process has identified no function with one of the names, or functions at several addresses.
        """
        found = {_addresses[name] for name in self.names.split(",") if name in _addresses}
        if len(found) != 1:
            raise ImportError(
                f"the compiled code calls a ctypes function by its name (digest {self.names}), and this process has identified "
                f"{len(found)} functions with the name: compile the function again"
            )
        return found.pop(), None
