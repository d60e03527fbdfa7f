"""Identifies types that packages and programs add to Numba.

All that is registered for such a type is one dependency of the code that uses the type. The class of the type has methods that the compiler
calls. Its data model describes the layout of values in memory. Functions convert values from and to Python objects. Templates determine the
types of attributes, and functions read attributes.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from numba.core.datamodel import default_manager

from compcache.numba.fingerprints.fingerprint import Limits, content_of_present_code, fingerprint_of_implementations
from compcache.numba.fingerprints.implementations import Implementation, source_of_template, stable_name, user_code_generator
from compcache.numba.registered.code_reads import cells_of
from compcache.numba.registered.library import is_library_module, is_made_by_library
from compcache.numba.registered.package_files import digest_of_package
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LIMITS_OF_CLASSES", "content_of_type", "name_of_type"]

_PREFIX = "type "
#: The maximum numbers of values that are examined before the package's files are compared instead. Comparing files is cheaper.
LIMITS_OF_CLASSES = Limits(1000, 300)
#: Digests of packages' files, by the names of types that can reach too many values, or a value that cannot be compared. Finding that out
#: takes long in some packages.
_contents_by_files: dict[str, str] = {}


def name_of_type(cls: type) -> str:
    """Return the name of the dependency on a class of Numba types."""
    return f"{_PREFIX}{cls.__module__}.{cls.__qualname__}"


def content_of_type(name: str) -> str | None:
    """Return the content of all that is registered for the class of Numba types with this name, or None if there is no such class.

    The content is the digest of all values; if these are too many, or one has no identity, "files " and the digest of the package's files.

    Raise `Unidentifiable` if a value has no identity by content, and the class belongs to no package with files; if this process has
    compiled a function that the registered functions use, from other values; or if several classes have the name.
    """
    classes = [cls for cls in default_manager._handlers if not is_library_module(cls.__module__) and name_of_type(cls) == name]
    if not classes:
        return None
    if len(classes) > 1:  # types of these classes, and what is registered for them, have the same names
        raise Unidentifiable(f"several classes have the name {name.removeprefix(_PREFIX)}: give each class of Numba types its own name")
    if name in _contents_by_files:
        return _contents_by_files[name]
    registered = [Implementation(item, ()) for item in _registered_objects(classes[0])]
    package = classes[0].__module__.partition(".")[0]
    files = digest_of_package(package)
    try:
        fingerprint = fingerprint_of_implementations(registered, read_all=True, limits=None if files is None else LIMITS_OF_CLASSES)
    except Unidentifiable:
        if files is None:
            raise
        _contents_by_files[name] = f"files {files}"
        return _contents_by_files[name]
    return content_of_present_code(fingerprint)


def _registered_objects(cls: type) -> Iterator[Any]:
    """Yield the class, its data model, and the functions and attributes that are registered for it."""
    from numba.core import boxing, pythonapi  # noqa: F401 - the first wrapper registers the conversions of base classes, which count

    yield cls
    yield default_manager._handlers[cls]
    for registry in (pythonapi._boxers, pythonapi._unboxers, pythonapi._reflectors):
        function = registry.lookup(cls)
        if function is not None:
            yield function
    yield from _templates_of(cls)
    yield from _code_generators_of(cls)


def _templates_of(cls: type) -> Iterator[Any]:
    """Yield the classes that determine the types of attributes. For a class of a library, yield a tuple of the user's objects in it.

    Templates that were created from the user's overloads are omitted, because they are recorded when the compiler asks for them.
    """
    from numba.core.typing.templates import builtin_registry

    for template in builtin_registry.attributes:
        if _contains_type(cls, [getattr(template, "key", None)]) and source_of_template(template) in (None, template):
            if is_library_module(template.__module__):
                yield tuple(_user_values(list(vars(template).values())))
            else:
                yield template


def _code_generators_of(cls: type) -> Iterator[Any]:
    """Yield what identifies the code that reads and sets attributes, converts values and creates constants.

    The user's functions for one attribute are omitted, because they are recorded when the compiler asks for them. Functions for any
    attribute, conversions and constants are identified by name, because the compiler may prefer a new function.
    """
    from numba.core.imputils import builtin_registry

    for rows in (builtin_registry.getattrs, builtin_registry.setattrs):
        for implementation, name, types in rows:
            if not _contains_type(cls, types):
                continue
            function = user_code_generator(implementation)
            if function is None:  # Numba's own, for example from `make_attribute_wrapper`
                yield name, *_user_values([implementation])
            elif name is None:
                yield stable_name(function)
    for rows in (builtin_registry.casts, builtin_registry.constants):
        yield from [stable_name(implementation) for implementation, types in rows if _contains_type(cls, types)]


def _contains_type(cls: type, keys: Iterable[Any]) -> bool:
    """Return whether the keys contain the class or one of its types."""
    return any(key is cls or isinstance(key, cls) for key in keys)


def _user_values(values: list[Any]) -> Iterator[Any]:
    """Yield the qualified names of the functions among these values, and the texts, numbers and user functions in their closure cells.

    Numba's functions in the cells are examined in the same way. Other values are skipped.
    """
    for function in [value for value in values if isinstance(value, FunctionType)]:
        yield function.__qualname__
        cells = [item for _, item in cells_of(function)]
        yield from [item for item in cells if isinstance(item, _PLAIN) or (isinstance(item, FunctionType) and not is_made_by_library(item))]
        yield from _user_values([item for item in cells if is_made_by_library(item)])


_PLAIN = (str, int, float, bytes)
