"""Python objects, found again by their names when code is loaded."""

from __future__ import annotations

import sys

from compcache.errors import GlobalValidationError
from compcache.files import reraise_interrupt
from compcache.globals.definition import GlobalDefinition, Storage, invalid, pack_object, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from compcache.globals.definition import LoadContext

__all__ = ["DictMember", "ObjectIdentity", "PythonObject"]


def _find(module: str, qualname: str) -> object:
    """Return the object of this name; import its module if necessary."""
    try:
        __import__(module)
        found: object = sys.modules[module]
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, KeyError, AttributeError) as error:
        reraise_interrupt(error)
        raise invalid(f"{module}:{qualname} cannot be found: {error}") from error
    return found


def _name_of(value: object) -> tuple[str, str]:
    """Return the module and the name by which an object can be found again."""
    for module, qualname in _candidates(value):
        if _is_found(module, qualname, value):
            return module, qualname
    raise invalid(
        f"{value!r} of type {type(value).__qualname__} cannot be found again by module and name; define it as "
        "PythonObject(module, qualname), or as Pickled.of(value) where the cache is opened with allow_pickle=True"
    )


def _candidates(value: object) -> Iterator[tuple[str, str]]:
    """Yield the possible names of an object: the one to which it reduces (numpy's ufuncs), or its own; for a method of a class, one inside
    the class; for objects that do not know their module (`numpy.random.normal`), their names in loaded modules.
    """
    try:
        reduced = value.__reduce__()
    except Exception as error:  # noqa: BLE001 - any failure to reduce means that the object has no importable name
        reraise_interrupt(error)
        reduced = None
    qualname = reduced if isinstance(reduced, str) else getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    if isinstance(module, str) and isinstance(qualname, str):
        yield module, qualname
    owner, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
    if isinstance(owner, type) and isinstance(name, str):
        yield owner.__module__, f"{owner.__qualname__}.{name}"
    for known in dict.fromkeys((qualname, name, "None" if value is None else None)):
        if isinstance(known, str):
            yield from [(module, known) for module in _modules_with(value, known)]


def _modules_with(value: object, qualname: str) -> list[str]:
    """Return the loaded modules that hold the object under this name."""
    top = type(value).__module__.partition(".")[0]
    loaded = [name for name, module in list(sys.modules.items()) if module is not None]
    loaded.sort(key=lambda name: (name != top, name.count("."), name))
    return [name for name in loaded if getattr(sys.modules[name], "__dict__", {}).get(qualname) is value]


def _is_found(module: str, qualname: str, value: object) -> bool:
    try:
        return _is_one(_find(module, qualname), value)
    except GlobalValidationError:
        return False


def _is_one(found: object, value: object) -> bool:
    """Return whether two objects are the same. A look-up of a class's method makes a new object each time, so methods are compared."""
    is_method = isinstance(getattr(value, "__self__", None), type) and type(found) is type(value)
    return found is value or (is_method and found == value)  # methods are equal if function and class are one


@register
class PythonObject(GlobalDefinition):
    """The object that a module holds under a dotted name: a `PyObject *`, kept alive with the code.

    Args:
        module: the module.
        qualname: the object's name in it, with dots.
    """

    __slots__ = ("module", "qualname")
    module: str
    qualname: str
    kind = "object"
    revalidate = True

    @classmethod
    def of(cls, value: object) -> GlobalDefinition:
        """Return the definition that finds `value` again.

        Args:
            value: an object that a module holds: a function, a class, a constant.

        Raises:
            GlobalValidationError: no module holds it under a name.
        """
        return cls(*_name_of(value))

    def encode(self) -> bytes:
        return f"{self.module}\0{self.qualname}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> PythonObject:
        module, qualname = payload.decode().split("\0")
        return cls(module, qualname)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return pack_object(_find(self.module, self.qualname), storage)

    def is_same(self, known: object, found: object) -> bool:
        return _is_one(known, found)


@register
class ObjectIdentity(PythonObject):
    """The identity (`id`) of the object of this name, for code that compares but does not use it.

    Args:
        module: the module.
        qualname: the object's name in it.
    """

    __slots__ = ("module", "qualname")  # `Record` reads the fields of a class off its own slots
    kind = "identity"

    @classmethod
    def of(cls, value: object) -> GlobalDefinition:
        """Return the definition that finds `value` again. Methods of classes have no identity, because each look-up makes a new object.

        Args:
            value: an object that a module holds.

        Raises:
            GlobalValidationError: it has no such name, or no identity.
        """
        module, qualname = _name_of(value)
        if _find(module, qualname) is not value:
            raise invalid(f"{module}:{qualname} is a different object on each look-up, so it has no identity to compare")
        return cls(module, qualname)


@register
class DictMember(GlobalDefinition):
    """The value under a key in a dict that a module holds; its type is checked at every load.

    Args:
        module: the module.
        qualname: the dict's name in it.
        key: the key.
        expected: the type, as ``module:qualname``; `DictMember.of` takes the class itself.
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
        """Return the definition with the expected type given as a class.

        Args:
            module: the module that holds the dict.
            qualname: the dict's name in it.
            key: the key.
            expected: the class of the value.
        """
        return cls(module, qualname, key, f"{expected.__module__}:{expected.__qualname__}")

    def encode(self) -> bytes:
        if isinstance(self.key, bytes):
            tagged = b"b" + self.key
        elif isinstance(self.key, str):
            tagged = b"s" + self.key.encode()
        elif isinstance(self.key, int):
            tagged = b"i%d" % self.key
        else:
            raise invalid(f"the key {self.key!r} of {self.module}:{self.qualname} is neither str, int nor bytes")
        return f"{self.module}\0{self.qualname}\0{self.expected}\0".encode() + tagged

    @classmethod
    def decode(cls, payload: bytes) -> DictMember:
        module, qualname, expected, tagged = payload.split(b"\0", 3)
        return cls(module.decode(), qualname.decode(), _decode_key(tagged), expected.decode())

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        where = f"{self.module}:{self.qualname}"
        mapping = _find(self.module, self.qualname)
        if not isinstance(mapping, dict):
            raise invalid(f"{where} is not a dict but of type {type(mapping).__qualname__}")
        value = _member(mapping, self.key, where)
        module, _, qualname = self.expected.partition(":")
        expected = _find(module, qualname)
        if not isinstance(expected, type) or not isinstance(value, expected):
            raise invalid(f"{where}[{self.key!r}] is of type {type(value).__qualname__}, not {self.expected}")
        return pack_object(value, storage)


def _decode_key(tagged: bytes) -> str | int | bytes:
    tag, data = tagged[:1], tagged[1:]
    if tag == b"b":
        return data
    return data.decode() if tag == b"s" else int(data)


def _member(mapping: Mapping[Any, object], key: object, where: str) -> object:
    try:
        return mapping[key]
    except (KeyError, TypeError):
        raise invalid(f"{where} has no member {key!r}") from None
