"""Finds the values that code can reach while it runs during code generation.

These are all attributes that the code names, of every module, class, object and function of the user that it can access. Code cannot read
an attribute that no code names. So the set grows with the code that is found, until nothing is new (like rapid type analysis for the
methods of a program). If code computes names, all attributes count. Code that reads values in other ways is refused (`outside`).
"""

from __future__ import annotations

import sys
import types as python_types
from importlib import import_module

from compcache.interrupts import reraise_interrupt
from compcache.numba.fingerprints import RUN
from compcache.numba.fingerprints.set_on_types import attributes_set_on_types
from compcache.numba.fingerprints.state import (
    WRAPPED,
    accepts_any_attribute,
    c_reference,
    has_library_methods,
    names_of_c_references,
    state_of,
    tables_of,
)
from compcache.numba.registered.code_reads import MISSING
from compcache.numba.registered.library import is_library_module, is_of_generators
from compcache.numba.registered.purity import is_external_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from compcache.numba.fingerprints.walk import Walk

__all__ = ["Reach"]

_MAX_SHOWN = 300
#: Attributes that do not affect code, or that only Python uses. `copyreg` adds `__slotnames__` when it pickles an instance. `_abc_impl` is
#: what abstract classes have in C, which `registered_with` reads.
_NEVER_READ = frozenset((
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__builtins__", "__cached__", "__classcell__", "__dict__", "__file__",
    "__firstlineno__", "__loader__", "__module__", "__path__", "__qualname__", "__slotnames__", "__spec__", "__weakref__", "_abc_impl",
))  # fmt: skip
#: Attributes of classes that do not affect their methods.
_IRRELEVANT = _NEVER_READ | frozenset((
    "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__doc__", "__orig_bases__", "__parameters__",
    "__static_attributes__",
))  # fmt: skip


class _Owner:
    """An object that code can access. Digests contain its number. `read` has the attributes of owners that were read, by their number."""

    __slots__ = ("_read", "number", "value", "where")

    def __init__(self, number: int, value: Any, where: str, read: dict[int, Any]) -> None:
        self.number = number
        self.value = value
        self.where = where
        self._read = read

    def attributes(self) -> Any:
        """Return the tables of a class, or the state of another object. They are read if `read` does not have them."""
        if self.number not in self._read:
            self._read[self.number] = tables_of(self.value) if isinstance(self.value, type) else state_of(self.value)
        return self._read[self.number]


class Reach:
    """The attribute names that code reads, and the objects (owners) from which code may read them.

    Each name is looked up once on each owner, when the later of the two is found.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._owners: list[_Owner] = []
        self._read: dict[int, Any] = {}  # attributes of owners. It is cleared when code of the program may have changed them
        self._numbers: dict[int, int] = {}
        self._fed_attributes: set[tuple[int, str]] = set()
        self._followed = 0, 0, False  # the numbers of names and owners that were followed, and the value of `matches_classes`
        self._followed_all = 0  # the number of owners of which all attributes were fed
        self._has_fed_types = False  # whether all that the program has set on Numba's types was fed
        self._computes_names = False  # whether code reads attributes by computed names
        self.matches_classes = False  # whether code like `case Point(x, y)` reads the attributes in `__match_args__`

    def record_names(self, names: Iterable[str], *, everything: bool) -> None:
        """Record that code reads attributes with these names; with `everything`, that code may read any other attribute too."""
        self._names.update(dict.fromkeys(names))
        self._computes_names = self._computes_names or everything

    def refer_to_owner(self, walk: Walk, owner: Any, where: str) -> None:
        """Record that code can access an object, and feed a reference to the object.

        The identity of the object matters, because code may attach different values to equal objects.
        """
        number = self._numbers.setdefault(id(owner), len(self._owners))
        if number == len(self._owners):
            self._owners.append(_Owner(number, owner, where, self._read))
        walk.refer_to("owner", number)

    def refer_to_import(self, walk: Walk, name: str, namespace: dict[str, Any], where: str) -> None:
        """Record that a function imports a module when it runs.

        The module is imported now if necessary, so that it can be examined. If the import fails, the failure is fed.
        """
        walk.feed_token("import", name)
        for candidate in _module_names(name, namespace):
            module = sys.modules.get(candidate)
            if module is None:
                self._read.clear()
                try:
                    module = import_module(candidate)
                except Exception as error:  # noqa: BLE001 - the import fails for the function too
                    reraise_interrupt(error)
                    walk.feed_token("no module", candidate)
                    continue
            if module is not None:
                self.refer_to_owner(walk, module, f"the module {candidate} that {where} imports")

    def follow(self, walk: Walk) -> bool:
        """Feed the attributes that code names and that were not fed before. Return whether there may be more."""
        self._read.clear()  # pickling methods of values, and `__getattr__` of modules, have run
        names, owners, matched = self._followed
        if matched != self.matches_classes:  # class patterns read `__match_args__` of all owners
            names = owners = 0
        self._followed = current = len(self._names), len(self._owners), self.matches_classes
        all_names = list(self._names)
        has_fed = False
        # New owners are asked for all names, and older owners only for new names.
        for owner in self._owners[0 if names < len(all_names) else owners : current[1]]:
            is_new = owner.number >= owners
            for name in self._names_of(owner.value, all_names[0 if is_new else names :], is_new=is_new):
                has_fed |= self._feed_attribute(walk, owner, name)
        has_fed |= self._feed_set_on_types(walk, all_names[names:])
        return has_fed or current != (len(self._names), len(self._owners), self.matches_classes)

    def _feed_set_on_types(self, walk: Walk, names: list[str] | None) -> bool:
        """Feed attributes with these names (None for all) that the program has set on Numba's types. Return whether any were fed."""
        rows = [] if names == [] else attributes_set_on_types(names)
        for name, text, item in rows:
            walk.mode = RUN
            walk.feed_token("set on a type", text, name)
            walk.feed_value(item, f"{name!r} of the type {text}")
            walk.end_part()
        return bool(rows)

    def follow_all(self, walk: Walk) -> bool:
        """Feed the attributes that no code names, if code reads attributes by computed names. Return whether any were fed."""
        if not self._computes_names:
            return False
        has_fed = not self._has_fed_types and self._feed_set_on_types(walk, None)
        self._has_fed_types = True
        owners = self._owners[self._followed_all :]
        self._followed_all += len(owners)
        for owner in owners:
            for name in () if _is_module_of_library(owner.value) else _all_names(owner.value):
                has_fed |= self._feed_attribute(walk, owner, name)
        return has_fed

    def _feed_attribute(self, walk: Walk, owner: _Owner, name: str) -> bool:
        """Feed an attribute that was not fed before. Return whether it was fed. An attribute that the owner does not have is not fed."""
        if (owner.number, name) in self._fed_attributes:
            return False
        self._fed_attributes.add((owner.number, name))
        members = _attribute_values(owner, name)
        where = f"{owner.where}, {name!r}" if len(owner.where) < _MAX_SHOWN else owner.where
        for value in members:
            walk.mode = RUN
            walk.feed_token("member", owner.number, name)
            if isinstance(owner.value, python_types.ModuleType) and is_external_state(value):
                walk.feed_library(value, where)
            walk.feed_value(value, where)
            walk.end_part()
        return bool(members)

    def _names_of(self, owner: Any, names: list[str], *, is_new: bool) -> list[str]:
        """Return the names in `names` that an owner may have, or all names of the owner if `names` contains `__dict__`.

        A new owner (`is_new`) also has implicit names.

        If code matches classes, record the names in `__match_args__` of a new owner.
        """
        implicit = _implicit_names(owner) if is_new else []
        if self.matches_classes and "__match_args__" in implicit:
            self._names.update(dict.fromkeys(owner.__match_args__))
        named = _existing_names(owner, names)
        if "__dict__" in names and not _is_module_of_library(owner):
            has_members = isinstance(owner, (type, python_types.ModuleType))
            named += [name for name in vars(owner) if name not in _NEVER_READ] if has_members else ("__dict__", *state_of(owner))
        return [*implicit, *named]


