"""Definitions of global variables: what a module's `external global` is filled with when code is loaded.

Each kind is a small frozen class: `encode` and `decode` turn it into bytes and back, `load` gives the bytes for
the variable's storage and the objects that must live as long as those bytes are in use, and raises
`GlobalValidationError` where the definition no longer holds. `register` makes a kind of your own known.

Plain Python values serve as definitions too (`define`): int, float, bool, bytes, str, anything with a buffer, and
objects that can be found again by their name.
"""

from __future__ import annotations

import sys
from struct import Struct, calcsize
from struct import error as StructError  # noqa: N812 - it is a class

from compcache.errors import GlobalValidationError, PickleNotAllowedError
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Protocol

    class LoadContext(Protocol):
        """What a definition may ask of the process that loads it."""

        allow_pickle: bool

        def address_of(self, buffer: object) -> int:
            """The address of an object's buffer."""

        def find_symbol(self, name: str, library: str | None) -> int:
            """The address of a native symbol, 0 where there is none."""


__all__ = [
    "Boolean",
    "Buffer",
    "Bytes",
    "DictMember",
    "Float",
    "GlobalDefinition",
    "Integer",
    "NativeSymbol",
    "ObjectIdentity",
    "Pickled",
    "PythonObject",
    "Storage",
    "Text",
    "decode_definition",
    "define",
    "register",
]

_POINTER_SIZE = 8
_MAX_SHOWN_BITS = 256


class Storage(Record):
    """The storage of a global variable, read off its LLVM type: a form and a size in bytes.

    Forms: "int", "float", "pointer"; "span" (`{ptr, i64}`: address and length) and "inline" (an array or
    struct that receives the bytes themselves).
    """

    __slots__ = ("form", "size")
    form: str
    size: int

    def __str__(self) -> str:
        return f"{self.form} of {self.size} bytes"


class GlobalDefinition(Record):
    """The base of all kinds. `kind` names the class in stored modules and never changes its meaning.

    `revalidate` says that the value is looked up again at every load, even where the variable is filled.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""
    revalidate: ClassVar[bool] = False

    def encode(self) -> bytes:
        """The definition as bytes, all that `decode` needs."""
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> GlobalDefinition:
        """The definition in `payload`; any exception means that the payload is malformed."""
        raise NotImplementedError

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        """The bytes for the storage, exactly `storage.size`, and what to keep alive beside them.

        Raises:
            GlobalValidationError: the value is not what it was, or does not fit the storage.
        """
        raise NotImplementedError


_kinds: dict[str, type[GlobalDefinition]] = {}
#: Kinds of the package's own that are registered by the import of a module, and where that is.
_ELSEWHERE = {
    "numba": "compcache.numba.entries.description",
    "numba-symbol": "compcache.numba.entries.helper_symbols",
}


def register(cls: type[GlobalDefinition]) -> type[GlobalDefinition]:
    """Make a kind known to this process, by its `kind`; usable as a class decorator.

    Raises:
        ValueError: another class has that kind already, or it is empty.
    """
    if not cls.kind or _kinds.setdefault(cls.kind, cls) is not cls:
        raise ValueError(f"{cls.__qualname__} needs a kind of its own, not {cls.kind!r}")
    return cls


def decode_definition(kind: str, payload: bytes) -> GlobalDefinition:
    """The definition of a stored global.

    Raises:
        GlobalValidationError: the kind is not registered in this process, or the payload is malformed.
    """
    cls = _kinds.get(kind)
    if cls is None and kind in _ELSEWHERE:
        from importlib import import_module

        import_module(_ELSEWHERE[kind])
        cls = _kinds.get(kind)
    if cls is None:
        raise _invalid(f"its kind {kind!r} is not registered in this process (compcache.globals.register)")
    try:
        return cls.decode(payload)
    except Exception as error:
        raise _invalid(f"its definition of kind {kind!r} does not decode: {error}") from error


def define(value: object) -> GlobalDefinition:
    """The definition that a plain value stands for; a definition stands for itself.

    Raises:
        GlobalValidationError: the value is none that can be stored without pickle.
    """
    if isinstance(value, GlobalDefinition):
        return value
    for cls, types in ((Boolean, bool), (Integer, int), (Float, float), (Bytes, bytes), (Text, str)):
        if isinstance(value, types):
            return cls(value)
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except TypeError:
        return PythonObject.of(value)
    return Buffer.of(value)


def _invalid(reason: str) -> GlobalValidationError:
    return GlobalValidationError(reason, reason=reason)


def _misfit(what: str, storage: Storage) -> GlobalValidationError:
    return _invalid(f"{what} does not fit its storage ({storage})")


def _pack_integer(value: int, storage: Storage) -> bytes:
    if storage.form not in ("int", "pointer"):
        raise _misfit(_shown(value), storage)
    try:
        return value.to_bytes(storage.size, "little", signed=value < 0)
    except OverflowError:
        raise _misfit(_shown(value), storage) from None


def _shown(value: int) -> str:
    bits = value.bit_length()
    return f"the integer {value}" if bits <= _MAX_SHOWN_BITS else f"an integer of {bits} bits"


def _pack_span(data: bytes, count: int, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
    """Bytes that live beside the image: mutable, and this load's own."""
    if storage.form == "inline":
        if len(data) > storage.size:
            raise _misfit(f"a value of {len(data)} bytes", storage)
        return data.ljust(storage.size, b"\0"), None
    if storage.form not in ("pointer", "span"):
        raise _misfit(f"a value of {len(data)} bytes", storage)
    keep = bytearray(data + b"\0")
    address = context.address_of(keep).to_bytes(_POINTER_SIZE, "little")
    length = count.to_bytes(8, "little") if storage.form == "span" else b""
    return address + length, memoryview(keep)  # the view keeps the bytearray from being resized


