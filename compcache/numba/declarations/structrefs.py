"""Types of `structref` that modules declare on import. They become Numba's types when Numba is imported, because only Numba creates their
values.

A class of types derives from `types.StructRef`, and a class of values from `StructRefProxy`. Both derive from stand-ins. Numba's class
becomes their base when Numba is imported, or when anything but its name is requested from a class of types.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from importlib import import_module

from compcache.numba.declarations.references import Reference
from compcache.numba.lazy.awaited import has_numba, stand_in_of, when_imported
from compcache.numba.lazy.stand_ins import is_probe, real_numba

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["OF_CONTAINERS", "OF_STRUCTREF"]

#: Attributes of classes that do not depend on the bases, and `__self__`, which classes do not have.
_OWN = frozenset(("__doc__", "__module__", "__name__", "__qualname__", "__self__"))


class _LazyClass(ABCMeta):
    """The metaclass of classes that will derive from a class of Numba."""

    def __new__(cls, name: str, bases: Any, namespace: dict[str, Any], **options: Any) -> Any:
        """Create a class. It is one of Numba's kind if its base is no stand-in, or if it has options."""
        if not bases:
            return type.__new__(cls, name, bases, namespace)
        if bases[0] is not _Types or options:
            real = tuple([_derived_from_numbas(base) if type(base) is _LazyClass else base for base in bases])
            return type(real[0])(name, real, namespace, **options)
        namespace = {key: value for key, value in namespace.items() if key != "__orig_bases__"}  # does not exist if the base is Numba's
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
        type.__setattr__(_derived_from_numbas(cls), name, value) if name in ("__bases__", "__class__") else type.__setattr__(
            cls, name, value
        )

    def __delattr__(cls, name: str) -> None:
        delattr(_derived_from_numbas(cls), name)

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Create a type or a value."""
        return _derived_from_numbas(cls)(*args, **keywords)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _derived_from_numbas(cls)) if has_numba() else type.__instancecheck__(cls, value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, _derived_from_numbas(cls)) if has_numba() else type.__subclasscheck__(cls, other)

    def __dir__(cls) -> list[str]:
        return dir(_derived_from_numbas(cls))


class _Types(metaclass=_LazyClass):
    """Replaces `numba.types.StructRef` as a base class."""


class _FromNumba:
    """An attribute of Numba's class."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        _derive_values()
        return getattr(owner if instance is None else instance, self._name)


class _Values:
    """Replaces `StructRefProxy` as a base class. The metaclass of both is `type`, because a class cannot change its metaclass later."""

    __slots__ = ("_meminfo", "_type")  # those of Numba's class: otherwise the bases of subclasses could not change
    _numba_box_ = _FromNumba()
    _numba_type_ = _FromNumba()

    def __new__(cls, *args: Any) -> Any:
        """Create a value, by means of Numba."""
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
    """Let the classes that derive from the stand-in for `StructRefProxy` derive from Numba's class."""
    real = _numbas(_Values)
    for cls in type.__subclasses__(_Values):
        cls.__bases__ = tuple([real if base is _Values else base for base in cls.__bases__])
        if "__orig_bases__" in vars(cls):
            delattr(cls, "__orig_bases__")  # does not exist if the base is Numba's


def _derived_from_numbas(cls: Any) -> Any:
    """Return the class itself once it derives from Numba's class; for a stand-in, return Numba's class."""
    if cls is _Types:
        return _numbas(cls)
    real_numba()
    _convert(cls)
    return cls


def _convert(cls: Any) -> None:
    """Do what the class statement does if Numba is imported."""
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
    """A class of Numba from which classes may derive before Numba is imported."""

    __slots__ = ("_stand_in",)

    def __init__(self, stand_in: Any) -> None:
        super().__init__(*_ORIGINALS[stand_in], "class")
        object.__setattr__(self, "_stand_in", stand_in)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_compcache_") or name in _OF_REFERENCES:
            return object.__getattribute__(self, name)
        return Reference.__getattr__(self, name)  # includes `__new__`, which each object has

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


#: Attributes of a stand-in that are not those of the class.
_OF_REFERENCES = frozenset(("__class__", "__mro_entries__", "__reduce_ex__"))


def _is_plain_statement(frame: Any) -> bool:
    """Return whether a class statement can wait for Numba. It must not be in the main program, whose classes are pickled by value, and it
    must not name a metaclass, which would have to derive from Numba's.
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
        """Call Numba's function now, or when Numba is imported if the classes belong to the program."""
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
    """Return whether Numba will accept the arguments of `define_proxy`."""
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
