"""Replaces the module `numba` by a stand-in, in programs that contain ``from numba import njit``.

The stand-in provides the lazy decorators, the version, types, and the objects of `references`. Access to any other attribute, and the
import of any other submodule, replace the stand-in by Numba itself. Objects that were decorated earlier stay lazy. Objects that are
decorated later are recorded for later starts. The stand-ins other than the decorators are made by files that are imported at the first use.
"""

from __future__ import annotations

import sys

from compcache.interrupts import suppress
from compcache.numba.declarations import decorators
from compcache.numba.lazy import numba_stand_in
from compcache.numba.lazy.stand_ins import is_probe, real_numba, record_replaced_decorators
from compcache.numba.registered.distributions import numba_version
from compcache.numba.registered.refusals import NotLazy

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
        if name == "__version__":  # few programs read the version, and finding it takes time
            version = ""
            with suppress(NotLazy):  # the packages cannot be examined
                version = numba_version()
            self.__version__ = version or real_numba().__version__
            return self.__version__
        if name != "__all__" and (name.startswith("__") or is_probe(name)):
            raise AttributeError(f"module 'numba' has no attribute {name!r}")
        from compcache.numba.declarations.modules import find_attribute, forget_modules, list_public_names, original_attribute

        if name == "__all__":
            return list_public_names(real_numba())
        if numba_stand_in() is self:
            forget_modules()
            stand_in = find_attribute("numba", name)
            if stand_in is not None:
                return stand_in
        return original_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        from compcache.numba.declarations.modules import LazyModule

        if type(value) is not LazyModule:  # an import statement sets a submodule, which `__getattr__` provides anyway
            setattr(real_numba(), name, value)

    def __dir__(self) -> list[str]:
        return dir(real_numba())

    def _compcache_original(self) -> Any:
        """Import Numba if necessary, and return it."""
        return real_numba()

    def _compcache_content(self, walk: Any) -> None:
        """Feed the identity of the module to a walk, as a walk feeds Numba's own module."""
        walk.feed_token("module", "numba")


#: The decorators in `numba.extending` whose registrations are part of functions' keys. They are replaced when Numba is imported.
_REGISTERING_DECORATORS = ("intrinsic", "overload", "register_jitable")


class Hook:
    """The stand-in for `numba`, and the import finder for its submodules.

    Args:
        when_imported: called once Numba itself is imported; returns None, or an object whose method `remove` undoes the installation.
    """

    def __init__(self, when_imported: Callable[[], Any]) -> None:
        self._when_imported = when_imported
        self._module: Any = None
        self._hooks: Any = None
        self._decorators: dict[str, Any] = {}

    def install(self) -> bool:
        """Replace Numba by the stand-in, and return True. Return False if Numba is already imported, or is not installed."""
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec("numba")
        if "numba" in sys.modules or spec is None or spec.origin is None:
            return False
        module = StandIn("numba", "The stand-in for Numba: see compcache.numba.declarations.import_hook.")
        module.__dict__.update({
            "__spec__": spec, "__path__": spec.submodule_search_locations, "__file__": spec.origin, "__package__": "numba",
            "_compcache_when_real": self._handle_import,
            **{name: getattr(decorators, name) for name in decorators.__all__},
        })  # fmt: skip
        self._module = module
        sys.modules["numba"] = module
        sys.meta_path.insert(0, self)
        return True

    def remove(self) -> None:
        """Remove the stand-in, the finder and the replaced decorators that are still in place."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if numba_stand_in() is self._module and self._module is not None:
            del sys.modules["numba"]
        numba = sys.modules.get("numba")
        for name, original in self._decorators.items():
            if vars(numba).get(name) is getattr(decorators, name):
                setattr(numba, name, original)
        if self._decorators:
            from compcache.numba.declarations.registrations import EXTENDING_STAND_INS

            for name in _REGISTERING_DECORATORS:
                if getattr(numba.extending, name) is EXTENDING_STAND_INS[name]:  # type: ignore[union-attr]
                    setattr(numba.extending, name, getattr(numba.core.extending, name))  # type: ignore[union-attr]
            record_replaced_decorators({})
            self._decorators = {}
        if self._hooks is not None:
            self._hooks.remove()

    def _handle_import(self) -> None:
        """Remove the finder, and install the hooks in the imported Numba. If they are installed, replace Numba's decorators."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._hooks = self._when_imported()
        if self._hooks is not None:
            self._replace_decorators()

    def _replace_decorators(self) -> None:
        """Replace the decorators of the imported Numba, so that functions that are decorated now are recorded for later starts."""
        from compcache.numba.declarations.registrations import EXTENDING_STAND_INS

        numba: Any = sys.modules["numba"]
        self._decorators = {name: getattr(numba, name) for name in decorators.__all__ if name != "prange"}
        record_replaced_decorators(self._decorators)
        for name in self._decorators:
            setattr(numba, name, getattr(decorators, name))
        for name in _REGISTERING_DECORATORS:
            setattr(numba.extending, name, EXTENDING_STAND_INS[name])

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Find a submodule of Numba for an import statement.

        If no stand-in can replace the submodule, Numba is imported.

        Returns:
            The specification; None if the other finders must find the module, because its name is not a submodule of Numba, the stand-in
            for `numba` is no longer in place, or Numba's import did not import the submodule.
        """
        del path, target
        if not name.startswith("numba.") or numba_stand_in() is not self._module:
            return None
        from compcache.numba.declarations.modules import find_submodule

        return find_submodule(name)
