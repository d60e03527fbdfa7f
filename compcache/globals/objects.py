"""Definitions that refer to Python objects by name. The objects are looked up when code is loaded."""

from __future__ import annotations

import sys

from compcache.errors import GlobalValidationError
from compcache.globals.definition import GlobalDefinition, Storage, invalid_error, pack_object, register
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.globals.definition import LoadContext

__all__ = ["DictMember", "ObjectIdentity", "PythonObject"]


def _find_object(module: str, qualname: str) -> object:
    """Import a module, and return its object with a qualified name. Raise `GlobalValidationError` if it is not found."""
    try:
        __import__(module)
        value: object = sys.modules[module]
        for attribute in qualname.split("."):
            value = getattr(value, attribute)
    except (ImportError, KeyError, AttributeError) as error:
        reraise_interrupt(error)
        raise invalid_error(f"the object {module}:{qualname} is not found: {error!r}; install the module, or define the object") from error
    return value


def _find_name(value: object) -> tuple[str, str]:
    """Return the module and the qualified name of an object for `_find_object`. Raise `GlobalValidationError` if no name finds it."""
    for module, qualname in _possible_names(value):
        if _is_found(module, qualname, value):
            return module, qualname
    raise invalid_error(
        f"the object {value!r} of type {type(value).__qualname__} cannot be found by module and name: define it as "
        "PythonObject(module, qualname), or as Pickled.of(value) and open the cache with allow_pickle=True; a table of numbers must be a "
        "buffer, like array.array('d', values)"
    )


def _possible_names(value: object) -> Iterator[tuple[str, str]]:
    """Yield pairs of a module and a qualified name that an object may have.

    These are the name to which the object reduces (NumPy ufuncs) or its qualified name, the name of a method in its class, and the names in
    loaded modules of an object that does not know its module (`numpy.random.normal`).
    """
    try:
        reduced = value.__reduce__()
    except Exception as error:  # noqa: BLE001 - any failure to reduce means that the object has no importable name
        reraise_interrupt(error)
        reduced = None
    qualname = reduced if isinstance(reduced, str) else getattr(value, "__qualname__", None)
    # Descriptors of built-in classes know their class, but not their module.
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    if isinstance(module, str) and isinstance(qualname, str):
        yield module, qualname
    owner, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
    if isinstance(owner, type) and isinstance(name, str):
        yield owner.__module__, f"{owner.__qualname__}.{name}"
    for possible in dict.fromkeys((qualname, name, "None" if value is None else None)):
        if isinstance(possible, str):
            yield from [(module, possible) for module in _modules_with(value, possible)]


def _modules_with(value: object, qualname: str) -> list[str]:
    """Return the names of the loaded modules that contain an object under a name, the best first.

    The best is the top-level package of the object's type. The others are sorted by their nesting, the least nested first.
    """
    top_package = type(value).__module__.partition(".")[0]
    containers = [name for name, module in list(sys.modules.items()) if getattr(module, "__dict__", {}).get(qualname) is value]
    return sorted(containers, key=lambda name: (name != top_package, name.count("."), name))


def _is_found(module: str, qualname: str, value: object) -> bool:
    """Return whether a module contains this very object under a name."""
    try:
        return _is_same_object(_find_object(module, qualname), value)
    except GlobalValidationError:
        return False


def _is_same_object(current: object, value: object) -> bool:
    """Return whether two objects are identical. Bound class methods are compared by equality, because each look-up creates a new object."""
    is_method = isinstance(getattr(value, "__self__", None), type) and type(current) is type(value)
    return current is value or (is_method and current == value)


@register
class PythonObject(GlobalDefinition):
    """The object with a qualified name in a module. The variable is a `PyObject *`. The loaded code keeps the object alive.

    Args:
        module: the name of the module.
        qualname: the qualified name of the object in the module.
    """

    __slots__ = ("module", "qualname")
    module: str
    qualname: str
    kind = "object"
    revalidate = True

    @classmethod
    def of(cls, value: object) -> GlobalDefinition:
        """Return the definition that finds an object by its name.

        Args:
            value: an object that a module contains, such as a function, a class or a constant.

        Raises:
            GlobalValidationError: no module contains the object under a name.
        """
        return cls(*_find_name(value))

    def encode(self) -> bytes:
        return f"{self.module}\0{self.qualname}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> PythonObject:
        module, qualname = payload.decode().split("\0")
        return cls(module, qualname)

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        return pack_object(_find_object(self.module, self.qualname), storage)

    def is_same(self, stored: object, current: object) -> bool:
        return _is_same_object(stored, current)


@register
class ObjectIdentity(PythonObject):
    """The identity (`id`) of an object in a module, for code that only compares identities.

    Args:
        module: the name of the module.
        qualname: the qualified name of the object in the module.
    """

    __slots__ = ("module", "qualname")  # `Record` takes the fields of a class from its own slots
    kind = "identity"

    @classmethod
    def of(cls, value: object) -> GlobalDefinition:
        """Return the definition that finds an object by its name.

        Args:
            value: an object that a module contains.

        Raises:
            GlobalValidationError: no module contains the object under a name, or each look-up creates a new object, as for a class method.
        """
        module, qualname = _find_name(value)
        if _find_object(module, qualname) is not value:
            raise invalid_error(
                f"{module}:{qualname} has no identity to compare, because each look-up returns a different object: name a stored object"
            )
        return cls(module, qualname)


@register
class DictMember(GlobalDefinition):
    """The value for a key in a dict that a module contains. The type of the value is checked at every load.

    Args:
        module: the name of the module.
        qualname: the qualified name of the dict in the module.
        key: the key.
        expected: the type of the value, as ``module:qualname``. `DictMember.of` accepts a class instead.
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
        """Return the definition for a value whose expected type is given as a class.

        Args:
            module: the name of the module that contains the dict.
            qualname: the qualified name of the dict in the module.
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
            raise invalid_error(f"the key {self.key!r} of {self.module}:{self.qualname} must be a str, an int or bytes")
        return f"{self.module}\0{self.qualname}\0{self.expected}\0".encode() + tagged

    @classmethod
    def decode(cls, payload: bytes) -> DictMember:
        module, qualname, expected, tagged = payload.split(b"\0", 3)
        return cls(module.decode(), qualname.decode(), _decode_key(tagged), expected.decode())

    def load(self, storage: Storage, context: LoadContext) -> tuple[bytes, object]:
        location = f"{self.module}:{self.qualname}"
        mapping = _find_object(self.module, self.qualname)
        if not isinstance(mapping, dict):
            raise invalid_error(f"{location} must be a dict, not an object of type {type(mapping).__qualname__}")
        try:
            value = mapping[self.key]
        except (KeyError, TypeError):  # a subclass may raise either
            raise invalid_error(f"the dict {location} has no key {self.key!r}: add the key before the function is loaded") from None
        module, _, qualname = self.expected.partition(":")
        expected = _find_object(module, qualname)
        if not isinstance(expected, type) or not isinstance(value, expected):
            raise invalid_error(f"{location}[{self.key!r}] must be of type {self.expected}, not {type(value).__qualname__}")
        return pack_object(value, storage)


def _decode_key(tagged: bytes) -> str | int | bytes:
    """Return the dict key that `DictMember.encode` has stored."""
    tag, data = tagged[:1], tagged[1:]
    if tag == b"b":
        return data
    return data.decode() if tag == b"s" else int(data)
