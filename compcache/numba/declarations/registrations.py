"""What modules register with Numba when they are imported, kept until Numba is imported, and noted from then on.

Only what functions must name to be affected by it is kept: what makes a plain Python function of the program callable by compiled code, and
intrinsics. Keys of functions have what is registered for those that they name (`compcache.numba.registered`). Types of `structref` are kept as
well, since only Numba makes their values. Other registrations import Numba.
"""

from __future__ import annotations

import sys
from abc import ABC, ABCMeta, abstractmethod
from importlib import import_module

from compcache.numba.declarations.references import Reference
from compcache.numba.lazy.c_helpers import has_numba, load_extension
from compcache.numba.lazy.content import jitted
from compcache.numba.lazy.stand_ins import (
    LazyObject,
    is_probe,
    made,
    note_made,
    original,
    real_numba,
    stand_in_of,
    when_imported,
)
from compcache.numba.registered.library import is_of_library
from compcache.numba.registered.table import note_jitable, note_overload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["OF_CONTAINERS", "OF_EXTENDING", "OF_STRUCTREF", "WrapperAddressProtocol"]

_Function = type(lambda: 0)
_EXTENDING = "numba.core.extending"


def _of_numba(name: str) -> Any:
    real_numba()
    return getattr(import_module(_EXTENDING), name)


def _is_programs(function: Any) -> bool:
    """Whether this is a plain function of the program, which compiled code can only call if it is registered."""
    return type(function) is _Function and not is_of_library(function)


def overload(func: Any, *args: Any, **options: Any) -> Any:
    """`numba.extending.overload`."""
    if not _is_programs(func):
        real = _of_numba("overload")
        return real(original(func), *args, **options)

    def decorate(implementation: Any) -> Any:
        note_overload(func, implementation, {**options, "": args})
        if has_numba():
            return _of_numba("overload")(func, *args, **options)(implementation)
        when_imported(lambda: _of_numba("overload")(func, *args, **options)(implementation))
        return implementation

    return decorate


def register_jitable(*args: Any, **options: Any) -> Any:
    """`numba.extending.register_jitable`."""

    def register(function: Any) -> Any:
        if not _is_programs(function):
            return _again(function, options)
        given = dict(options)
        note_jitable(function, given)
        if has_numba():
            return _again(function, given)
        when_imported(lambda: _again(function, given))
        return function

    return register if options else register(*args)


def _again(function: Any, options: dict[str, Any]) -> Any:
    real = _of_numba("register_jitable")
    return real(**options)(function) if options else real(function)


