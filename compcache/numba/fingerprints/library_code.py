"""Tells which code is not identified by content: Numba, NumPy and the standard library by name, since their versions are in every
key; and packages of which too much can be reached by their files, as Numba's own cache identifies the file of a function.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from hashlib import blake2b
from types import FunctionType
from typing import TYPE_CHECKING, Any

from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["digest_of_package", "is_library_function", "is_library_module", "is_made_by_library", "package_of"]

_LIBRARIES = frozenset(("numba", "numpy", "llvmlite", "builtins"))
_OWN_TESTS = "numba.tests"
_MOST_FILES = 20_000
_imported = time.time()


def is_library_module(name: object) -> bool:
    """Whether a module's content is covered by the versions in every key."""
    if not isinstance(name, str) or name.startswith(_OWN_TESTS):
        return False
    top = name.partition(".")[0]
    if top in _LIBRARIES:
        return True
    return top in sys.stdlib_module_names and top != "__main__" and _is_pythons_own(top)


@functools.cache
def _is_pythons_own(top: str) -> bool:
    """Whether a module with a name of the standard library is really from there, and not a user's file."""
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return top in sys.builtin_module_names
    return origin in ("built-in", "frozen") or (
        origin.startswith(os.path.dirname(os.__file__) + os.sep) and "site-packages" not in origin
    )


def is_made_by_library(function: Any) -> bool:
    """Whether the code of a function belongs to a library, closures included.

    Decided by its globals and the file of its code: `functools.wraps` replaces the other attributes of a user's
    function.
    """
    if not isinstance(function, FunctionType):
        return is_library_module(getattr(function, "__module__", None))
    module = function.__globals__.get("__name__")
    return isinstance(module, str) and _is_library_code(module, function.__code__.co_filename)


def is_library_function(function: Any) -> bool:
    """Whether a function belongs to a library and is identified by name: its closure holds no user code."""
    return is_made_by_library(function) and "<locals>" not in function.__code__.co_qualname


@functools.cache
def _is_library_code(module: str, path: str) -> bool:
    return is_library_module(module) and _is_library_path(path)


@functools.cache
def _is_library_path(path: str) -> bool:
    if path.startswith("<"):  # compiled from text by the module whose namespace it has
        return True
    roots = [os.path.dirname(os.__file__)]
    for name in ("numba", "numpy", "llvmlite"):
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if origin:
            roots.append(os.path.dirname(origin))
    inside = [root for root in roots if path.startswith(root + os.sep)]
    return len(inside) > 1 or (bool(inside) and (inside[0] != roots[0] or "site-packages" not in path))


def package_of(function: Any) -> str:
    """The top-level package of a function; for Numba's closure around a user's function, of that one."""
    if is_made_by_library(function):
        inner = [cell.cell_contents for cell in function.__closure__ or ()]
        function = next((item for item in inner if hasattr(item, "__globals__") and not is_made_by_library(item)), function)
    return str(function.__globals__.get("__name__", "")).partition(".")[0]


@functools.cache
def digest_of_package(name: str) -> str | None:
    """The digest of the names, sizes and times of a package's files; None if it has none, or they may not be those that were imported."""
    places = list(getattr(sys.modules.get(name), "__path__", ()))
    state = blake2b(digest_size=16, person=b"compcache-files")
    started, count = _process_start(), 0
    for place in places:
        for path, found in _files(place):
            count += 1
            if count > _MOST_FILES or max(found.st_mtime, found.st_ctime) >= started:
                return None
            state.update(f"{os.path.relpath(path, place)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return state.hexdigest() if count else None


def _files(place: str) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(inner for inner in folders if inner != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                yield path, os.stat(path)
            except OSError as error:  # a link that leads nowhere
                reraise_interrupt(error)


def _process_start() -> float:
    """When this process started, in seconds since the epoch; where the system does not tell, when this module was imported."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError) as error:
        reraise_interrupt(error)
        return _imported
    return time.time() - running
