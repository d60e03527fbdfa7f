"""Defines stand-ins for Numba's modules, which are used until Numba is imported.

A stand-in offers types, warnings, and the functions and classes that the module's source defines. These objects import Numba when they are
used. Any other attribute imports Numba at once.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from compcache.numba.declarations.cuda import CUDA_STAND_INS, can_replace_cuda
from compcache.numba.declarations.references import FAST_PATHS, FastPathFunction, Reference, TypeConstructor, exception_named
from compcache.numba.declarations.registrations import EXTENDING_STAND_INS, WrapperAddressProtocol
from compcache.numba.declarations.structrefs import CONTAINER_STAND_INS, STRUCTREF_STAND_INS
from compcache.numba.declarations.types import CONSTRUCTORS, type_named
from compcache.numba.lazy.awaited import has_numba, stand_in_of
from compcache.numba.lazy.c_helpers import configured_threads
from compcache.numba.lazy.stand_ins import is_probe, real_numba

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LazyModule", "attribute_of", "forget_modules", "module_named", "public_names"]

#: Aliases of modules, with the modules whose attributes they have.
_MODULE_ALIASES = {"numba.types": "numba.core.types", "numba.config": "numba.core.config", "numba.errors": "numba.core.errors"}
#: For each package, the modules that define its names.
_HOMES = {
    "numba.core.types": tuple(f"numba.core.types.{name}" for name in (
        "abstract", "common", "containers", "functions", "function_type", "iterators", "misc", "npytypes", "scalars",
    )),
    "numba.extending": ("numba.core.extending",),
    "numba.typed": ("numba.typed.typeddict", "numba.typed.typedlist"),
    "numba": ("numba.misc.special", "numba.np.numpy_support", "numba.np.ufunc.parallel"),
}  # fmt: skip
#: The attributes that `numba` imports from its submodules.
_IMPORTED_BY_NUMBA = frozenset((
    "carray", "farray", "from_dtype", "get_num_threads", "get_parallel_chunksize", "get_thread_id", "literal_unroll", "literally", "pndindex",  # noqa: E501
    "set_num_threads", "set_parallel_chunksize", "threading_layer", "typeof",
))  # fmt: skip
_CONTEXTS = frozenset(("objmode", "parallel_chunksize"))
#: Aliases of classes of Numba types.
_ALIASES = {"optional": "Optional"}
_SUBMODULES = frozenset(("config", "core", "cuda", "errors", "experimental", "extending", "typed", "types"))
#: Types that are not attributes of `numba`.
_IN_TYPES_ONLY = frozenset(("pyobject", "string", "unicode_type", "voidptr"))
#: Prefixes of modules that only Numba can provide: modules with side effects on import, and programs.
_WITHOUT_STAND_INS = ("numba.cuda", "numba.experimental", "numba.pycc", "numba.runtests", "numba.scripts", "numba.testing", "numba.tests")
#: Modules with side effects on import. Some of their attributes have stand-ins while `numba` itself is replaced.
_PARTLY_REPLACED = frozenset(("numba.experimental", "numba.experimental.structref"))
#: Functions that register something. They work only while `numba` itself is replaced, because the import of Numba must be noticed.
_REGISTRATIONS = {
    "numba.core.extending": EXTENDING_STAND_INS, "numba.extending": EXTENDING_STAND_INS,
    "numba.cuda": CUDA_STAND_INS, "numba.core.types": {"WrapperAddressProtocol": WrapperAddressProtocol, **CONTAINER_STAND_INS},
    "numba.core.types.containers": CONTAINER_STAND_INS, "numba.experimental.structref": STRUCTREF_STAND_INS,
}  # fmt: skip
_SETTINGS = "numba.core.config"
#: The file with settings that Numba reads in addition to the environment.
_CONFIGURATION = ".numba_config.yaml"
_Module: Any = type(sys)
_stand_ins: dict[tuple[str, str], Any] = {}


def module_named(name: str) -> Any:
    """Return the stand-in for a module of Numba, or None if only Numba can provide the module."""
    name = _MODULE_ALIASES.get(name, name)
    known = _stand_ins.get(("", name))
    if known is None and name != "numba" and _may_replace(name) and _source_of(name):
        known = _stand_ins.setdefault(("", name), LazyModule(name))
    return known


def _may_replace(name: str) -> bool:
    """Return whether a stand-in may replace a module of Numba at present."""
    if name in _PARTLY_REPLACED:
        return stand_in_of() is not None
    return not name.startswith(_WITHOUT_STAND_INS) or can_replace_cuda(name)


def _source_of(name: str) -> str:
    """Return the path of the source of one of Numba's modules, or "" if the module has no source file."""
    from compcache.numba.registered.distributions import package_directory

    global _directory  # noqa: PLW0603 - Numba is one per process
    if not _directory:
        _directory = package_directory("numba") or "?"
    stem = os.path.join(_directory, *name.split(".")[1:])
    return next((path for path in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.exists(path)), "")


