"""Reads the state of objects, functions and classes.

Functions that search attributes of libraries for those of a program raise `Unidentifiable` if a module's code cannot be read at the moment.
"""

from __future__ import annotations

import functools
import gc
import sys
import types as python_types
import warnings
from opcode import opmap
from operator import attrgetter, is_

from compcache.interrupts import reraise_interrupt
from compcache.numba.fingerprints import REPLACED, STATE
from compcache.numba.registered.code_reads import MISSING, names_used_by
from compcache.numba.registered.library import has_own_code, is_found_by_name, is_library_module, is_made_by_library, is_of_generators
from compcache.numba.registered.marks import is_marked, is_module
from compcache.numba.registered.refusals import Unidentifiable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = [
    "WRAPPED", "accepts_any_attribute", "c_reference", "cached_results", "changed_settings", "copy_function", "has_library_methods",
    "has_state_in_c", "is_changed_by_program", "may_have_attributes", "names_for_metaclass", "names_of_c_references", "names_stored_by",
    "registered_with", "set_on_library", "set_on_part", "state_of", "tables_of",
]  # fmt: skip

#: Classes written in C whose content the walk feeds completely.
_FED = frozenset((object, dict, list, tuple, set, frozenset, str, bytes, int, float, complex))
#: The default settings of Python and NumPy.
_DEFAULTS = {
    "errors": [], "int_max_str_digits": sys.int_info.default_max_str_digits, "call": None,
    "divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn", "edgeitems": 3, "threshold": 1000, "floatmode": "maxprec",
    "precision": 8, "suppress": False, "linewidth": 75, "nanstr": "nan", "infstr": "inf", "sign": "-", "formatter": None, "legacy": False,
    "override_repr": None,
}  # fmt: skip


def copy_function(function: Any, globals_: dict[str, Any], cells: Iterable[Any]) -> Any:
    """Return a copy of a function with these closure cells, and with these globals in addition to those that describe its module."""
    own = {name: value for name, value in function.__globals__.items() if name in _MODULE_NAMES}
    copy: Any = python_types.FunctionType(function.__code__, own | globals_, function.__name__, function.__defaults__, tuple(cells))
    copy.__module__, copy.__qualname__, copy.__kwdefaults__ = function.__module__, function.__qualname__, function.__kwdefaults__
    return copy


_MODULE_NAMES = frozenset(("__builtins__", "__file__", "__name__", "__package__"))
#: The attributes through which code reads the Python function of a Numba object.
WRAPPED = frozenset(("__wrapped__", "py_func"))
#: The attributes that `functools.wraps` copies.
_COPIED = frozenset(("__annotations__", "__doc__", "__module__", "__name__", "__qualname__", "__type_params__"))
#: Numba's classes of functions. Other Numba objects are identified by their content alone.
_FUNCTION_CLASSES = frozenset(("CFunc", "DUFunc", "Dispatcher", "GUFunc", "StencilFunc", "_Intrinsic"))
#: Classes of libraries whose objects have no `__dict__`, but refer to other objects.
_WITHOUT_DICT = frozenset((("numpy", "ndarray"), ("typing", "TypeAliasType")))
_names_stored: dict[type, frozenset[str]] = {}


def may_have_attributes(value: Any) -> bool:
    """Return whether an object may have attributes that are not part of its content.

    These are attributes that programs set, and references in objects whose class is written in C.
    """
    kind = type(value)
    if is_of_generators(kind):
        return _is_function_of_numba(kind)  # `attributes_set_on_types` has what the program sets on types
    return bool(kind.__dictoffset__) or not is_library_module(kind.__module__) or (kind.__module__, kind.__name__) in _WITHOUT_DICT


def _is_function_of_numba(cls: type) -> bool:
    """Return whether a class is one of Numba's classes of functions, or the class of a stand-in for such an object."""
    return is_marked(cls, "_compcache_attributes") or any(base.__name__ in _FUNCTION_CLASSES for base in cls.__mro__)


