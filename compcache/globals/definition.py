"""The base of all kinds of global variables: storage, bytes, and the registry of kinds."""

from __future__ import annotations

from importlib import import_module

from compcache.errors import CompcacheError, GlobalValidationError
from compcache.files import reraise_interrupt
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Protocol, TypeVar

    _Kind = TypeVar("_Kind", bound="type[GlobalDefinition]")

    class LoadContext(Protocol):
        """The services of the loading process that a definition may use."""

        allow_pickle: bool

        def address_of(self, buffer: object) -> int:
            """Return the address of an object's buffer."""

        def find_symbol(self, name: str, library: str | None) -> int:
            """Return the address of a native symbol; 0 if it is not defined."""


__all__ = [
    "GlobalDefinition",
    "Storage",
    "decode_definition",
    "encoded",
    "invalid",
    "known_kinds",
    "loaded",
    "misfit",
    "pack_integer",
    "pack_object",
    "register",
    "shown",
]

_MAX_SHOWN_BITS = 256

#: The module that registers a kind when it is imported: a load imports those that it needs and no others.
_HOMES = {
    "boolean": "compcache.globals.scalars",
    "buffer": "compcache.globals.blocks",
    "bytes": "compcache.globals.blocks",
    "cython-function": "compcache.numba.registered.cython_functions",
    "float": "compcache.globals.scalars",
    "identity": "compcache.globals.objects",
    "integer": "compcache.globals.scalars",
    "member": "compcache.globals.objects",
    "native": "compcache.globals.native",
    "numba-symbol": "compcache.numba.entries.helper_symbols",
    "object": "compcache.globals.objects",
    "pickle": "compcache.globals.pickled",
    "program-array": "compcache.numba.registered.program_arrays",
    "text": "compcache.globals.blocks",
}


class Storage(Record):
    """The storage of a global variable, read from its LLVM type.

    Args:
        form: "int", "float", "pointer"; "span" (``{ptr, i64}``: address and length) or "inline" (an array or struct that receives
            the bytes themselves).
        size: in bytes.
    """

    __slots__ = ("form", "size")
    form: str
    size: int

    def __str__(self) -> str:
        return f"{self.form} of {self.size} bytes"


