"""Identifies the objects that compile functions: dispatchers, and dispatchers of ufuncs. Distinguishes classes of one name.

Several dispatchers may compile one Python function. Each has its own code, which may be compiled at another time, from other values.
"""

from __future__ import annotations

from _weakref import ref  # importing `weakref` is slow

from compcache.numba.registered.library import name_of_class
from compcache.numba.registered.marks import is_marked
from compcache.numba.registered.named_objects import name_object, present_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "function_of", "hashed_reference", "is_compared_by_identity", "name_and_number_of_class", "owner_of", "record_lazy_owner",
    "record_ufunc", "ufunc_of",
]  # fmt: skip

#: The attributes of Numba's objects that contain the owner of a lazy function's code, and a weak reference to the ufunc of a dispatcher.
_OWNER, _UFUNC = "_compcache_owner", "_compcache_ufunc"


def owner_of(value: Any) -> Any:
    """Return the one object that stands for both a dispatcher and the lazy function from which Numba's dispatcher is created."""
    if is_marked(type(value), _OWNER):  # a lazy function
        return type(value)._compcache_owner(value)
    compiler = getattr(value, "_compiler", value)
    return getattr(compiler, _OWNER, compiler)


def function_of(value: Any) -> Any:
    """Return the function that a dispatcher or a lazy function compiles, even if the program has set `py_func` to another function."""
    owner = owner_of(value)
    return getattr(owner, "function", None) or owner.py_func


def hashed_reference(value: Any) -> ref[Any]:
    """Return a weak reference to an object. The reference can become a key even after the object was freed."""
    reference = ref(value)
    hash(reference)  # the reference remembers its hash
    return reference


def is_compared_by_identity(cls: type) -> bool:
    """Return whether a class equals only itself. If its metaclass defines otherwise, references to the class cannot be keys."""
    metaclass = type(cls)
    return metaclass.__hash__ is type.__hash__ and metaclass.__eq__ is type.__eq__


def name_and_number_of_class(cls: type) -> tuple[str, int]:
    """Return the name under which code can refer to a class, and the number of the class; ("", 0) if its module does not contain the class.

    The number is that among the classes to which code has referred by this name, and which still exist: 0 for the first one. Code refers to
    a class by its name when it is loaded, or raises the class for the first time. So code for a class that was defined again has another
    key than code for the former class: an image is mapped once, and keeps its class.
    """
    name = name_of_class(cls)
    if name is None:
        return "", 0
    group = f"class {cls.__module__}.{name}"
    known = present_name(id(cls)) or ""
    return name, int((known if known.startswith(f"{group}-") else name_object(cls, group)).rpartition("-")[2])


def record_lazy_owner(dispatcher: Any, owner: Any) -> None:
    """Record the owner of the code of a lazy function for its new dispatcher. Do nothing for an object without a compiler, like a ufunc."""
    compiler = getattr(dispatcher, "_compiler", None)
    if compiler is not None:
        setattr(compiler, _OWNER, owner)


def record_ufunc(dispatcher: Any, ufunc: Any) -> None:
    """Record the ufunc whose loops a dispatcher compiles."""
    setattr(dispatcher, _UFUNC, ref(ufunc))


def ufunc_of(dispatcher: Any) -> Any:
    """Return the ufunc whose loops a dispatcher compiles; None if it is unknown, or was freed."""
    reference = getattr(dispatcher, _UFUNC, None)
    return None if reference is None else reference()