def tables_of(cls: type) -> list[Any]:
    """Return the attributes that a class, its metaclass and their bases define, one dictionary for each of these classes.

    For a class of a library, these are the attributes that a program may have set (`set_on_library`).
    """
    kind: Any = type(cls)
    bases: list[type] = [*cls.__mro__, *kind.__mro__]
    return [set_on_library(base) if is_library_module(base.__module__) else vars(base) for base in bases]


def is_changed_by_program(value: Any) -> bool:
    """Return whether a program may have set an attribute on a library's function, or on a library's class in the MRO of a class."""
    if isinstance(value, python_types.FunctionType):
        return any(name[:1] != "_" for name in value.__dict__)
    return any(set_on_library(base) for base in value.__mro__ if is_library_module(base.__module__))


class _Members:
    """The attributes of a library's class at one time, which are compared by identity, and those of them that a program may have set.

    Attributes:
        members: the attributes.
        functions, codes: the functions among the attributes, and their code. A program may replace the code of a function.
        found: the names of the attributes that a program may have set.
        others: the names of attributes whose own attributes may change. These are examined each time.
    """

    __slots__ = ("codes", "found", "functions", "members", "others")

    def __init__(self, cls: type) -> None:
        self.members = dict(vars(cls))
        self.functions: list[Any] = []
        self.found: set[str] = set()
        self.others: set[str] = set()
        for name, item in self.members.items():
            if name == _ABSTRACT_CLASS_DATA:
                continue
            part = _inner_name(type(item))
            inner = getattr(item, part) if part else item
            if type(inner) is python_types.FunctionType:
                self.functions.append(inner)
            is_fixed = type(item) is python_types.FunctionType or type(item).__flags__ & _IMMUTABLE_TYPE
            if not is_fixed or isinstance(item, type):
                self.others.add(name)
            elif not _is_defined_by_library(cls, name, item):
                self.found.add(name)
        self.codes = [function.__code__ for function in self.functions]

    def is_current(self, cls: type) -> bool:
        """Return whether the class still has these attributes, with the same code."""
        members = vars(cls)
        return (
            len(members) == len(self.members)
            and all(map(is_, members, self.members))
            and all(map(is_, members.values(), self.members.values()))
            and all(map(is_, map(_code_of, self.functions), self.codes))
        )


_code_of = attrgetter("__code__")
#: What abstract classes have in C, which `registered_with` reads.
_ABSTRACT_CLASS_DATA = "_abc_impl"
_members: dict[type, _Members] = {}


def set_on_library(cls: type, names: frozenset[str] | None = None) -> dict[str, Any]:
    """Return the attributes of a library's class that a program may have set, under these names (None for all names).

    They exclude functions and classes of libraries, other values with private names, and names that the code of Numba's module defines.

    Raise `Unidentifiable` if the code of a module of Numba cannot be read at the moment.
    """
    if not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE_TYPE:
        return {}
    known = _members.get(cls)
    if known is None or not known.is_current(cls):
        known = _Members(cls)
        if is_found_by_name(cls):  # other classes, such as those of `dataclasses.make_dataclass`, are freed
            _members[cls] = known
    found, others = (known.found, known.others) if names is None else (known.found & names, known.others & names)
    found = found.union([name for name in others if not _is_defined_by_library(cls, name, known.members[name])])
    return {name: item for name, item in known.members.items() if name in found} if found else {}


def _is_defined_by_library(cls: type, name: str, item: Any) -> bool:
    """Return whether an attribute of a library's class counts as the library's own, and not as set by a program (`set_on_library`)."""
    kind = type(item)
    if kind is python_types.FunctionType:  # most attributes are functions
        return is_made_by_library(item)
    part = _inner_name(kind)
    inner = getattr(item, part) if part else item
    if isinstance(inner, _DEFINED_OBJECTS):
        return is_made_by_library(inner)
    if name[:1] == "_" or isinstance(item, _C_DESCRIPTORS):
        return True
    return is_of_generators(cls) and name in _names_in(cls.__module__)


