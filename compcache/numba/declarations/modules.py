"""Defines stand-ins for Numba's modules, which are used until Numba is imported.

A stand-in provides settings, types, warnings, exceptions, and the functions and classes that the module's source defines. Most uses of
these functions and classes import Numba, and so does access to any other attribute.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

from compcache.numba.declarations.cuda import CUDA_STAND_INS, can_replace_cuda
from compcache.numba.declarations.references import FAST_PATHS, FastPathFunction, Reference, TypeConstructor, find_exception_class
from compcache.numba.declarations.registrations import EXTENDING_STAND_INS, WrapperAddressProtocol
from compcache.numba.declarations.structrefs import CONTAINER_STAND_INS, STRUCTREF_STAND_INS
from compcache.numba.declarations.types import CONSTRUCTORS, find_type
from compcache.numba.lazy import has_numba, has_settings_file, numba_stand_in
from compcache.numba.lazy.c_helpers import configured_threads
from compcache.numba.lazy.stand_ins import is_probe, real_numba

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LazyModule", "find_attribute", "find_module", "find_submodule", "forget_modules", "list_public_names", "original_attribute"]

#: The module for which each alias stands.
_MODULE_ALIASES = {"numba.types": "numba.core.types", "numba.config": "numba.core.config", "numba.errors": "numba.core.errors"}
#: The modules that define the names of each package.
_DEFINING_MODULES = {
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
_TYPE_ALIASES = {"optional": "Optional"}
_SUBMODULES = frozenset(("config", "core", "cuda", "errors", "experimental", "extending", "typed", "types"))
#: Types that are not attributes of `numba`.
_NOT_IN_NUMBA = frozenset(("pyobject", "string", "unicode_type", "voidptr"))
#: The prefixes of modules that only Numba can provide: modules with side effects on import, and programs.
_WITHOUT_STAND_INS = ("numba.cuda", "numba.experimental", "numba.pycc", "numba.runtests", "numba.scripts", "numba.testing", "numba.tests")
#: Modules with side effects on import, whose attributes have stand-ins only while `numba` itself is replaced.
_PARTLY_REPLACED_MODULES = frozenset(("numba.experimental", "numba.experimental.structref"))
#: Stand-ins that register objects with Numba. They work only while `numba` itself is replaced, because they must notice Numba's import.
_REGISTRATIONS = {
    "numba.core.extending": EXTENDING_STAND_INS, "numba.extending": EXTENDING_STAND_INS,
    "numba.cuda": CUDA_STAND_INS, "numba.core.types": {"WrapperAddressProtocol": WrapperAddressProtocol, **CONTAINER_STAND_INS},
    "numba.core.types.containers": CONTAINER_STAND_INS, "numba.experimental.structref": STRUCTREF_STAND_INS,
}  # fmt: skip
_SETTINGS = "numba.core.config"
_Module: Any = type(sys)
#: Stand-ins by module and name, and for each definition by `<name>`; stand-ins for modules by "" and the full name.
_stand_ins: dict[tuple[str, str], Any] = {}


def find_module(name: str) -> Any:
    """Return the stand-in for a module of Numba, or None if only Numba can provide the module."""
    name = _MODULE_ALIASES.get(name, name)
    module = _stand_ins.get(("", name))
    if module is None and name != "numba" and _may_replace(name) and _find_source(name):
        module = _stand_ins.setdefault(("", name), LazyModule(name))
    return module


def _may_replace(name: str) -> bool:
    """Return whether a stand-in may replace a module of Numba at present."""
    if name in _PARTLY_REPLACED_MODULES:
        return numba_stand_in() is not None
    return not name.startswith(_WITHOUT_STAND_INS) or can_replace_cuda(name)


@functools.cache
def _find_source(name: str) -> str:
    """Return the path of the source of one of Numba's modules, or "" if the module has no source file."""
    from compcache.numba.registered.distributions import package_directory

    stem = os.path.join(package_directory("numba") or "?", *name.split(".")[1:])  # "?": no directory, so no source is found
    return next((path for path in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.exists(path)), "")


def find_attribute(module: str, name: str) -> Any:
    """Return the stand-in for an attribute of one of Numba's modules, or the value of a setting; None if only Numba can provide it.

    `module` is the full name of the module. Raise `OSError` if the module's source cannot be read.
    """
    if module == _SETTINGS:
        return _setting_value(name)
    attribute = _stand_ins.get((module, name))
    if attribute is None:
        attribute = _make_attribute(module, name)
        if attribute is not None:
            attribute = _stand_ins.setdefault((module, name), attribute)
    return attribute


def _setting_value(name: str) -> int | str | None:
    """Return the value that Numba would read from the environment for a setting, or None if only Numba can determine the value."""
    if has_settings_file():
        return None
    if name == "THREADING_LAYER":
        return os.environ.get("NUMBA_THREADING_LAYER", "default")
    if name == "DISABLE_JIT" and "NUMBA_DISABLE_JIT" not in os.environ:
        return 0
    count = configured_threads() if name == "NUMBA_NUM_THREADS" else 0
    return count if count > 0 else None


