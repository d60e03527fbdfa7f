"""The base class of all kinds of definitions, the storage of variables, and the registry of kinds."""

from __future__ import annotations

from importlib import import_module

from compcache.errors import CompcacheError, GlobalValidationError
from compcache.interrupts import reraise_interrupt
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Protocol, TypeVar

    _Kind = TypeVar("_Kind", bound="type[GlobalDefinition]")

    class LoadContext(Protocol):
        """The services of the loading process that a definition may use."""

        allow_pickle: bool

        def address_of(self, buffer: object) -> int:
            """Return the address of an object's buffer. The address is valid while the caller keeps the object alive and its size."""

        def find_symbol(self, name: str, library: str | None) -> int:
            """Return the address of a native symbol in a library, or in the process if `library` is None; 0 if it is not defined."""


__all__ = [
    "GlobalDefinition", "Storage", "call_encode", "call_load", "decode_definition", "describe_integer", "invalid_error", "misfit_error",
    "pack_integer", "pack_object", "register",
]  # fmt: skip

_MAX_SHOWN_BITS = 256

#: The Python modules that register kinds when they are imported, by kind. A load imports only the modules of the kinds that it needs.
_DEFINING_MODULES = {
    "boolean": "compcache.globals.scalars",
    "buffer": "compcache.globals.blocks",
    "bytes": "compcache.globals.blocks",
    "cython-function": "compcache.numba.registered.cython_functions",
    "float": "compcache.globals.scalars",
    "identity": "compcache.globals.objects",
    "integer": "compcache.globals.scalars",
    "jitclass-box": "compcache.numba.registered.jitclasses",
    "member": "compcache.globals.objects",
    "native": "compcache.globals.native",
    "numba-symbol": "compcache.numba.entries.helper_symbols",
    "object": "compcache.globals.objects",
    "pickle": "compcache.globals.pickled",
    "program-array": "compcache.numba.registered.program_arrays",
    "text": "compcache.globals.blocks",
}


class Storage(Record):
    """The storage of a global variable, derived from its LLVM type.

    Args:
        form: "int", "float", "pointer", "span" (``{ptr, i64}``, an address and a length) or "inline" (an array or struct that contains
            the bytes).
        size: the size in bytes.
    """

    __slots__ = ("form", "size")
    form: str
    size: int

    def __str__(self) -> str:
        return f"{self.form} of {self.size} bytes"


class GlobalDefinition(Record):
    """The base class of all kinds of definitions.

    `kind` identifies the class in stored modules, and must never change its meaning. If `revalidate` is true, the value is looked up at
    every load, even if the variable already has its value.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""
    revalidate: ClassVar[bool] = False

    @property
    def is_machine_code(self) -> bool:
        """Whether the value is code for one CPU, so that a module with this value is usable only on this CPU."""
        return False

    def encode(self) -> bytes:
        """Return the definition as bytes for `decode`."""
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> GlobalDefinition:
        """Decode a definition. This may raise any exception if the payload is malformed.

        Args:
            payload: the bytes that `encode` returned, possibly of another version of the class, or damaged.
        """
        raise NotImplementedError

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the `storage.size` bytes for the variable, and an object that must live as long as the bytes are used, or None.

        Args:
            storage: the form and the size of the variable.
            context: the services for loading.

        Raises:
            GlobalValidationError: the value has changed, or does not fit the storage.
        """
        raise NotImplementedError

    def is_same(self, stored: object, current: object) -> bool:
        """Return whether two objects that `load` returned are interchangeable. If so, the variable keeps the first object.

        Args:
            stored: the object of the first load.
            current: the object of this load.
        """
        return False


_kinds: dict[str, type[GlobalDefinition]] = {}


def register(cls: _Kind) -> _Kind:
    """Register a class of definitions in this process. Can be used as a class decorator.

    A class that is defined again, for example by a notebook cell or by reloading a module, replaces the earlier class.

    Returns:
        The class.

    Raises:
        ValueError: the `kind` of the class is empty, or another class has the same `kind`.
    """
    full_name = cls.__module__, cls.__qualname__
    registered = _kinds.get(cls.kind)
    is_reserved = cls.kind in _DEFINING_MODULES and _DEFINING_MODULES[cls.kind] != cls.__module__
    if not cls.kind:
        raise ValueError(f"the class {cls.__qualname__} has no `kind`: set its `kind` to a unique name")
    if is_reserved or (registered is not None and (registered.__module__, registered.__qualname__) != full_name):
        raise ValueError(f"the kind {cls.kind!r} of the class {cls.__qualname__} is in use by another class: choose another kind")
    _kinds[cls.kind] = cls
    return cls