def _inner_name(cls: type) -> str:
    """Return the name of the attribute with the wrapped function, for a class of descriptors; "" for other classes."""
    known = _inner_names.get(cls)
    if known is None:
        known = next((name for name in ("__func__", "fget", "func") if any(name in vars(base) for base in cls.__mro__)), "")
        if cls.__flags__ & _IMMUTABLE_TYPE:
            _inner_names[cls] = known
    return known


#: The results of `_inner_name` for classes that no program can change.
_inner_names: dict[type, str] = {}
#: The flags `Py_TPFLAGS_HEAPTYPE` (created at run time) and `Py_TPFLAGS_IMMUTABLETYPE` of classes.
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_DEFINED_OBJECTS = (python_types.FunctionType, python_types.BuiltinFunctionType, type)
_C_DESCRIPTORS = (
    python_types.ClassMethodDescriptorType, python_types.GetSetDescriptorType, python_types.MemberDescriptorType,
    python_types.MethodDescriptorType, python_types.WrapperDescriptorType,
)  # fmt: skip
_DEFINING_OPCODES = frozenset(opmap[name] for name in ("STORE_GLOBAL", "STORE_NAME"))


@functools.cache
def _names_in(module: str) -> frozenset[str]:
    """Return the names that the code of a module defines, in classes too; empty if its loader provides no Python code.

    Raise `Unidentifiable` if the code cannot be read at the moment.
    """
    try:
        code = sys.modules[module].__spec__.loader.get_code(module)  # type: ignore[union-attr]
    except Exception as error:
        reraise_interrupt(error)
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise Unidentifiable(f"the code of the module {module} cannot be read at the moment ({error}): try again") from error
        return frozenset()
    return frozenset(names_used_by(code, _DEFINING_OPCODES))


def set_on_part(module: str, names: tuple[str, ...]) -> Any:
    """Return the first object on a path of names that is not a module, if the program has set this object or an attribute of it.

    The path starts at a Numba module. The result is `MISSING` for any other object, and if no such object exists. A stand-in has no
    attributes that the program has set, because setting one imports Numba.
    """
    part: Any = sys.modules.get(module, MISSING)
    owner = part
    for name in names:
        if not is_module(part):
            break
        owner, part = part, vars(part).get(name, MISSING)
    kind = type(part)
    if part is MISSING or is_module(part):
        return MISSING
    if isinstance(part, python_types.FunctionType):
        is_plain = is_made_by_library(part) and has_own_code(part) and not is_changed_by_program(part)
    elif isinstance(part, _DEFINED_OBJECTS):
        is_plain = is_made_by_library(part) and not (isinstance(part, type) and is_changed_by_program(part))
    elif is_of_generators(kind):
        is_plain = _is_function_of_numba(kind) or not state_of(part)
    else:
        is_plain = is_library_module(kind.__module__) and name in _names_in(owner.__name__)
    return MISSING if is_plain else part


def c_reference(value: Any, name: str) -> Any:
    """Return the attribute `name` of `value` if only C code stores it and pickling omits it.

    Examples are the base of an array and the cause of an error. The result is `MISSING` if reading gives no object, an exception, or
    a new object each time.
    """
    descriptor, base = next(((vars(base)[name], base) for base in type(value).__mro__ if name in vars(base)), (None, object))
    if name == "__class__" or not isinstance(descriptor, _HOLDERS) or not is_library_module(base.__module__):
        return MISSING
    try:
        reference = getattr(value, name)
        return reference if getattr(value, name) is reference else MISSING
    except Exception as error:  # noqa: BLE001 - code that reads the attribute fails too
        reraise_interrupt(error)
        return MISSING


