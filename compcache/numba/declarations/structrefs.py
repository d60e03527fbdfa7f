"""Defines stand-ins for the base classes and functions of `structref`, which modules use on import.

A class of Numba types derives from `types.StructRef`, and a class of values from `StructRefProxy`. Before Numba is imported, both classes
derive from stand-ins. When Numba is imported, Numba's class becomes the base. Access to an attribute of a class of Numba types, other than
its name, imports Numba. Only Numba creates values of these types.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from importlib import import_module

from compcache.numba.declarations.references import Reference
from compcache.numba.lazy import has_numba, numba_stand_in, when_imported
from compcache.numba.lazy.stand_ins import is_probe, real_numba

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["CONTAINER_STAND_INS", "STRUCTREF_STAND_INS"]

#: The attributes of a class that do not depend on its bases; and `__self__`, which classes do not have.
_INDEPENDENT_ATTRIBUTES = frozenset(("__doc__", "__module__", "__name__", "__qualname__", "__self__"))


class _LazyClass(ABCMeta):
    """The metaclass of classes that become subclasses of one of Numba's classes when Numba is imported."""

    def __new__(cls, name: str, bases: Any, namespace: dict[str, Any], **options: Any) -> Any:
        """Create a class, with Numba's metaclass unless the first base is the stand-in for `StructRef` and there are no options."""
        if not bases:
            return type.__new__(cls, name, bases, namespace)
        if bases[0] is not _StructRefStandIn or options:
            real = tuple([_real_class(base) if type(base) is _LazyClass else base for base in bases])
            metaclass = type(real[0])
            return metaclass(name, real, namespace, **options)
        namespace = {key: value for key, value in namespace.items() if key != "__orig_bases__"}  # Numba's subclasses do not have it
        lazy = type.__new__(cls, name, bases, namespace)
        when_imported(lambda: _convert_to_real_class(lazy))
        return lazy

    def _compcache_original(cls) -> Any:
        return _real_class(cls)

    def __getattribute__(cls, name: str) -> Any:
        if name in _INDEPENDENT_ATTRIBUTES or is_probe(name):
            return type.__getattribute__(cls, name)
        return getattr(_real_class(cls), name)

    def __setattr__(cls, name: str, value: Any) -> None:
        # A later conversion would replace bases and a class that the program has set.
        type.__setattr__(_real_class(cls), name, value) if name in ("__bases__", "__class__") else type.__setattr__(cls, name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(_real_class(cls), name)

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Import Numba, and create a type."""
        return _real_class(cls)(*args, **keywords)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _real_class(cls)) if has_numba() else type.__instancecheck__(cls, value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, _real_class(cls)) if has_numba() else type.__subclasscheck__(cls, other)

    def __dir__(cls) -> list[str]:
        return dir(_real_class(cls))


class _StructRefStandIn(metaclass=_LazyClass):
    """The stand-in for `numba.types.StructRef` as a base class."""


class _NumbaAttribute:
    """A descriptor that imports Numba, and returns the attribute that Numba's class defines."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        _rebase_proxies()
        return getattr(owner if instance is None else instance, self._name)


class _ProxyStandIn:
    """The stand-in for `StructRefProxy` as a base class.

    The metaclass is `type`, like that of Numba's class, because a class cannot change its metaclass later.
    """

    __slots__ = ("_meminfo", "_type")  # a change of the bases requires the slots of Numba's class
    _numba_box_ = _NumbaAttribute()
    _numba_type_ = _NumbaAttribute()

    def __new__(cls, *args: Any) -> Any:
        """Import Numba, and create a value."""
        _rebase_proxies()
        return _import_real(_ProxyStandIn).__new__(cls, *args)


_ORIGINALS: dict[Any, tuple[str, str]] = {
    _StructRefStandIn: ("numba.core.types.containers", "StructRef"), _ProxyStandIn: ("numba.experimental.structref", "StructRefProxy"),
}  # fmt: skip
_ProxyStandIn.__module__, _ProxyStandIn.__qualname__ = _ORIGINALS[_ProxyStandIn]
_ProxyStandIn.__name__ = _ProxyStandIn.__qualname__


def _import_real(stand_in: Any) -> Any:
    """Import Numba, and return the object of Numba that a stand-in of this module represents."""
    real_numba()
    module, name = _ORIGINALS[stand_in]
    return getattr(import_module(module), name)


def _rebase_proxies() -> None:
    """Import Numba, and make the subclasses of the stand-in for `StructRefProxy` subclasses of Numba's class."""
    real = _import_real(_ProxyStandIn)
    for cls in type.__subclasses__(_ProxyStandIn):
        cls.__bases__ = tuple([real if base is _ProxyStandIn else base for base in cls.__bases__])
        if "__orig_bases__" in vars(cls):
            delattr(cls, "__orig_bases__")  # subclasses of Numba's class do not have it


def _real_class(cls: Any) -> Any:
    """Import Numba, make a class a subclass of Numba's class, and return the class. For the stand-in itself, return Numba's class."""
    if cls is _StructRefStandIn:
        return _import_real(cls)
    real_numba()
    _convert_to_real_class(cls)
    return cls


def _convert_to_real_class(cls: Any) -> None:
    """Change a class into the class that its class statement would create with Numba. Do nothing if the class was changed already."""
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        if type(cls) is not _LazyClass:
            return
        from _abc import _abc_init  # type: ignore[import-not-found]

        base: Any = _import_real(_StructRefStandIn)
        metaclass: Any = type(base)
        type.__setattr__(cls, "__bases__", (base,))
        type.__setattr__(cls, "__class__", metaclass)
        _abc_init(cls)
        metaclass.__init__(cls, cls.__name__, (base,), dict(vars(cls)))


class _BaseReference(Reference):
    """A stand-in for a class of Numba from which programs may derive classes before Numba is imported.

    Args:
        base_stand_in: the class from which these classes derive before Numba is imported.
    """

    __slots__ = ("_base_stand_in",)

    def __init__(self, base_stand_in: Any) -> None:
        super().__init__(*_ORIGINALS[base_stand_in], "class")
        object.__setattr__(self, "_base_stand_in", base_stand_in)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_compcache_") or name in _REFERENCE_ATTRIBUTES:
            return object.__getattribute__(self, name)
        return Reference.__getattr__(self, name)  # also for names such as `__new__`, which every object has

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        if len(bases) > 1 or has_numba() or not _is_plain_statement(sys._getframe(1)):
            return (self._compcache_original(),)
        base_stand_in = object.__getattribute__(self, "_base_stand_in")
        if base_stand_in is _ProxyStandIn:
            when_imported(_rebase_proxies)
        return (base_stand_in,)

    def __instancecheck__(self, value: Any) -> bool:
        cls = self._compcache_original() if has_numba() else object.__getattribute__(self, "_base_stand_in")
        return isinstance(value, cls)

    def __subclasscheck__(self, cls: Any) -> bool:
        base_stand_in = object.__getattribute__(self, "_base_stand_in")
        if not has_numba() and type(cls) is type:
            return issubclass(cls, base_stand_in)
        return super().__subclasscheck__(cls)


#: The attributes that belong to the stand-in, not to the class that it replaces.
_REFERENCE_ATTRIBUTES = frozenset(("__class__", "__mro_entries__", "__reduce_ex__"))


def _is_plain_statement(frame: Any) -> bool:
    """Return whether the class of a class statement, which this frame executes, can be converted when Numba is imported.

    The statement must be at module level, but not in the main program, whose classes are pickled by value. No statement of the module may
    name a metaclass, because the metaclass would have to derive from Numba's metaclass, and the code does not show which statement runs.
    """
    code = frame.f_code
    if code.co_name != "<module>" or frame.f_globals.get("__name__") in (None, "__main__"):
        return False
    return not any(type(constant) is tuple and "metaclass" in constant for constant in code.co_consts)


class _Registration(Reference):
    """A stand-in for a function that registers classes with Numba.

    Args:
        name: the name of the function.
        can_wait: a function that returns whether a call with its arguments can wait until Numba is imported.
    """

    __slots__ = ("_can_wait",)

    def __init__(self, name: str, can_wait: Any) -> None:
        super().__init__("numba.experimental.structref", name, "library function")
        object.__setattr__(self, "_can_wait", can_wait)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call Numba's function, or delay the call until Numba is imported.

        Only calls without keyword arguments that `can_wait` allows are delayed. A delayed call returns its only argument, or None if it has
        several.
        """
        if has_numba() or numba_stand_in() is None or keywords or not object.__getattribute__(self, "_can_wait")(*args):
            return super().__call__(*args, **keywords)
        own_args = [list(value) if type(value) is list else value for value in args]  # the program may change a list later
        when_imported(lambda: self._compcache_original()(*own_args))
        return args[0] if len(args) == 1 else None


def _is_derived_from(stand_in: Any, value: Any) -> bool:
    """Return whether a value is a class whose only base is a stand-in."""
    return type(value) is type(stand_in) and type.__getattribute__(value, "__bases__") == (stand_in,)


def _can_define(*args: Any) -> bool:
    """Return whether a call of `define_proxy` with these arguments can wait. A call that Numba might reject cannot."""
    if len(args) != 3:  # noqa: PLR2004 - the parameters of `define_proxy`, which the next line names
        return False
    proxy_class, type_class, fields = args
    if not _is_derived_from(_ProxyStandIn, proxy_class) or not _is_derived_from(_StructRefStandIn, type_class):
        return False
    if type(fields) not in (list, tuple) or not all(type(name) is str and name.isidentifier() for name in fields):
        return False
    try:
        compile(f"lambda {', '.join(fields)}: None", "<fields>", "eval")
    except SyntaxError:
        return False
    return True


CONTAINER_STAND_INS: dict[str, Any] = {"StructRef": _BaseReference(_StructRefStandIn)}
STRUCTREF_STAND_INS: dict[str, Any] = {
    "StructRefProxy": _BaseReference(_ProxyStandIn),
    "define_proxy": _Registration("define_proxy", _can_define),
    "register": _Registration("register", lambda *args: len(args) == 1 and _is_derived_from(_StructRefStandIn, args[0])),
}
