"""Definitions of global variables: the values that a module's `external global` variables receive when code is loaded.

Each kind of definition is a small frozen class. `encode` and `decode` convert it to bytes and back. `load` returns the bytes for the
variable's storage, and the objects that must live as long as the bytes are in use. It raises `GlobalValidationError` if the definition is
no longer valid. `register` adds a kind.

Plain Python values can be used as definitions (`define`): int, float, bool, bytes, str, objects with a buffer, and objects that modules
contain under a name.
"""

from __future__ import annotations

from compcache.globals.definition import GlobalDefinition, Storage, decode_definition, invalid_error, register
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.globals.blocks import Buffer, Bytes, Text
    from compcache.globals.definition import LoadContext as LoadContext  # the functions of a registered kind receive one
    from compcache.globals.native import NativeSymbol
    from compcache.globals.objects import DictMember, ObjectIdentity, PythonObject
    from compcache.globals.pickled import Pickled
    from compcache.globals.scalars import Boolean, Float, Integer

__all__ = [
    "Boolean", "Buffer", "Bytes", "DictMember", "Float", "GlobalDefinition", "Integer", "NativeSymbol", "ObjectIdentity", "Pickled",
    "PythonObject", "Storage", "Text", "decode_definition", "define", "register",
]  # fmt: skip

_DEFINING_MODULES = {
    "Boolean": "scalars", "Buffer": "blocks", "Bytes": "blocks", "DictMember": "objects", "Float": "scalars", "Integer": "scalars",
    "NativeSymbol": "native", "ObjectIdentity": "objects", "Pickled": "pickled", "PythonObject": "objects", "Text": "blocks",
}  # fmt: skip
#: The formats of `struct` for numbers and truth values. Read-only buffers of one such value, like NumPy's scalars, are numbers.
_NUMBERS = frozenset("?bBhHiIlLqQnNefd")


def define(value: object) -> GlobalDefinition:
    """Return the definition for a plain value. A definition is returned unchanged.

    Args:
        value: an int, a float, a bool, a str, bytes, an object with a buffer, a named object in a module, or a definition.

    Raises:
        GlobalValidationError: the value cannot be stored without pickle, or is None, which may mean a null pointer or Python's object.
    """
    if isinstance(value, GlobalDefinition):
        return value
    if value is None:
        raise invalid_error("None is ambiguous: pass 0 for a null pointer, or PythonObject.of(None) for the address of Python's None")
    from struct import unpack

    from compcache.globals.blocks import Buffer, Bytes, Text
    from compcache.globals.objects import PythonObject
    from compcache.globals.scalars import Boolean, Float, Integer

    for cls, types in ((Boolean, bool), (Integer, int), (Float, float), (Bytes, bytes), (Text, str)):
        if isinstance(value, types):
            return cls(value)
    try:
        with memoryview(value) as view:  # type: ignore[arg-type]
            is_number = view.readonly and view.shape == () and view.format in _NUMBERS
            numbers = unpack(view.format, view.tobytes()) if is_number else ()
    except TypeError as error:
        reraise_interrupt(error)
        return PythonObject.of(value)
    except (ValueError, BufferError) as error:
        reraise_interrupt(error)
        raise invalid_error(f"a value of type {type(value).__name__} cannot be stored: {error}") from error
    return define(*numbers) if numbers else Buffer.of(value)


def __getattr__(name: str) -> object:
    if name not in _DEFINING_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_DEFINING_MODULES[name]}"), name)
    globals()[name] = value
    return value
