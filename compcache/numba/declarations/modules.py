"""Stand-ins for Numba's modules while Numba is not imported, and their attributes.

A stand-in offers types, warnings, and the functions and classes that the module's source defines; these import Numba when they are used.
Any other attribute imports Numba at once.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from compcache.numba.declarations.cuda import OF_CUDA, stands_for_cuda
from compcache.numba.declarations.references import QUESTIONS, Question, Reference, TypeConstructor, exception_named
from compcache.numba.declarations.registrations import OF_EXTENDING, WrapperAddressProtocol
from compcache.numba.declarations.structrefs import OF_CONTAINERS, OF_STRUCTREF
from compcache.numba.declarations.types import CONSTRUCTORS, type_named
from compcache.numba.lazy.awaited import has_numba, stand_in_of
from compcache.numba.lazy.c_helpers import configured_threads
from compcache.numba.lazy.stand_ins import is_probe, real_numba

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LazyModule", "attribute_of", "forget_modules", "module_named", "public_names"]

#: Modules that are aliases of others, or have the same attributes.
_SAME = {"numba.types": "numba.core.types", "numba.config": "numba.core.config", "numba.errors": "numba.core.errors"}
#: The files that define the names of a package, other than its own.
_HOMES = {
    "numba.core.types": tuple(f"numba.core.types.{name}" for name in (
        "abstract", "common", "containers", "functions", "function_type", "iterators", "misc", "npytypes", "scalars",
    )),
    "numba.extending": ("numba.core.extending",),
    "numba.typed": ("numba.typed.typeddict", "numba.typed.typedlist"),
    "numba": ("numba.misc.special", "numba.np.numpy_support", "numba.np.ufunc.parallel"),
}  # fmt: skip
#: The attributes of `numba` that come from its parts.
_TOP = frozenset((
    "carray", "farray", "from_dtype", "get_num_threads", "get_parallel_chunksize", "get_thread_id", "literal_unroll", "literally", "pndindex",  # noqa: E501
    "set_num_threads", "set_parallel_chunksize", "threading_layer", "typeof",
))  # fmt: skip
_OBJECTS = frozenset(("objmode", "parallel_chunksize"))
#: Aliases of classes of types.
_ALIASES = {"optional": "Optional"}
_PARTS = frozenset(("config", "core", "cuda", "errors", "experimental", "extending", "typed", "types"))
#: Types that are not attributes of `numba`.
_IN_TYPES_ONLY = frozenset(("pyobject", "string", "unicode_type", "voidptr"))
#: Modules with side effects on import, and programs.
_OTHERS = ("numba.cuda", "numba.experimental", "numba.pycc", "numba.runtests", "numba.scripts", "numba.testing", "numba.tests")
#: Modules with side effects, of which only a part needs Numba.
_IN_PART = frozenset(("numba.experimental", "numba.experimental.structref"))
#: Functions that work only if `numba` itself is replaced, so that the import of Numba is noticed.
_REGISTRATIONS = {
    "numba.core.extending": OF_EXTENDING, "numba.extending": OF_EXTENDING,
    "numba.cuda": OF_CUDA, "numba.core.types": {"WrapperAddressProtocol": WrapperAddressProtocol, **OF_CONTAINERS},
    "numba.core.types.containers": OF_CONTAINERS, "numba.experimental.structref": OF_STRUCTREF,
}  # fmt: skip
_SETTINGS = "numba.core.config"
#: Where Numba reads settings, in addition to the environment.
_CONFIGURATION = ".numba_config.yaml"
_Module: Any = type(sys)
_made: dict[tuple[str, str], Any] = {}


def module_named(name: str) -> Any:
    """Return the stand-in for a module of Numba, or None if only Numba's own will do."""
    name = _SAME.get(name, name)
    known = _made.get(("", name))
    if known is None and name != "numba" and _may_stand_for(name) and _source_of(name):
        known = _made.setdefault(("", name), LazyModule(name))
    return known


def _may_stand_for(name: str) -> bool:
    if name in _IN_PART:
        return stand_in_of() is not None
    return not name.startswith(_OTHERS) or stands_for_cuda(name)


