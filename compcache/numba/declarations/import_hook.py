"""Replaces the module `numba` by a stand-in, in programs that say ``from numba import njit``, until they need more of it.

The stand-in offers the lazy decorators, the version, types, and the content of `references`. Any other attribute, and any import of another
part of Numba, replaces it by Numba itself. Objects that were decorated earlier stay lazy. Those that are decorated later are recorded for
later starts.
"""

from __future__ import annotations

import sys

from compcache.numba.declarations import decorators
from compcache.numba.declarations.modules import LazyModule, attribute_of, forget_modules, module_named, public_names
from compcache.numba.declarations.registrations import OF_EXTENDING
from compcache.numba.lazy.awaited import stand_in_of
from compcache.numba.lazy.stand_ins import is_probe, real_numba, take_decorators
from compcache.numba.registered.distributions import numba_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

__all__ = ["Hook"]

_Module: Any = type(sys)


class StandIn(_Module):  # type: ignore[misc]
    """The stand-in for the module `numba`."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return public_names(real_numba())
        if name.startswith("__") or is_probe(name):
            raise AttributeError(f"module 'numba' has no attribute {name!r}")
        if stand_in_of() is self:
            forget_modules()
            found = attribute_of("numba", name)
            if found is not None:
                return found
        return getattr(real_numba(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        elif type(value) is not LazyModule:  # imports set submodules so; `__getattr__` returns these
            setattr(real_numba(), name, value)

    def __dir__(self) -> list[str]:
        return dir(real_numba())

    def _compcache_original(self) -> Any:
        """Return Numba itself."""
        return real_numba()

    def _compcache_content(self, walk: Any) -> None:
        """Feed the content of this object to a walk, as `Content` does for Numba's own modules."""
        walk.token("module", "numba")


#: The kinds of registrations that keys of functions contain; these are noted when Numba is imported.
_REGISTRATIONS = ("intrinsic", "overload", "register_jitable")


class Hook:
    """The stand-in and the finder of one installation. `when_real` is called once Numba itself is imported."""

    def __init__(self, when_real: Callable[[], Any]) -> None:
        self._when_real = when_real
        self._module: Any = None
        self._hooks: Any = None
        self._decorators: dict[str, Any] = {}

    def install(self) -> bool:
        """Replace Numba by the stand-in. Return False if Numba is imported already, or is not installed."""
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec("numba")
        if "numba" in sys.modules or spec is None or spec.origin is None:
            return False
        module = StandIn("numba", "Stands for Numba: compcache.numba.declarations.import_hook.")
        module.__dict__.update({
            "__spec__": spec, "__path__": spec.submodule_search_locations, "__file__": spec.origin, "__package__": "numba",
            "__version__": numba_version(), "_compcache_when_real": self._replaced,
            **{name: getattr(decorators, name) for name in decorators.__all__},
        })  # fmt: skip
        self._module = module
        sys.modules["numba"] = module
        sys.meta_path.insert(0, self)
        return True

    def remove(self) -> None:
        """Remove the stand-in, if it is still there."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if stand_in_of() is self._module and self._module is not None:
            del sys.modules["numba"]
        numba = sys.modules.get("numba")
        for name, own in self._decorators.items():
            if vars(numba).get(name) is getattr(decorators, name):
                setattr(numba, name, own)
        if self._decorators:
            for name in _REGISTRATIONS:
                if getattr(numba.extending, name) is OF_EXTENDING[name]:  # type: ignore[union-attr]
                    setattr(numba.extending, name, getattr(numba.core.extending, name))  # type: ignore[union-attr]
            take_decorators({})
            self._decorators = {}
        if self._hooks is not None:
            self._hooks.remove()

    def _replaced(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._hooks = self._when_real()
        if self._hooks is not None:
            self._take_decorators()

    def _take_decorators(self) -> None:
        """Record what is decorated from now on for later starts, although Numba is imported."""
        numba: Any = sys.modules["numba"]
        self._decorators = {name: getattr(numba, name) for name in decorators.__all__ if name != "prange"}
        take_decorators(self._decorators)
        for name in self._decorators:
            setattr(numba, name, getattr(decorators, name))
        for name in _REGISTRATIONS:
            setattr(numba.extending, name, OF_EXTENDING[name])

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Find a part of Numba for an import statement: Numba itself is imported, and has that part."""
        del path, target
        if not name.startswith("numba.") or stand_in_of() is not self._module:
            return None
        stand_in = module_named(name)
        if stand_in is not None:
            from importlib.machinery import ModuleSpec

            loader_: Any = _StandIn(stand_in)
            return ModuleSpec(name, loader_, is_package=True)
        real_numba()
        known = sys.modules.get(name)
        if known is None:
            return None
        from importlib.machinery import ModuleSpec

        loader: Any = _Known(known)
        return ModuleSpec(name, loader, is_package=hasattr(known, "__path__"))


class _StandIn:
    """Loads a stand-in for one of Numba's modules."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def create_module(self, spec: Any) -> Any:
        """Return the stand-in."""
        del spec
        return self._module

    def exec_module(self, module: Any) -> None:
        """Do nothing: the stand-in is complete."""


class _Known:
    """Loads a module that was imported together with its parent."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._spec = module.__spec__
        module.__spec__ = None  # otherwise importlib takes its spec instead of ours, and executes the module a second time

    def create_module(self, spec: Any) -> Any:
        """Return the module."""
        del spec
        return self._module

    def exec_module(self, module: Any) -> None:
        """Do nothing: the module was executed already."""
        module.__spec__ = self._spec