def _pack_object(value: object, storage: Storage) -> tuple[bytes, object]:
    return _pack_integer(id(value), storage), value


@register
class Integer(GlobalDefinition):
    """An integer, for storage of any integer or floating-point type that can hold it."""

    __slots__ = ("value",)
    value: int
    kind = "integer"

    def encode(self) -> bytes:
        return b"%d" % self.value

    @classmethod
    def decode(cls, payload: bytes) -> Integer:
        return cls(int(payload))

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if storage.form == "float":
            try:
                number = float(self.value)
            except OverflowError:
                raise _misfit(_shown(self.value), storage) from None
            return Float(number).load(storage, context)
        return _pack_integer(self.value, storage), None


@register
class Boolean(GlobalDefinition):
    """A truth value, stored as 0 or 1 in an integer."""

    __slots__ = ("value",)
    value: bool
    kind = "boolean"

    def encode(self) -> bytes:
        return b"1" if self.value else b"0"

    @classmethod
    def decode(cls, payload: bytes) -> Boolean:
        return cls({b"0": False, b"1": True}[payload])

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _pack_integer(int(self.value), storage), None


@register
class Float(GlobalDefinition):
    """A floating-point number, for `float` or `double` storage."""

    __slots__ = ("value",)
    value: float
    kind = "float"

    def encode(self) -> bytes:
        return _F64.pack(self.value)

    @classmethod
    def decode(cls, payload: bytes) -> Float:
        return cls(*_F64.unpack(payload))

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if storage.form != "float":
            raise _misfit(f"the float {self.value}", storage)
        try:
            return (_F32 if storage.size == _F32.size else _F64).pack(self.value), None
        except (OverflowError, StructError):
            raise _misfit(f"the float {self.value}", storage) from None


_F32 = Struct("<f")
_F64 = Struct("<d")


@register
class Bytes(GlobalDefinition):
    """Bytes, followed by a NUL: a pointer, a pointer and their number, or the bytes in place."""

    __slots__ = ("value",)
    value: bytes
    kind = "bytes"

    def encode(self) -> bytes:
        return bytes(self.value)

    @classmethod
    def decode(cls, payload: bytes) -> Bytes:
        return cls(payload)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _pack_span(self.value, len(self.value), storage, context)


