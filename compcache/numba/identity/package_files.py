"""Identifies a package by its files, where too much of it can be reached to be compared by content.

As Numba's own cache does for the file of a function: by sizes and times, here of all files of the package. What the program changes
in the package's modules while it runs is not noticed.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.library_code import is_made_by_library

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["digest_of_package", "package_of"]

_MOST_FILES = 20_000
_imported = time.time()


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
            except OSError:  # a link that leads nowhere
                continue


def _process_start() -> float:
    """When this process started, in seconds since the epoch; where the system does not tell, when this module was imported."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _imported
    return time.time() - running