def names_of_c_references(value: Any) -> list[str]:
    """Return the names under which C code of those classes of an object that libraries define may store references."""
    bases = [base for base in type(value).__mro__ if is_library_module(base.__module__)]
    return [name for base in bases for name, item in vars(base).items() if isinstance(item, _HOLDERS)]


_STORING_OPCODES = frozenset((opmap["STORE_ATTR"],))
_HOLDERS = (python_types.GetSetDescriptorType, python_types.MemberDescriptorType)


def state_of(value: Any) -> dict[str, Any]:
    """Return the instance attributes of an object, including those in slots.

    For a Numba object, attributes that Numba itself sets are omitted, except those through which programs change its function.
    """
    kind = type(value)
    if is_marked(kind, "_compcache_attributes"):
        attributes: dict[str, Any] = kind._compcache_attributes(value)
    elif is_of_generators(kind):
        attributes = getattr(value, "__dict__", {})
    else:
        attributes = _attributes_of(value)
    stored = names_stored_by(kind)
    if not stored:
        return attributes
    names = WRAPPED | _COPIED if "py_func" in attributes else WRAPPED  # programs change names and docstrings of jitted functions
    return {name: item for name, item in attributes.items() if name not in stored or name in names}


def names_stored_by(cls: type) -> frozenset[str]:
    """Return the names of the attributes that Numba's own code sets on objects of a class; empty for other classes."""
    names = _names_stored.get(cls)
    if names is None:
        bases = [base for kind in (cls, type(cls)) if is_of_generators(kind) for base in kind.__mro__ if base is not type]
        names = _names_stored[cls] = _COPIED.union({REPLACED, STATE}, *map(_names_stored_in, bases)) if bases else frozenset()
    return names


@functools.cache
def _names_stored_in(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the code of one class, without its bases, sets. Cached properties set their own names."""
    cached = [name for name, item in vars(cls).items() if isinstance(item, functools.cached_property)]
    functions = [item.fget if isinstance(item, property) else getattr(item, "__wrapped__", item) for item in vars(cls).values()]
    codes = [item.__code__ for item in functions if isinstance(item, python_types.FunctionType)]
    return frozenset([*cached, *[name for code in codes for name in names_used_by(code, _STORING_OPCODES)]])


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return the instance attributes of an object, including those in slots of the program's classes."""
    state = {}
    for cls in reversed(type(value).__mro__):
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, python_types.MemberDescriptorType) and not is_library_module(cls.__module__):
                item = getattr(value, name, MISSING)
                if item is not MISSING:
                    state[name] = item
    return {**state, **getattr(value, "__dict__", {})}


def accepts_any_attribute(cls: type) -> bool:
    """Return whether a class of the user has a `__getattr__` or `__getattribute__`, which may accept any name."""
    members = [vars(base) for base in cls.__mro__ if not is_library_module(base.__module__)]
    return any("__getattr__" in names or "__getattribute__" in names for names in members)


def has_library_methods(cls: type) -> bool:
    """Return whether a user's class inherits Python methods from a library. These read attributes that no code of the user names."""
    if is_library_module(cls.__module__):
        return False
    library_classes = [base for base in cls.__mro__ if is_library_module(base.__module__)]
    return any(isinstance(item, python_types.FunctionType) for base in library_classes for item in vars(base).values())


def has_state_in_c(cls: type) -> bool:
    """Return whether objects of a class have state that no attribute shows: the class or a base, unless in `_FED`, adds data in C.

    Examples are `collections.deque` and the array types of ctypes.
    """
    return any(base not in _FED and _adds_data_in_c(base) for base in cls.__mro__)


def _adds_data_in_c(cls: type) -> bool:
    """Return whether a class adds data to its objects and was not created by Python code."""
    base: Any = cls.__base__
    if (cls.__basicsize__, cls.__itemsize__) == (base.__basicsize__, base.__itemsize__):
        return False
    members = vars(cls)
    has_functions = any(isinstance(item, python_types.FunctionType) for item in members.values())
    return not (has_functions or "__slots__" in members or "__dict__" in members)