@register
class Text(GlobalDefinition):
    """A text as UTF-8, followed by a NUL; the length counts bytes."""

    __slots__ = ("value",)
    value: str
    kind = "text"

    def encode(self) -> bytes:
        return self.value.encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, payload: bytes) -> Text:
        return cls(payload.decode("utf-8", "surrogatepass"))

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        data = self.encode()
        return _pack_span(data, len(data), storage, context)


@register
class Buffer(GlobalDefinition):
    """A snapshot of a buffer, taken by `Buffer.of`; the length of a span counts elements.

    Every load decodes its own copy, which the code may change.
    """

    __slots__ = ("data", "format")
    data: bytes
    format: str
    kind = "buffer"

    @classmethod
    def of(cls, exporter: Any) -> Buffer:
        """The content of any object with a buffer, in C order, as it is now."""
        with memoryview(exporter) as view:
            return cls(view.tobytes(), view.format)

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes; 1 where the format is none of the struct module's."""
        try:
            return calcsize(self.format)
        except StructError:
            return 1

    def encode(self) -> bytes:
        return self.format.encode() + b"\0" + self.data

    @classmethod
    def decode(cls, payload: bytes) -> Buffer:
        format_, _, data = payload.partition(b"\0")
        return cls(data, format_.decode())

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _pack_span(self.data, len(self.data) // self.itemsize, storage, context)


def _find(module: str, qualname: str) -> object:
    """The object of this name, importing its module if need be."""
    try:
        __import__(module)
        found: object = sys.modules[module]
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, KeyError, AttributeError) as error:
        raise _invalid(f"{module}:{qualname} cannot be found: {error}") from error
    return found


def _name_of(value: object) -> tuple[str, str]:
    """Where to find an object again: `__reduce__` where that is a name (numpy's ufuncs), else its own name."""
    try:
        reduced = value.__reduce__()
    except Exception:  # noqa: BLE001 - any failure to reduce means that there is no such name
        reduced = None
    qualname = reduced if isinstance(reduced, str) else getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    candidates = [module] if isinstance(module, str) else []
    candidates += [name for name in _modules_with(value, qualname) if name not in candidates]
    for candidate in candidates:
        if isinstance(qualname, str) and _is_found(candidate, qualname, value):
            return candidate, qualname
    raise _invalid(
        f"{value!r} of type {type(value).__qualname__} cannot be found again by module and name; define it as "
        "PythonObject(module, qualname), or as Pickled(value) where the cache is opened with allow_pickle=True"
    )


def _modules_with(value: object, qualname: object) -> list[str]:
    """Loaded modules that hold the object under this name, for objects that do not know their module."""
    if not isinstance(qualname, str):
        return []
    top = type(value).__module__.partition(".")[0]
    loaded = [name for name, module in list(sys.modules.items()) if module is not None]
    loaded.sort(key=lambda name: (name != top, name.count("."), name))
    return [name for name in loaded if getattr(sys.modules[name], "__dict__", {}).get(qualname) is value]


def _is_found(module: str, qualname: str, value: object) -> bool:
    try:
        return _find(module, qualname) is value
    except GlobalValidationError:
        return False


@register
class PythonObject(GlobalDefinition):
    """The object that a module holds under a dotted name: a `PyObject *`, kept alive with the code."""

    __slots__ = ("module", "qualname")
    module: str
    qualname: str
    kind = "object"
    revalidate = True

    @classmethod
    def of(cls, value: object) -> GlobalDefinition:
        """The definition by which `value` will be found again.

        Raises:
            GlobalValidationError: it has no such name.
        """
        return cls(*_name_of(value))

    def encode(self) -> bytes:
        return f"{self.module}\0{self.qualname}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> PythonObject:
        module, qualname = payload.decode().split("\0")
        return cls(module, qualname)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return _pack_object(_find(self.module, self.qualname), storage)


@register
class ObjectIdentity(PythonObject):
    """The identity (`id`) of the object of this name, for code that compares but does not use it."""

    __slots__ = ("module", "qualname")  # `Record` reads the fields of a class off its own slots
    kind = "identity"