class LazyIntrinsic(LazyObject):
    """The result of `intrinsic`."""

    __slots__ = ("_options",)

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        super().__init__(function, lambda _: _of_numba("intrinsic")(**options) if options else _of_numba("intrinsic"))
        object.__setattr__(self, "_options", options)

    def _compcache_content(self, walk: Any) -> None:
        get = object.__getattribute__
        walk.add_implementation("intrinsic", get(self, "_function"), get(self, "_options"))

    def _compcache_original(self) -> Any:
        """Numba's own object."""
        return made(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of Numba's intrinsics once Numba is imported: before that no caller can compare with it."""
        return type(made(self)) if has_numba() else LazyIntrinsic


def intrinsic(*args: Any, **options: Any) -> Any:
    """`numba.extending.intrinsic`."""

    def declare(function: Any) -> Any:
        if not _is_programs(function):
            return _of_numba("intrinsic")(**options)(function) if options else _of_numba("intrinsic")(function)
        lazy = LazyIntrinsic(function, options)
        return note_made(made(lazy), lazy) if has_numba() else lazy

    return declare if options else declare(*args)


def get_cython_function_address(module_name: str, function_name: str) -> int:
    """`numba.extending.get_cython_function_address`, by Numba's own C function."""
    if has_numba():
        found: int = _of_numba("get_cython_function_address")(module_name, function_name)
        return found
    import numpy as np  # noqa: F401 - the library uses its C interface

    address: int = load_extension("numba._helperlib")._import_cython_function(module_name, function_name)
    return address


def is_jitted(function: Any) -> Any:
    """`numba.extending.is_jitted`."""
    if has_numba() or issubclass(type(function), LazyObject):
        return _of_numba("is_jitted")(function)
    return jitted(function) is not None


OF_EXTENDING: dict[str, Any] = {
    "get_cython_function_address": get_cython_function_address,
    "intrinsic": intrinsic,
    "is_jitted": is_jitted,
    "overload": overload,
    "register_jitable": register_jitable,
}


class _ProtocolClass(ABCMeta):
    """The class of what stands for a class of Numba that programs derive from."""

    def _compcache_original(cls) -> Any:
        if cls is not WrapperAddressProtocol:
            return cls  # a class of the program
        real_numba()
        return import_module("numba.core.types.function_type").WrapperAddressProtocol

    def __instancecheck__(cls, value: Any) -> bool:
        real = cls._compcache_original() if has_numba() else cls
        return ABCMeta.__instancecheck__(cls, value) if real is cls else isinstance(value, real)

    def __subclasscheck__(cls, other: Any) -> bool:
        real = cls._compcache_original() if has_numba() else cls
        return ABCMeta.__subclasscheck__(cls, other) if real is cls else issubclass(other, real)


class WrapperAddressProtocol(ABC, metaclass=_ProtocolClass):
    """`numba.types.WrapperAddressProtocol`: classes that derive from this one derive from Numba's once it is imported."""

    @abstractmethod
    def __wrapper_address__(self) -> Any:
        """The address of a function."""

    @abstractmethod
    def signature(self) -> Any:
        """The signature of the function."""


def _derive_from_numbas() -> None:
    own: Any = WrapperAddressProtocol
    real = own._compcache_original()
    for cls in _descendants(own):
        if own in cls.__bases__:
            cls.__bases__ = tuple([real if base is own else base for base in cls.__bases__])
        cls.__class__ = ABCMeta


def _descendants(cls: Any) -> list[Any]:
    return [found for child in cls.__subclasses__() for found in (child, *_descendants(child))]


when_imported(_derive_from_numbas)


# --------------------------------------------------------------------------------------------- types of `structref`

# A class of types derives from `types.StructRef`, and one of values from `StructRefProxy`. Both derive from stand-ins, and get Numba's class as their
# base when Numba is imported, or when anything but its name is asked of a class of types.

#: Attributes of classes that do not depend on their bases, and `__self__`, which classes do not have.
_OWN = frozenset(("__doc__", "__module__", "__name__", "__qualname__", "__self__"))


class _LazyClass(ABCMeta):
    """The class of classes that are to derive from a class of Numba."""

    def __new__(cls, name: str, bases: Any, namespace: dict[str, Any], **options: Any) -> Any:
        """A class; one of Numba's kind where its base is no stand-in, or where it has options."""
        if not bases:
            return type.__new__(cls, name, bases, namespace)
        if bases[0] is not _Types or options:
            real = tuple([_derived_from_numbas(base) if type(base) is _LazyClass else base for base in bases])
            return type(real[0])(name, real, namespace, **options)
        namespace = {key: value for key, value in namespace.items() if key != "__orig_bases__"}  # none where the base is Numba's
        made = type.__new__(cls, name, bases, namespace)
        when_imported(lambda: _convert(made))
        return made

    def __init__(cls, *args: Any, **options: Any) -> None:
        type.__init__(cls, *args, **options)

    def _compcache_original(cls) -> Any:
        return _derived_from_numbas(cls)

    def __getattribute__(cls, name: str) -> Any:
        if name in _OWN or is_probe(name):
            return type.__getattribute__(cls, name)
        return getattr(_derived_from_numbas(cls), name)

    def __setattr__(cls, name: str, value: Any) -> None:
        type.__setattr__(_derived_from_numbas(cls), name, value) if name in ("__bases__", "__class__") else type.__setattr__(cls, name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(_derived_from_numbas(cls), name)

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Make a type, or a value."""
        return _derived_from_numbas(cls)(*args, **keywords)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _derived_from_numbas(cls)) if has_numba() else type.__instancecheck__(cls, value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, _derived_from_numbas(cls)) if has_numba() else type.__subclasscheck__(cls, other)

    def __dir__(cls) -> list[str]:
        return dir(_derived_from_numbas(cls))


class _Types(metaclass=_LazyClass):
    """Stands for `numba.types.StructRef`, where a class derives from it."""


class _FromNumba:
    """An attribute that Numba's class has."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        _derive_values()
        return getattr(owner if instance is None else instance, self._name)


class _Values:
    """Stands for `StructRefProxy`, where a class derives from it. The class of both is `type`, which no class can be given later."""

    __slots__ = ("_meminfo", "_type")  # those of Numba's: else the bases of what derives from it could not change
    _numba_box_ = _FromNumba()
    _numba_type_ = _FromNumba()

    def __new__(cls, *args: Any) -> Any:
        """A value, which Numba makes."""
        _derive_values()
        return _numbas(_Values).__new__(cls, *args)


_ORIGINALS: dict[Any, tuple[str, str]] = {
    _Types: ("numba.core.types.containers", "StructRef"), _Values: ("numba.experimental.structref", "StructRefProxy"),
}  # fmt: skip
_Values.__module__, _Values.__qualname__ = _ORIGINALS[_Values]
_Values.__name__ = _Values.__qualname__


def _numbas(stand_in: Any) -> Any:
    real_numba()
    module, name = _ORIGINALS[stand_in]
    return getattr(import_module(module), name)


def _derive_values() -> None:
    """Let the classes that derive from the stand-in for `StructRefProxy` derive from that."""
    real = _numbas(_Values)
    for cls in type.__subclasses__(_Values):
        cls.__bases__ = tuple([real if base is _Values else base for base in cls.__bases__])
        if "__orig_bases__" in vars(cls):
            delattr(cls, "__orig_bases__")  # none where the base is Numba's


def _derived_from_numbas(cls: Any) -> Any:
    """The class itself, when it derives from Numba's; Numba's own for a stand-in."""
    if cls is _Types:
        return _numbas(cls)
    real_numba()
    _convert(cls)
    return cls


def _convert(cls: Any) -> None:
    """Do what the statement that declared a class does where Numba is imported."""
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        if type(cls) is not _LazyClass:
            return
        from _abc import _abc_init  # type: ignore[import-not-found]

        base: Any = _numbas(_Types)
        kind: Any = type(base)
        type.__setattr__(cls, "__bases__", (base,))
        type.__setattr__(cls, "__class__", kind)
        _abc_init(cls)
        kind.__init__(cls, cls.__name__, (base,), dict(vars(cls)))


class _Base(Reference):
    """A class of Numba that classes may derive from without it."""

    __slots__ = ("_stand_in",)

    def __init__(self, stand_in: Any) -> None:
        super().__init__(*_ORIGINALS[stand_in], "class")
        object.__setattr__(self, "_stand_in", stand_in)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_compcache_") or name in _OF_REFERENCES:
            return object.__getattribute__(self, name)
        return Reference.__getattr__(self, name)  # `__new__` among them, which each object has

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        if len(bases) > 1 or has_numba() or not _is_plain_statement(sys._getframe(1)):
            return (self._compcache_original(),)
        stand_in = object.__getattribute__(self, "_stand_in")
        if stand_in is _Values:
            when_imported(_derive_values)
        return (stand_in,)

    def __instancecheck__(self, value: Any) -> bool:
        own = self._compcache_original() if has_numba() else object.__getattribute__(self, "_stand_in")
        return isinstance(value, own)

    def __subclasscheck__(self, cls: Any) -> bool:
        stand_in = object.__getattribute__(self, "_stand_in")
        if not has_numba() and type(cls) is type:
            return issubclass(cls, stand_in)
        return super().__subclasscheck__(cls)


#: Attributes of what stands for a class that are not those of the class.
_OF_REFERENCES = frozenset(("__class__", "__mro_entries__", "__reduce_ex__"))


def _is_plain_statement(frame: Any) -> bool:
    """Whether a class statement can wait: it is one of a module other than the program, whose classes are pickled by value, and
    none names the class of its class, which must derive from that of Numba's.
    """
    code = frame.f_code
    if code.co_name != "<module>" or frame.f_globals.get("__name__") in (None, "__main__"):
        return False
    return not any(type(constant) is tuple and "metaclass" in constant for constant in code.co_consts)


class _Registration(Reference):
    """A function that registers classes with Numba."""

    __slots__ = ("_can_wait",)

    def __init__(self, name: str, can_wait: Any) -> None:
        super().__init__("numba.experimental.structref", name, "library function")
        object.__setattr__(self, "_can_wait", can_wait)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """What Numba's function returns, for classes of the program: called now, or when Numba is imported."""
        if has_numba() or stand_in_of() is None or keywords or not object.__getattribute__(self, "_can_wait")(*args):
            return super().__call__(*args, **keywords)
        given = [list(value) if type(value) is list else value for value in args]
        when_imported(lambda: self._compcache_original()(*given))
        return args[0] if len(args) == 1 else None


def _is_derived_from(stand_in: Any, value: Any) -> bool:
    return type(value) is type(stand_in) and type.__getattribute__(value, "__bases__") == (stand_in,)


def _can_register(*args: Any) -> bool:
    return len(args) == 1 and _is_derived_from(_Types, args[0])


def _can_define(*args: Any) -> bool:
    """Whether Numba will accept what `define_proxy` is given."""
    if len(args) != len(_OF_DEFINE_PROXY):
        return False
    values, kind, fields = args
    if not _is_derived_from(_Values, values) or not _is_derived_from(_Types, kind):
        return False
    if type(fields) not in (list, tuple) or not all(type(name) is str and name.isidentifier() for name in fields):
        return False
    try:
        compile(f"lambda {', '.join(fields)}: None", "<fields>", "eval")
    except SyntaxError:
        return False
    return True


_OF_DEFINE_PROXY = ("py_class", "struct_typeclass", "fields")

OF_CONTAINERS: dict[str, Any] = {"StructRef": _Base(_Types)}
OF_STRUCTREF: dict[str, Any] = {
    "StructRefProxy": _Base(_Values),
    "define_proxy": _Registration("define_proxy", _can_define),
    "register": _Registration("register", _can_register),
}