def _existing_names(owner: Any, names: list[str]) -> list[str]:
    """Return the names in `names` that an object may have. An instance has the names in its state, and of references that C code stores."""
    if isinstance(owner, (type, python_types.ModuleType, python_types.FunctionType)):
        return names
    state = state_of(owner)
    return [name for name in names if name in state or c_reference(owner, name) is not MISSING]


def _module_names(name: str, namespace: dict[str, Any]) -> Iterator[str]:
    """Yield the full names of imported modules that a name may denote, absolute or relative; if there are none, the first possible name."""
    package = namespace.get("__package__") or ""
    candidates = [name] if name else []
    while package:
        candidates.append(f"{package}.{name}" if name else package)
        package = package.rpartition(".")[0]
    imported = [candidate for candidate in candidates if candidate in sys.modules]
    yield from imported or candidates[:1]


def _is_module_of_library(owner: Any) -> bool:
    """Return whether an owner is a module of a library."""
    return isinstance(owner, python_types.ModuleType) and is_library_module(owner.__name__)


def _implicit_names(owner: Any) -> list[str]:
    """Return the names of the attributes of an object that are read although no code of the user names them.

    Python calls special methods of classes. Methods inherited from a library, and `__getattr__`, may read any attribute.
    """
    if isinstance(owner, type):
        reads_all = has_library_methods(owner)
        names = [name for table in tables_of(owner) for name in table]
        return [name for name in names if (reads_all or name.startswith("__")) and name not in _IRRELEVANT]
    return [*state_of(owner)] if has_library_methods(type(owner)) or accepts_any_attribute(type(owner)) else []


def _all_names(owner: Any) -> list[str]:
    """Return the names of the attributes of an object that code can find without naming them."""
    if isinstance(owner, type):
        names: Iterable[str] = [name for table in tables_of(owner) for name in table]
    elif isinstance(owner, python_types.ModuleType):
        names = vars(owner)
    elif isinstance(owner, python_types.FunctionType):
        names = [*state_of(owner), *_FUNCTION_ATTRIBUTES]
    else:
        names = [name for name in state_of(owner) if name not in WRAPPED or not is_of_generators(type(owner))]
        return ["__dict__", *[name for name in (*names, *names_of_c_references(owner)) if name not in _NEVER_READ]]
    return [name for name in names if name not in _NEVER_READ]


_FUNCTION_ATTRIBUTES = ("__annotations__", "__doc__")


def _attribute_values(owner: _Owner, name: str) -> list[Any]:
    """Return the possible values of an attribute with this name; empty if there is no such attribute."""
    value = owner.value
    if isinstance(value, type):
        return [value.__subclasses__()] if name == "__subclasses__" else [table[name] for table in owner.attributes() if name in table]
    if isinstance(value, python_types.FunctionType) and name in _FUNCTION_ATTRIBUTES:
        return [getattr(value, name)]
    if isinstance(value, python_types.ModuleType):
        member = getattr(value, name, MISSING)
    elif name == "__dict__":
        member = list(owner.attributes())  # so that the order of the attributes is fed
    else:
        member = owner.attributes().get(name, MISSING)
        member = c_reference(value, name) if member is MISSING else member
    return [] if member is MISSING else [member]