def cached_results(wrapper: Any) -> list[tuple[Any, Any]] | None:
    """Return the arguments and results that a `functools.lru_cache` wrapper has cached, the oldest first; None if they cannot be read.

    They are read through the garbage collector. An unbounded cache is a dictionary. A bounded cache is a linked list.
    """
    size = wrapper.cache_info().currsize
    if not size:
        return []
    referents = [item for item in gc.get_referents(wrapper) if item is not wrapper.__wrapped__ and item is not vars(wrapper)]
    tables = [item for item in referents if type(item) is dict and len(item) == size]
    if len(tables) != 1:
        return None
    table = tables[0]
    if not any(type(item).__name__ == "_lru_list_elem" for item in table.values()):
        return [(_without_marks(key), item) for key, item in table.items()]
    # The references of the links follow each other: a key and a result, and in some versions the type of the link.
    first = 1 if referents[0] is type(wrapper) else 0
    step = 3 if getattr(referents[first + 2], "__name__", "") == "_lru_list_elem" else 2
    pairs = [(referents[first + step * number], referents[first + step * number + 1]) for number in range(size)]
    return [(_without_marks(key), item) for key, item in pairs] if all(key in table for key, _ in pairs) else None


def _without_marks(key: Any) -> Any:
    """Return the key of a result with "=" in place of the object that separates keyword arguments, which differs between processes."""
    return tuple(["=" if type(item) is object else item for item in key]) if isinstance(key, tuple) else key


def names_for_metaclass(cls: type) -> list[str]:
    """Return the names without a leading double underscore in a class whose metaclass may request all of them, for example a protocol.

    Names that only classes of libraries define are omitted. The list is empty for a class with the usual metaclass.
    """
    if type(cls) is type:
        return []
    return sorted(name for base in cls.__mro__ if not is_library_module(base.__module__) for name in vars(base) if name[:2] != "__")


def registered_with(cls: type) -> list[str]:
    """Return the sorted names of the classes that were registered with an abstract class or its subclasses.

    Registrations of libraries with their own abstract classes are omitted. The list is empty for a class that is not abstract.
    """
    if not hasattr(cls, "_abc_impl"):
        return []
    from _abc import _get_dump  # type: ignore[import-not-found]

    from compcache.numba.registered.reviewed import REGISTERED_CLASSES

    registered: set[str] = set()
    waiting: list[Any] = [cls]
    while waiting:
        abstract = waiting.pop()
        members = [reference() for reference in _get_dump(abstract)[0]]
        own = REGISTERED_CLASSES.get(_class_name(abstract), "").split()
        registered |= {_class_name(member) for member in members if member is not None}.difference(own)
        derived: list[Any] = type.__subclasses__(abstract)
        waiting += [sub for sub in derived if hasattr(sub, "_abc_impl")]
    return sorted(registered)


def _class_name(cls: type) -> str:
    """Return the module and the qualified name of a class, joined by a dot."""
    return f"{cls.__module__}.{cls.__qualname__}"


def changed_settings() -> list[tuple[str, Any]]:
    """Return the settings of Python and NumPy that differ from the defaults, and on which results of pure functions depend.

    They decide which errors operations raise, and how numbers and arrays print.
    """
    numpy: Any = sys.modules.get("numpy")
    errors = [f"{text} {kind} {where} {line}" for action, text, kind, where, line in warnings.filters if action == "error"]
    settings = {"errors": errors, "int_max_str_digits": sys.get_int_max_str_digits()}
    if hasattr(numpy, "geterr") and hasattr(numpy, "get_printoptions"):
        settings |= {**numpy.geterr(), "call": numpy.geterrcall(), **numpy.get_printoptions()}
    return sorted((name, item) for name, item in settings.items() if name not in _DEFAULTS or item != _DEFAULTS[name])