_directory = ""


def attribute_of(module: str, name: str) -> Any:
    """Return the stand-in or the value of an attribute of a module of Numba, or None if only Numba can provide the attribute."""
    if module == _SETTINGS:
        return _setting_value(name)
    known = _stand_ins.get((module, name))
    if known is None:
        known = _make_attribute(module, name)
        if known is not None:
            known = _stand_ins.setdefault((module, name), known)
    return known


def _setting_value(name: str) -> int | str | None:
    """Return a setting that packages read on import, with the value that Numba reads from the environment.

    The result is None if only Numba can determine the value.
    """
    if os.path.exists(_CONFIGURATION):
        return None
    if name == "THREADING_LAYER":
        return os.environ.get("NUMBA_THREADING_LAYER", "default")
    if name == "DISABLE_JIT" and "NUMBA_DISABLE_JIT" not in os.environ:
        return 0
    count = configured_threads() if name == "NUMBA_NUM_THREADS" else 0
    return count if count > 0 else None


def _make_attribute(module: str, name: str) -> Any:
    """Return a new stand-in for an attribute of a module, or its value; None if only Numba can provide it."""
    if name in _ALIASES and module in ("numba", "numba.core.types"):
        return attribute_of("numba.core.types", _ALIASES[name])
    if module == "numba":
        return _make_numba_attribute(name)
    if module == "numba.core.errors":
        return exception_named(name)
    known = None
    if module == "numba.core.types":
        known = TypeConstructor(name) if name in CONSTRUCTORS else type_named(name)
    if known is None and stand_in_of() is not None:
        known = _REGISTRATIONS.get(module, {}).get(name)
    return known or module_named(f"{module}.{name}") or _find_definition(module, name)


def _make_numba_attribute(name: str) -> Any:
    """Return a new stand-in for an attribute of the module `numba`, or None if only Numba can provide it."""
    if name in _SUBMODULES:
        return module_named(f"numba.{name}")
    if name in _CONTEXTS:
        return Reference("numba", name, "context")
    if name in FAST_PATHS:
        return _stand_ins.setdefault((FAST_PATHS[name][0], f"<{name}>"), FastPathFunction(name))
    known = exception_named(name) or (type_named(name) if name not in _IN_TYPES_ONLY else None)
    return _find_definition("numba", name) if known is None and name in _IMPORTED_BY_NUMBA else known


def _find_definition(module: str, name: str) -> Any:
    """Return a stand-in for a function or class that the source of a module defines, or None if the source defines no such name."""
    if FAST_PATHS.get(name, ("",))[0] == module:
        return attribute_of("numba", name)
    for home in _HOMES.get(module, (module,)):
        path = _source_of(home)
        if not path:
            continue  # other versions of Numba have other modules
        with open(path, encoding="utf-8") as file:
            source = file.read()
        for word, kind in (("def", "library function"), ("class", "class")):
            if f"\n{word} {name}(" in source or f"\n{word} {name}:" in source:
                return _stand_ins.setdefault((home, f"<{name}>"), Reference(home, name, kind))  # one object for all these modules
    return None


class LazyModule(_Module):  # type: ignore[misc]
    """The stand-in for a module of Numba. A request for an unknown attribute imports Numba."""

    def __getattr__(self, name: str) -> Any:
        own = self.__name__
        if name == "__all__":
            return public_names(self._compcache_original())
        if name.startswith("__") or (is_probe(name) and not has_numba()):
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        forget_modules()
        stand_in = None if has_numba() else attribute_of(own, name)
        return getattr(self._compcache_original(), name) if stand_in is None else stand_in

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        elif type(value) is not LazyModule:  # an import statement sets a submodule; `__getattr__` provides it
            setattr(self._compcache_original(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self._compcache_original())

    def _compcache_original(self) -> Any:
        """Import Numba if necessary, and return its own module."""
        real_numba()
        return import_module(self.__name__)

    def _compcache_content(self, walk: Any) -> None:
        """Feed the identity of the module to a walk, as `Content` does for Numba's own modules."""
        walk.feed_token("module", self.__name__)


def public_names(module: Any) -> list[str]:
    """Return the names that `from module import *` imports from Numba's own module. Its stand-in defines hardly any of them."""
    names: list[str] | None = getattr(module, "__all__", None)
    return [name for name in vars(module) if not name.startswith("_")] if names is None else names


def forget_modules() -> None:
    """Remove stand-ins for modules from `sys.modules`. Do nothing if other threads run, because one may be importing a stand-in."""
    if stand_in_of() is None or len(sys._current_frames()) > 1:
        return
    for name in [name for name in sys.modules if name.startswith("numba.")]:
        if type(sys.modules.get(name)) is LazyModule:
            del sys.modules[name]