class GlobalDefinition(Record):
    """The base of all kinds. `kind` names the class in stored modules and never changes its meaning.

    `revalidate`: the value is looked up again at every load, even if the variable is filled.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""
    revalidate: ClassVar[bool] = False

    @property
    def is_machine_code(self) -> bool:
        """Whether the value is code for one CPU, so that a module with it is usable on that CPU only."""
        return False

    def encode(self) -> bytes:
        """Return the definition as bytes, from which `decode` restores it."""
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> GlobalDefinition:
        """Return the definition in `payload`; any exception means that the payload is malformed.

        Args:
            payload: what `encode` returned, perhaps in another version of the class, or damaged.
        """
        raise NotImplementedError

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """Return the bytes for the storage, exactly `storage.size`, and the objects that must stay alive with them.

        Args:
            storage: the form and the size of the variable.
            context: the services for loading.

        Raises:
            GlobalValidationError: the value has changed, or does not fit the storage.
        """
        raise NotImplementedError

    def is_same(self, known: object, found: object) -> bool:
        """Return whether two objects kept by `load` are the same despite different addresses. The first one then stays.

        Args:
            known: the object of the first load.
            found: the object of this load.
        """
        return False


_kinds: dict[str, type[GlobalDefinition]] = {}


def register(cls: _Kind) -> _Kind:
    """Make a kind known to this process by its `kind`. Usable as a class decorator.

    A class that is defined again (by a notebook's cell, by reloading a module) replaces the former one.

    Raises:
        ValueError: another class has that kind already, or it is empty.
    """
    home = cls.__module__, cls.__qualname__
    known = _kinds.get(cls.kind)
    taken = cls.kind in _HOMES and _HOMES[cls.kind] != cls.__module__
    if not cls.kind or taken or (known is not None and (known.__module__, known.__qualname__) != home):
        raise ValueError(f"{cls.__qualname__} needs a kind of its own, not {cls.kind!r}")
    _kinds[cls.kind] = cls
    return cls


def known_kinds() -> tuple[str, ...]:
    """Return the names of all kinds that this process can decode, sorted."""
    return tuple(sorted(_HOMES.keys() | _kinds.keys()))


def decode_definition(kind: str, payload: bytes) -> GlobalDefinition:
    """Return the definition of a stored global.

    Args:
        kind: the name of its class.
        payload: what the definition's `encode` returned.

    Raises:
        GlobalValidationError: the kind is not registered in this process, or the payload is malformed.
    """
    if kind not in _kinds and kind in _HOMES:
        import_module(_HOMES[kind])
    cls = _kinds.get(kind)
    if cls is None:
        raise invalid(f"its kind {kind!r} is not registered in this process (compcache.globals.register)")
    try:
        definition = cls.decode(payload)
    except Exception as error:
        reraise_interrupt(error)
        raise invalid(f"its definition of kind {kind!r} does not decode: {error}") from error
    if not isinstance(definition, GlobalDefinition):
        raise invalid(f"kind {kind!r} decodes to {type(definition).__name__}, which is not a GlobalDefinition")
    return definition


def encoded(definition: GlobalDefinition) -> bytes:
    """Return the result of `encode` if it is bytes. The class may be the program's own.

    Raises:
        GlobalValidationError: the result is not bytes, or `encode` raised an error.
    """
    try:
        payload = definition.encode()
    except Exception as error:
        reraise_interrupt(error)
        raise _failure(error, f"its definition of kind {definition.kind!r} does not encode") from error
    if not isinstance(payload, bytes):
        raise invalid(f"kind {definition.kind!r} encodes to {type(payload).__name__}, not to bytes")
    return payload


def loaded(definition: GlobalDefinition, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
    """Return the result of `load` if it fits the storage. The class may be the program's own.

    Raises:
        GlobalValidationError: the result does not fit, or `load` raised an error.
    """
    try:
        data, kept = definition.load(storage, context)
        size = memoryview(data).nbytes
    except Exception as error:
        reraise_interrupt(error)
        raise _failure(error, f"its value of kind {definition.kind!r} does not load") from error
    if size != storage.size:
        raise invalid(f"kind {definition.kind!r} loads {size} bytes for a variable of {storage.size}")
    return data, kept


def _failure(error: Exception, what: str) -> GlobalValidationError:
    """Return the error about a failure in a class of the program; raise errors again that do not concern the class."""
    if isinstance(error, (CompcacheError, MemoryError)):
        raise error
    return invalid(f"{what}: {error!r}")


def invalid(reason: str) -> GlobalValidationError:
    """Return the error about an invalid definition."""
    return GlobalValidationError(reason, reason=reason)


def misfit(what: str, storage: Storage) -> GlobalValidationError:
    """Return the error about a value that does not fit its storage."""
    return invalid(f"{what} does not fit its storage ({storage})")


def pack_integer(value: int, storage: Storage) -> bytes:
    """Return an integer as the bytes of its storage.

    Raises:
        GlobalValidationError: the integer does not fit.
    """
    if storage.form not in ("int", "pointer"):
        raise misfit(shown(value), storage)
    try:
        return value.to_bytes(storage.size, "little", signed=value < 0)
    except OverflowError:
        raise misfit(shown(value), storage) from None


def shown(value: int) -> str:
    """Return an integer in its form for messages."""
    bits = value.bit_length()
    return f"the integer {value}" if bits <= _MAX_SHOWN_BITS else f"an integer of {bits} bits"


def pack_object(value: object, storage: Storage) -> tuple[bytes, object]:
    """Return the address of an object as the bytes of its storage, and the object, which must live as long as the bytes."""
    return pack_integer(id(value), storage), value