def _make_attribute(module: str, name: str) -> Any:
    """Return a new stand-in for an attribute of one of Numba's modules, or None if only Numba has it. See `find_attribute` for errors."""
    if name in _TYPE_ALIASES and module in ("numba", "numba.core.types"):
        return find_attribute("numba.core.types", _TYPE_ALIASES[name])
    if module == "numba":
        return _make_numba_attribute(name)
    if module == "numba.core.errors":
        return find_exception_class(name)
    attribute = None
    if module == "numba.core.types":
        attribute = TypeConstructor(name) if name in CONSTRUCTORS else find_type(name)
    if attribute is None and numba_stand_in() is not None:
        attribute = _REGISTRATIONS.get(module, {}).get(name)
    return attribute or find_module(f"{module}.{name}") or _find_definition(module, name)


def _make_numba_attribute(name: str) -> Any:
    """Return a new stand-in for an attribute of the module `numba`, or None if only Numba has it. See `find_attribute` for errors."""
    if name in _SUBMODULES:
        return find_module(f"numba.{name}")
    if name in _CONTEXTS:
        return Reference("numba", name, "context")
    if name in FAST_PATHS:
        return _stand_ins.setdefault((FAST_PATHS[name][0], f"<{name}>"), FastPathFunction(name))
    attribute = find_exception_class(name) or (find_type(name) if name not in _NOT_IN_NUMBA else None)
    return _find_definition("numba", name) if attribute is None and name in _IMPORTED_BY_NUMBA else attribute


def _find_definition(module: str, name: str) -> Any:
    """Return a stand-in for a function or class that a module's source defines, or None if the source does not define the name.

    Raise `OSError` if the source cannot be read.
    """
    if FAST_PATHS.get(name, ("",))[0] == module:
        return find_attribute("numba", name)
    for defining_module in _DEFINING_MODULES.get(module, (module,)):
        path = _find_source(defining_module)
        if not path:
            continue  # other versions of Numba have other modules
        with open(path, encoding="utf-8") as file:
            source = file.read()
        for keyword, kind in (("def", "library function"), ("class", "class")):
            if f"\n{keyword} {name}(" in source or f"\n{keyword} {name}:" in source:
                # Every module that provides the name provides the same stand-in.
                return _stand_ins.setdefault((defining_module, f"<{name}>"), Reference(defining_module, name, kind))
    return None


class LazyModule(_Module):  # type: ignore[misc]
    """The stand-in for a module of Numba. Access to an attribute without a stand-in imports Numba."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return list_public_names(self._compcache_original())
        if name.startswith("__") or (is_probe(name) and not has_numba()):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        forget_modules()
        stand_in = None if has_numba() else find_attribute(self.__name__, name)
        return original_attribute(self, name) if stand_in is None else stand_in

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        elif type(value) is not LazyModule:  # an import statement sets a submodule, which `__getattr__` provides anyway
            setattr(self._compcache_original(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self._compcache_original())

    def _compcache_original(self) -> Any:
        """Import Numba if necessary, and return its own module."""
        real_numba()
        return import_module(self.__name__)

    def _compcache_content(self, walk: Any) -> None:
        """Feed the identity of the module to a walk, as a walk feeds Numba's own module."""
        walk.feed_token("module", self.__name__)


def original_attribute(module: Any, name: str) -> Any:
    """Return an attribute of Numba's module behind a stand-in. Import a submodule that a statement with other names began to import."""
    original, full_name = module._compcache_original(), f"{module.__name__}.{name}"
    if ("", full_name) in _stand_ins and not hasattr(original, name):
        import_module(full_name)
    return getattr(original, name)


def list_public_names(module: Any) -> list[str]:
    """Return the names that ``from module import *`` imports from Numba's own module. The stand-in itself defines only a few of them."""
    names: list[str] | None = getattr(module, "__all__", None)
    return [name for name in vars(module) if not name.startswith("_")] if names is None else names


#: The names of the stand-ins that imports have added to `sys.modules`.
_imported_names: set[str] = set()


def forget_modules() -> None:
    """Remove imported stand-ins from `sys.modules`, unless that for `numba` was removed, or another thread may be importing a stand-in."""
    if numba_stand_in() is None or len(sys._current_frames()) > 1:
        return
    while _imported_names:
        name = _imported_names.pop()
        if type(sys.modules.get(name)) is LazyModule:
            del sys.modules[name]


def find_submodule(name: str) -> ModuleSpec | None:
    """Return the specification of a submodule of Numba for an import: of its stand-in, or else of the submodule of the imported Numba.

    Import Numba if there is no stand-in. Return None if Numba's import did not import the submodule.
    """
    module = find_module(name)
    if module is not None:
        return ModuleSpec(name, _StandInLoader(module), is_package=True)  # type: ignore[arg-type]
    real_numba()
    module = sys.modules.get(name)
    return None if module is None else ModuleSpec(name, _ImportedLoader(module), is_package=hasattr(module, "__path__"))  # type: ignore[arg-type]


class _StandInLoader:
    """The loader of a stand-in for one of Numba's modules."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def create_module(self, spec: Any) -> Any:
        """Record that the module is imported, and return the existing module."""
        _imported_names.add(spec.name)
        return self._module

    def exec_module(self, module: Any) -> None:
        """Do nothing, because the stand-in is complete."""


class _ImportedLoader(_StandInLoader):
    """The loader of a submodule that was imported together with Numba."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._spec = module.__spec__
        module.__spec__ = None  # otherwise importlib uses this specification, and executes the module again

    def exec_module(self, module: Any) -> None:
        """Restore the specification of the module, which was executed already."""
        module.__spec__ = self._spec