def decode_definition(kind: str, payload: bytes) -> GlobalDefinition:
    """Decode the stored definition of a global variable.

    Args:
        kind: the `kind` of the definition's class.
        payload: the bytes that the definition's `encode` returned.

    Raises:
        GlobalValidationError: the kind is not registered in this process, or the payload is malformed.
    """
    if kind not in _kinds and kind in _DEFINING_MODULES:
        import_module(_DEFINING_MODULES[kind])
    cls = _kinds.get(kind)
    if cls is None:
        raise invalid_error(f"the kind {kind!r} is not registered in this process: import the package that registers it")
    try:
        definition = cls.decode(payload)
    except Exception as error:
        reraise_interrupt(error)
        raise invalid_error(f"the stored definition of the kind {kind!r} cannot be decoded: {error}") from error
    if not isinstance(definition, GlobalDefinition):
        raise invalid_error(f"decode() of the kind {kind!r} must return a GlobalDefinition, not {type(definition).__name__}")
    return definition


def call_encode(definition: GlobalDefinition) -> bytes:
    """Call a definition's `encode`, which the program may have implemented, and return the result.

    Raises:
        GlobalValidationError: the result is not bytes, or `encode` raised an exception.
        CompcacheError, MemoryError: raised by `encode`.
    """
    try:
        payload = definition.encode()
    except Exception as error:
        reraise_interrupt(error)
        raise _wrapped_error(error, f"encode() of the kind {definition.kind!r} failed") from error
    if not isinstance(payload, bytes):
        raise invalid_error(f"encode() of the kind {definition.kind!r} must return bytes, not {type(payload).__name__}")
    return payload


def call_load(definition: GlobalDefinition, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
    """Call a definition's `load`, which the program may have implemented, and return the result.

    Raises:
        GlobalValidationError: the size of the result differs from the size of the storage, or `load` raised an exception.
        CompcacheError, MemoryError: raised by `load`.
    """
    try:
        data, kept_alive = definition.load(storage, context)
        size = memoryview(data).nbytes
    except Exception as error:
        reraise_interrupt(error)
        raise _wrapped_error(error, f"load() of the kind {definition.kind!r} failed") from error
    if size != storage.size:
        raise invalid_error(f"load() of the kind {definition.kind!r} returned {size} bytes for a variable of {storage.size} bytes")
    return data, kept_alive


def _wrapped_error(error: Exception, action: str) -> GlobalValidationError:
    """Return a `GlobalValidationError` for an exception that a definition raised. Reraise package errors and `MemoryError`."""
    if isinstance(error, (CompcacheError, MemoryError)):
        raise error
    return invalid_error(f"{action}: {error!r}")


def invalid_error(reason: str) -> GlobalValidationError:
    """Return the exception for an invalid definition. Its message and its `reason` are `reason`."""
    return GlobalValidationError(reason, reason=reason)


def misfit_error(value_text: str, storage: Storage) -> GlobalValidationError:
    """Return the exception for a value that does not fit its storage. `value_text` describes the value."""
    return invalid_error(f"{value_text} does not fit the variable's storage ({storage}): give another value, or change the variable's type")


def pack_integer(value: int, storage: Storage) -> bytes:
    """Convert an integer to the bytes for a variable.

    Raises:
        GlobalValidationError: the integer does not fit the storage.
    """
    if storage.form not in ("int", "pointer"):
        raise misfit_error(describe_integer(value), storage)
    try:
        return value.to_bytes(storage.size, "little", signed=value < 0)
    except OverflowError:
        raise misfit_error(describe_integer(value), storage) from None


def describe_integer(value: int) -> str:
    """Describe an integer for a message. A long integer is described by its number of bits."""
    bits = value.bit_length()
    return f"the integer {value}" if bits <= _MAX_SHOWN_BITS else f"an integer of {bits} bits"


def pack_object(value: object, storage: Storage) -> tuple[bytes, object]:
    """Return the address of an object as the bytes for a variable, and the object, which must live as long as the bytes are used.

    Raises:
        GlobalValidationError: the storage cannot contain an address.
    """
    return pack_integer(id(value), storage), value