def _source_of(name: str) -> str:
    """Return the path of a module of Numba, or "" if it has no file."""
    from compcache.numba.registered.distributions import package_directory

    global _directory  # noqa: PLW0603 - Numba is one per process
    if not _directory:
        _directory = package_directory("numba") or "?"
    stem = os.path.join(_directory, *name.split(".")[1:])
    return next((path for path in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.exists(path)), "")


_directory = ""


def attribute_of(module: str, name: str) -> Any:
    """Return the stand-in for an attribute of a module of Numba, or its value; None if only Numba's own will do."""
    if module == _SETTINGS:
        return _setting(name)
    known = _made.get((module, name))
    if known is None:
        known = _find(module, name)
        if known is not None:
            known = _made.setdefault((module, name), known)
    return known


def _setting(name: str) -> int | str | None:
    """Return a setting that packages read on import, with the value that Numba takes from the environment; None if Numba must decide."""
    if os.path.exists(_CONFIGURATION):
        return None
    if name == "THREADING_LAYER":
        return os.environ.get("NUMBA_THREADING_LAYER", "default")
    if name == "DISABLE_JIT" and "NUMBA_DISABLE_JIT" not in os.environ:
        return 0
    count = configured_threads() if name == "NUMBA_NUM_THREADS" else 0
    return count if count > 0 else None


def _find(module: str, name: str) -> Any:
    if name in _ALIASES and module in ("numba", "numba.core.types"):
        return attribute_of("numba.core.types", _ALIASES[name])
    if module == "numba":
        return _of_numba(name)
    if module == "numba.core.errors":
        return exception_named(name)
    known = None
    if module == "numba.core.types":
        known = TypeConstructor(name) if name in CONSTRUCTORS else type_named(name)
    if known is None and stand_in_of() is not None:
        known = _REGISTRATIONS.get(module, {}).get(name)
    return known or module_named(f"{module}.{name}") or _defined(module, name)


def _of_numba(name: str) -> Any:
    if name in _PARTS:
        return module_named(f"numba.{name}")
    if name in _OBJECTS:
        return Reference("numba", name, "context")
    if name in QUESTIONS:
        return _made.setdefault((QUESTIONS[name][0], f"<{name}>"), Question(name))
    known = exception_named(name) or (type_named(name) if name not in _IN_TYPES_ONLY else None)
    return _defined("numba", name) if known is None and name in _TOP else known


def _defined(module: str, name: str) -> Any:
    """Return a stand-in for a function or class that the source of a module defines."""
    if QUESTIONS.get(name, ("",))[0] == module:
        return attribute_of("numba", name)
    for home in _HOMES.get(module, (module,)):
        path = _source_of(home)
        if not path:
            continue  # other versions of Numba have other modules
        with open(path, encoding="utf-8") as file:
            source = file.read()
        for word, kind in (("def", "library function"), ("class", "class")):
            if f"\n{word} {name}(" in source or f"\n{word} {name}:" in source:
                return _made.setdefault((home, f"<{name}>"), Reference(home, name, kind))  # one for all modules that offer it
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
        found = None if has_numba() else attribute_of(own, name)
        return getattr(self._compcache_original(), name) if found is None else found

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        elif type(value) is not LazyModule:  # imports set submodules so; `__getattr__` returns these
            setattr(self._compcache_original(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self._compcache_original())

    def _compcache_original(self) -> Any:
        """Return Numba's own module."""
        real_numba()
        return import_module(self.__name__)

    def _compcache_content(self, walk: Any) -> None:
        """Feed the content of this object to a walk, as `Content` does for Numba's own modules."""
        walk.token("module", self.__name__)


def public_names(module: Any) -> list[str]:
    """Return what `from module import *` imports from a module of Numba; its stand-in has hardly any attributes itself."""
    names: list[str] | None = getattr(module, "__all__", None)
    return [name for name in vars(module) if not name.startswith("_")] if names is None else names


def forget_modules() -> None:
    """Remove the stand-ins that imports have put into `sys.modules`, unless another thread may be importing one."""
    if stand_in_of() is None or len(sys._current_frames()) > 1:
        return
    for name in [name for name in sys.modules if name.startswith("numba.")]:
        if type(sys.modules.get(name)) is LazyModule:
            del sys.modules[name]
