"""Identifies packages by their files, as Numba's own cache identifies the file of a function.

The files are compared if an implementation can reach too many values of its package.
"""

from __future__ import annotations

import os
import sys
import time

from compcache.digest import blake2b
from compcache.interrupts import reraise_interrupt, suppress
from compcache.numba.registered.refusals import Unidentifiable, imports_ignore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["digest_of_package"]

_MAX_FILES = 20_000
_import_time = time.time()


def digest_of_package(name: str) -> str | None:
    """Return the digest of the names, sizes and times of a package's files.

    The result is None if the package has no files, has too many files, or if a file has changed since this process started. Raise
    `Unidentifiable` if a directory or the status of a file cannot be read at the moment.
    """
    if name not in _digests:
        try:
            _digests[name] = _digest_directories(list(getattr(sys.modules.get(name), "__path__", ())))
        except OSError as error:
            reraise_interrupt(error)
            raise Unidentifiable(f"the files of the package {name} cannot be read at the moment ({error}): try again") from error
    return _digests[name]


_digests: dict[str, str | None] = {}


def _digest_directories(directories: list[str]) -> str | None:
    """Return the digest of the files in these directories, or None, by the rules of `digest_of_package`.

    Raise `OSError` if a directory or the status of a file cannot be read at the moment.
    """
    state = blake2b(digest_size=16, person=b"compcache-files")
    started, count = _process_start(), 0
    for directory in directories:
        for path, status in _walk_files(directory):
            count += 1
            if count > _MAX_FILES or max(status.st_mtime, status.st_ctime) >= started:
                return None
            state.update(f"{os.path.relpath(path, directory)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return state.hexdigest() if count else None


def _walk_files(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files in a directory tree outside of `__pycache__`, each with its status. See `_require_ignored` for errors."""
    for folder, folders, names in os.walk(directory, onerror=_require_ignored):
        folders[:] = sorted(inner for inner in folders if inner != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError as error:
                reraise_interrupt(error)
                _require_ignored(error)
            else:
                yield path, status


def _require_ignored(error: OSError) -> None:
    """Return if imports ignore the file or directory, such as a dangling link. Otherwise raise the exception: it may be readable later."""
    if not imports_ignore(error):
        raise error


def _process_start() -> float:
    """Return when this process started, in seconds since the epoch; if the system does not say, when this module was imported."""
    with suppress(FileNotFoundError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])  # field 22, the start, in ticks since boot
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - running
    return _import_time