@register
class DictMember(GlobalDefinition):
    """The value under `key` (str, int or bytes) in a dict of this name; its type is checked at every load.

    `expected` names the type as ``module:qualname``; pass the class itself to `DictMember.of`.
    """

    __slots__ = ("module", "qualname", "key", "expected")
    module: str
    qualname: str
    key: str | int | bytes
    expected: str
    kind = "member"
    revalidate = True

    @classmethod
    def of(cls, module: str, qualname: str, key: str | int | bytes, expected: type) -> DictMember:
        """The definition with the expected type given as a class."""
        return cls(module, qualname, key, f"{expected.__module__}:{expected.__qualname__}")

    def encode(self) -> bytes:
        if isinstance(self.key, bytes):
            tagged = b"b" + self.key
        elif isinstance(self.key, str):
            tagged = b"s" + self.key.encode()
        elif isinstance(self.key, int):
            tagged = b"i%d" % self.key
        else:
            raise _invalid(f"the key {self.key!r} of {self.module}:{self.qualname} is neither str, int nor bytes")
        return f"{self.module}\0{self.qualname}\0{self.expected}\0".encode() + tagged

    @classmethod
    def decode(cls, payload: bytes) -> DictMember:
        module, qualname, expected, tagged = payload.split(b"\0", 3)
        return cls(module.decode(), qualname.decode(), _decode_key(tagged), expected.decode())

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        where = f"{self.module}:{self.qualname}"
        mapping = _find(self.module, self.qualname)
        if not isinstance(mapping, dict):
            raise _invalid(f"{where} is no dict but of type {type(mapping).__qualname__}")
        value = _member(mapping, self.key, where)
        module, _, qualname = self.expected.partition(":")
        expected = _find(module, qualname)
        if not isinstance(expected, type) or not isinstance(value, expected):
            raise _invalid(f"{where}[{self.key!r}] is of type {type(value).__qualname__}, not {self.expected}")
        return _pack_object(value, storage)


def _decode_key(tagged: bytes) -> str | int | bytes:
    tag, data = tagged[:1], tagged[1:]
    if tag == b"b":
        return data
    return data.decode() if tag == b"s" else int(data)


def _member(mapping: Mapping[Any, object], key: object, where: str) -> object:
    try:
        return mapping[key]
    except (KeyError, TypeError):
        raise _invalid(f"{where} has no member {key!r}") from None


@register
class NativeSymbol(GlobalDefinition):
    """The address of a native symbol of the process, or of a shared library that is loaded for it.

    It serves for external globals and for functions that the module declares.
    """

    __slots__ = ("name", "library")
    name: str
    library: str | None
    kind = "native"

    def __init__(self, name: str, library: str | None = None) -> None:
        super().__init__(name, library)

    def encode(self) -> bytes:
        return f"{self.name}\0{self.library or ''}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> NativeSymbol:
        name, library = payload.decode().split("\0")
        return cls(name, library or None)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        address = context.find_symbol(self.name, self.library)
        if not address:
            raise _invalid(f"{self.library or 'the process'} has no native symbol {self.name!r}")
        return _pack_integer(address, storage), None


@register
class Pickled(GlobalDefinition):
    """Any picklable object, for caches that are opened with `allow_pickle=True`; `Pickled.of(value)` makes one.

    Reading a pickle runs what its writer wanted. Every load decodes an object of its own.
    """

    __slots__ = ("data",)
    data: bytes
    kind = "pickle"

    @classmethod
    def of(cls, value: object) -> Pickled:
        """The definition of `value` as it is now.

        Raises:
            GlobalValidationError: it cannot be pickled.
        """
        import pickle

        try:
            return cls(pickle.dumps(value, protocol=4))
        except Exception as error:
            raise _invalid(f"{type(value).__qualname__} object cannot be pickled: {error}") from error

    def encode(self) -> bytes:
        return self.data

    @classmethod
    def decode(cls, payload: bytes) -> Pickled:
        return cls(payload)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        if not context.allow_pickle:
            reason = "it is pickled, and the cache was not opened with allow_pickle=True"
            raise PickleNotAllowedError(reason, reason=reason)
        import pickle

        try:
            value = pickle.loads(self.data)  # noqa: S301 - only for a caller who allowed it
        except Exception as error:
            raise _invalid(f"it does not unpickle: {error}") from error
        return _pack_object(value, storage)
