"""What code that runs while code is generated can get at: by every attribute that any of it names, from every module,
class, object and function of the user's that it can lay hands on.

An attribute that none of it names cannot be read; so this grows with the code that is found, until nothing is new (as
rapid type analysis finds the methods of a program). What reads attributes in other ways is refused (`outside`).
"""

from __future__ import annotations

import sys
import types as python_types
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.library_code import is_library_module
from compcache.numba.fingerprints.outside import refuse_outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.numba.fingerprints.walk import Walk

__all__ = ["Reach", "state_of"]

_MISSING = object()
#: What every class has, and what says nothing of what its methods do.
_UNTOLD = frozenset((
    "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__classcell__", "__dataclass_fields__",
    "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__",
    "__qualname__", "__static_attributes__", "__weakref__",
))  # fmt: skip


class Reach:
    """The names that are read, and the owners from which they are."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._owners: dict[int, tuple[Any, str]] = {}
        self._done: set[tuple[int, str]] = set()

    def read(self, walk: Walk, names: Iterable[str]) -> None:
        """Code reads attributes of these names."""
        del walk
        self._names.update(dict.fromkeys(names))

    def add(self, walk: Walk, owner: Any, where: str) -> None:
        """Code can lay hands on this."""
        del walk
        self._owners.setdefault(id(owner), (owner, where))

    def add_import(self, walk: Walk, name: str, namespace: dict[str, Any], where: str) -> None:
        """A function imports a module when it is run; the user's is imported now, to see what is in it."""
        walk.token("import", name)
        for candidate in _module_names(name, namespace):
            module = sys.modules.get(candidate)
            if module is None and not is_library_module(candidate):
                try:
                    module = import_module(candidate)
                except Exception:  # noqa: BLE001 - it is as good as not there, as for who imports it
                    walk.token("no module", candidate)
                    continue
            if module is not None:
                self.add(walk, module, f"the module {candidate} that {where} imports")

    def follow(self, walk: Walk) -> bool:
        """Look up what was not looked up before; whether there was anything."""
        found = False
        for key, (owner, where) in list(self._owners.items()):
            for name in [*_implicit_names(owner), *self._names]:
                if (key, name) in self._done:
                    continue
                self._done.add((key, name))
                for value in _members(owner, name):
                    walk.mode = "run"
                    walk.token("member", where, name)
                    if isinstance(owner, python_types.ModuleType):
                        refuse_outside(value, f"{where}, {name!r},")
                    if not _is_library(owner):
                        _feed_member(walk, value, f"{where}, {name!r}")
                    walk.end_part()
                    found = True
        return found


def _module_names(name: str, namespace: dict[str, Any]) -> Iterator[str]:
    """What a module may be called that is imported under this name, from inside of a package or from outside."""
    package = namespace.get("__package__") or ""
    candidates = [name] if name else []
    while package:
        candidates.append(f"{package}.{name}" if name else package)
        package = package.rpartition(".")[0]
    known = [candidate for candidate in candidates if candidate in sys.modules]
    yield from known or candidates[:1]


def _is_library(owner: Any) -> bool:
    return isinstance(owner, python_types.ModuleType) and is_library_module(owner.__name__)


def _implicit_names(owner: Any) -> list[str]:
    """What is called without being named: the special methods of classes; everything, where `__getattr__` is the user's."""
    if not isinstance(owner, type):
        return []
    return [
        name
        for cls in _users_classes(owner)
        for name in vars(cls)
        if name.startswith("__") and name not in _UNTOLD
    ]


def _users_classes(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if not is_library_module(base.__module__)]


def _members(owner: Any, name: str) -> list[Any]:
    """What an attribute of this name may be."""
    if isinstance(owner, type):
        tables = [vars(cls) for cls in [*_users_classes(owner), *_users_classes(type(owner))]]
        return [table[name] for table in tables if name in table]
    if isinstance(owner, python_types.ModuleType):
        found = getattr(owner, name, _MISSING)
    else:
        found = state_of(owner).get(name, _MISSING)
    return [] if found is _MISSING else [found]


def state_of(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, those in slots included."""
    state = {}
    for cls in reversed(type(value).__mro__):
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, python_types.MemberDescriptorType) and not is_library_module(
                cls.__module__
            ):
                found = getattr(value, name, _MISSING)
                if found is not _MISSING:
                    state[name] = found
    return {**state, **getattr(value, "__dict__", {})}


def _feed_member(walk: Walk, value: Any, where: str) -> None:
    if isinstance(value, (staticmethod, classmethod)):
        _feed_member(walk, value.__func__, where)
    elif isinstance(value, property):
        for function in (value.fget, value.fset, value.fdel):
            walk.value(function, where)
    elif isinstance(value, cached_property):
        walk.value(value.func, where)
    elif isinstance(value, python_types.ModuleType):
        walk.module(value, (), where)
    elif not isinstance(value, (python_types.MemberDescriptorType, python_types.GetSetDescriptorType)):
        walk.value(value, where)
