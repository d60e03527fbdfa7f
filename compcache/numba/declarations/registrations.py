"""Delays registrations with Numba until Numba is imported, and records all registrations for the keys of functions.

A registration is delayed only if it affects no functions other than those that use its name. Such a registration makes a plain Python
function of the program callable by compiled code, or defines an intrinsic. The key of a function contains the registrations of the names
that the function uses (`compcache.numba.registered`). `compcache.numba.declarations.structrefs` delays the registration of `structref`
types in the same way. Any other registration imports Numba.
"""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from importlib import import_module

from compcache.numba.fingerprints.stand_ins import lazy_jitted_of, record_real
from compcache.numba.lazy import has_numba, when_imported
from compcache.numba.lazy.c_helpers import load_extension
from compcache.numba.lazy.stand_ins import LazyObject, numbas_object, real_numba
from compcache.numba.registered import record_jitable, record_overload
from compcache.numba.registered.library import is_library_function
from compcache.numba.registered.marks import original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["EXTENDING_STAND_INS", "WrapperAddressProtocol"]

_Function = type(lambda: 0)
_EXTENDING = "numba.core.extending"
#: The optional positional parameters of `overload`.
_OVERLOAD_PARAMETERS = ("jit_options", "strict", "inline", "prefer_literal")


def _import_real(name: str) -> Any:
    """Import Numba, and return the object with this name in `numba.core.extending`."""
    real_numba()
    return getattr(import_module(_EXTENDING), name)


def _is_program_function(function: Any) -> bool:
    """Return whether an object is a plain function of the program. Compiled code can call such a function only if it is registered."""
    return type(function) is _Function and not is_library_function(function)


def overload(func: Any, *args: Any, **options: Any) -> Any:
    """Replace `numba.extending.overload`. Registrations for functions of the program wait for Numba's import; any other imports Numba."""
    if not _is_program_function(func):
        real = _import_real("overload")
        return real(original(func), *args, **options)

    def decorate(implementation: Any) -> Any:
        record_overload(func, implementation, {**options, **dict(zip(_OVERLOAD_PARAMETERS, args, strict=False))})
        if has_numba():
            return _import_real("overload")(func, *args, **options)(implementation)
        when_imported(lambda: _import_real("overload")(func, *args, **options)(implementation))
        return implementation

    return decorate


def register_jitable(*args: Any, **options: Any) -> Any:
    """Replace `numba.extending.register_jitable`. Functions of the program wait for Numba's import; any other object imports Numba."""

    def register(function: Any) -> Any:
        is_recorded = _is_program_function(function)
        if is_recorded:
            record_jitable(function, options)
        if not is_recorded or has_numba():
            return _decorate_with_numba("register_jitable", function, options)
        when_imported(lambda: _decorate_with_numba("register_jitable", function, options))
        return function

    return register if options else register(*args)


def _decorate_with_numba(name: str, function: Any, options: dict[str, Any]) -> Any:
    """Import Numba, and return the result of its decorator `register_jitable` or `intrinsic` for a function."""
    real = _import_real(name)
    return real(**options)(function) if options else real(function)


class LazyIntrinsic(LazyObject):
    """The object that `intrinsic` returns before Numba is imported."""

    __slots__ = ()

    def _compcache_make(self) -> Any:
        """Return Numba's intrinsic with the arguments of the decorator."""
        get = object.__getattribute__
        return _decorate_with_numba("intrinsic", get(self, "_function"), get(self, "_options"))

    def _compcache_content(self, walk: Any) -> None:
        """Feed the function and the options to a walk, as a dependency."""
        get = object.__getattribute__
        walk.refer_to_dependency("intrinsic", get(self, "_function"), get(self, "_options"))

    def _compcache_original(self) -> Any:
        """Return Numba's own object."""
        return numbas_object(self)


def intrinsic(*args: Any, **options: Any) -> Any:
    """Replace `numba.extending.intrinsic`. The registration waits until Numba needs the intrinsic."""

    def declare(function: Any) -> Any:
        """Return a lazy intrinsic for a function of the program; Numba's own object for any other object, or if Numba is imported."""
        if not _is_program_function(function):
            return _decorate_with_numba("intrinsic", function, options)
        lazy = LazyIntrinsic(function, options)
        return record_real(numbas_object(lazy), lazy) if has_numba() else lazy

    return declare if options else declare(*args)


def get_cython_function_address(module_name: str, function_name: str) -> int:
    """Replace `numba.extending.get_cython_function_address`. Before Numba is imported, call a C function of its extension module."""
    if has_numba():
        return int(_import_real("get_cython_function_address")(module_name, function_name))
    import numpy as np  # noqa: F401 - the extension module uses its C interface

    return int(load_extension("numba._helperlib")._import_cython_function(module_name, function_name))


def is_jitted(function: Any) -> Any:
    """Replace `numba.extending.is_jitted`. Import Numba only to test a lazy object that is not a lazy function."""
    if has_numba() or issubclass(type(function), LazyObject):
        return _import_real("is_jitted")(function)
    return lazy_jitted_of(function) is not None


EXTENDING_STAND_INS: dict[str, Any] = {
    function.__name__: function for function in (get_cython_function_address, intrinsic, is_jitted, overload, register_jitable)
}


class _ProtocolClass(ABCMeta):
    """The metaclass of stand-ins for Numba's classes that programs subclass."""

    def _compcache_original(cls) -> Any:
        """Return Numba's class, or the class itself if the program has defined it."""
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
    """The stand-in for `numba.types.WrapperAddressProtocol`. Its subclasses become subclasses of Numba's class when Numba is imported."""

    @abstractmethod
    def __wrapper_address__(self) -> Any:
        """Return the address of a function."""

    @abstractmethod
    def signature(self) -> Any:
        """Return the signature of the function."""


def _rebase_protocol_classes() -> None:
    """Make the program's subclasses of the stand-in subclasses of Numba's class."""
    stand_in: Any = WrapperAddressProtocol
    real = stand_in._compcache_original()
    for cls in _list_descendants(stand_in):
        if stand_in in cls.__bases__:
            cls.__bases__ = tuple([real if base is stand_in else base for base in cls.__bases__])
        cls.__class__ = ABCMeta  # Numba's metaclass; the stand-in's is no longer needed


def _list_descendants(cls: Any) -> list[Any]:
    """Return the direct and indirect subclasses of a class."""
    return [descendant for child in cls.__subclasses__() for descendant in (child, *_list_descendants(child))]


when_imported(_rebase_protocol_classes)
