"""Decides which code follows from the versions in every key, and which objects can be found by their names.

Every key contains the versions of Python, NumPy, llvmlite, Numba and this package.
"""

from __future__ import annotations

import os
import sys

from compcache.numba.registered.code_reads import cells_of
from compcache.numba.registered.marks import is_marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "CODE_GENERATORS", "full_name", "has_own_code", "is_found_by_name", "is_generator_module", "is_library_function", "is_library_module",
    "is_made_by_library", "is_of_generators", "module_name_of", "name_of_class", "package_of", "qualified_name_of",
]  # fmt: skip

#: The libraries that generate code. Their versions determine the code. The parts that follow are excluded: they read the process or files.
CODE_GENERATORS: dict[str, tuple[str, ...]] = {
    "compcache": (),
    "llvmlite": ("llvmlite.binding.dylib", "llvmlite.binding.executionengine", "llvmlite.binding.targets", "llvmlite.tests"),
    "numba": (
        "numba.core.caching", "numba.core.codegen", "numba.core.config", "numba.cuda", "numba.misc.appdirs", "numba.misc.numba_sysinfo",
        "numba.misc.cffiimpl", "numba.misc.init_utils", "numba.np.ufunc.parallel", "numba.parfors.parfor_lowering", "numba.pycc",
        "numba.testing", "numba.tests",
    ),
}  # fmt: skip
#: The top-level packages of libraries. This package is one of them, because modules contain its decorators in place of Numba's.
_LIBRARIES = ("builtins", "numpy", *CODE_GENERATORS)
_NUMBAS_TESTS = "numba.tests"
_STANDARD = os.path.dirname(os.__file__)
_Function = type(lambda: 0)
_Module = type(sys)
#: Whether modules with these names, and code from these files, belong to libraries. Only final answers are stored.
_modules: dict[str, bool] = {}
_paths: dict[str, bool] = {}


def is_found_by_name(value: Any) -> bool:
    """Return whether the module of an object contains the object under its own name."""
    module, name = module_name_of(value), qualified_name_of(value)
    if module is None or name is None:
        return False
    named: Any = sys.modules.get(module)
    for part in name.split("."):
        named = getattr(named, part, None)
    return named is value


def name_of_class(cls: type) -> str | None:
    """Return the name under which a module contains its class: the name of the class, or of a variable; None if there is no such name.

    For example, the class of ``Rows = namedtuple("Row", ...)`` has another name than its variable.
    """
    if is_found_by_name(cls):
        return cls.__qualname__
    variables = vars(sys.modules[cls.__module__]).copy() if cls.__module__ in sys.modules else {}  # other threads may add variables
    names = [name for name, value in variables.items() if value is cls]
    return min(names) if names else None


def module_name_of(value: Any) -> str | None:
    """Return the name of an object's module, or None if it is unknown. If the object names no module, its `__self__` determines it."""
    module = getattr(value, "__module__", None)
    owner = getattr(value, "__self__", None)
    if module is None and owner is not None:
        module = owner.__name__ if isinstance(owner, _Module) else type(owner).__module__
    return module if isinstance(module, str) else None


def qualified_name_of(value: Any) -> str | None:
    """Return the qualified name of an object, or its name, or None."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return name if isinstance(name, str) else None


def full_name(function: Any) -> str:
    """Return the module and the qualified name of a function, joined by a dot.

    For the constructor of a jitclass, which Numba generates from text, return the name of the class.
    """
    jitclass = function.__globals__.get("__numba_cls_")
    named = function if jitclass is None else jitclass.__base__
    return f"{named.__module__}.{named.__qualname__}"


def is_generator_module(name: object) -> bool:
    """Return whether a module, given by its name, belongs to a library that generates code. Numba's tests count as programs."""
    return isinstance(name, str) and not name.startswith(_NUMBAS_TESTS) and name.partition(".")[0] in CODE_GENERATORS


def is_of_generators(kind: type) -> bool:
    """Return whether a class belongs to a library that generates code, or is the class of a stand-in for a Numba object."""
    return is_generator_module(kind.__module__) or is_marked(kind, "_compcache_content")


def is_library_module(name: object) -> bool:
    """Return whether the versions in every key cover the content of a module, given by its name; False for an object that is not a name."""
    if not isinstance(name, str):
        return False
    is_library = _modules.get(name)
    if is_library is None:
        top = name.partition(".")[0]
        is_of_python = top != "__main__" and top in sys.stdlib_module_names
        is_library = not name.startswith(_NUMBAS_TESTS) and (top in _LIBRARIES or (is_of_python and _is_standard_module(top)))
        if not is_of_python or top in sys.modules:
            _modules[name] = is_library
    return is_library


def _is_standard_module(top: str) -> bool:
    """Return whether a module with the name of a standard-library module is this module, and not a file of the user.

    For a module that is not imported, the file that an import would load decides.
    """
    from importlib.machinery import PathFinder

    is_known = top in sys.modules or top in sys.builtin_module_names
    spec = getattr(sys.modules.get(top), "__spec__", None) if is_known else PathFinder.find_spec(top)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str):
        return top in sys.builtin_module_names
    return origin in ("built-in", "frozen") or (origin.startswith(_STANDARD + os.sep) and "site-packages" not in origin)


def is_made_by_library(function: Any) -> bool:
    """Return whether the code of a function belongs to a library, closures included.

    The globals and the code's file decide, because `functools.wraps` replaces the other attributes of a user's function. For an object that
    is not a Python function, its module decides.
    """
    if type(function) is not _Function:
        return is_library_module(getattr(function, "__module__", None))
    if not is_library_module(function.__globals__.get("__name__")):
        return False
    path = function.__code__.co_filename
    is_library = _paths.get(path)
    if is_library is None:
        is_library = _paths[path] = _is_library_path(path)
    return is_library


def is_library_function(function: Any) -> bool:
    """Return whether a function belongs to a library and is not nested in another function, so that its name identifies it."""
    return is_made_by_library(function) and "<locals>" not in function.__code__.co_qualname


def has_own_code(function: Any) -> bool:
    """Return whether the code of a function comes from the file of the function's module, and has the function's name or is nested.

    The code of a wrapper has another name.
    """
    code, module = function.__code__, str(function.__globals__.get("__name__")).replace(".", "/")
    path = code.co_filename.replace(os.sep, "/")
    is_named = code.co_qualname == function.__qualname__ or "<locals>" in code.co_qualname
    return is_named and path.endswith((f"{module}.py", f"{module}/__init__.py"))


def _is_library_path(path: str) -> bool:
    """Return whether a file with code belongs to a library. Code from text belongs to the library whose namespace it uses."""
    if path.startswith("<"):
        return True
    roots = [_STANDARD]
    for name in _LIBRARIES[1:]:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if origin:
            roots.append(os.path.dirname(origin))
    if getattr(sys, "frozen", False) and not os.path.isabs(path):  # PyInstaller's paths are relative to the program's directory
        path = os.path.join(_STANDARD, path)
    # The directory of the standard library contains that of the other libraries, with those of the user.
    inside = [root for root in roots if path.startswith(root + os.sep)]
    return len(inside) > 1 or (bool(inside) and (inside[0] != _STANDARD or "site-packages" not in path))


def package_of(function: Any) -> str:
    """Return the top-level package of a function. For a library's closure around a user's function, return the user's package."""
    if is_made_by_library(function):
        inner = [item for _, item in cells_of(function) if hasattr(item, "__globals__") and not is_made_by_library(item)]
        function = next(iter(inner), function)
    return str(function.__globals__.get("__name__", "")).partition(".")[0]
