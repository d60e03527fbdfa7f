"""Lists the installed distributions by their metadata, without importing them."""

from __future__ import annotations

import os
import sys

from compcache.interrupts import reraise_interrupt
from compcache.numba.registered.refusals import NotLazy, imports_ignore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["distributions", "names_in", "numba_version", "package_directory", "read_file", "require_absent"]

_FIRST_READ = 1 << 12  # bytes; most files of metadata are shorter
_NEXT_READ = 1 << 18
#: The last five characters of metadata names.
_ENDINGS = frozenset(("-INFO", "-info", "-link"))


def distributions() -> Iterator[tuple[str, str]]:
    """Yield the name and the metadata directory of each distribution, in the order of `sys.path`.

    Raise `NotLazy` if an archive on the path contains entry points, or the path cannot be read at the moment.
    """
    for directory in dict.fromkeys(sys.path):
        names = names_in(directory)
        if names is None and b"entry_points.txt" in read_file(directory):
            raise NotLazy(f"the archive {directory} on sys.path may register packages with Numba: unpack the archive")
        for name in names or ():
            if name == "EGG-INFO":
                yield os.path.basename(directory).partition("-")[0].lower(), os.path.join(directory, name)
            elif name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield name.partition("-")[0].partition(".")[0].lower(), f"{directory or '.'}/{name}"


def names_in(directory: str, packages: Collection[str] = ()) -> list[str] | None:
    """Return the names of the metadata in a directory, and of files and directories from which these packages could be imported.

    The result is empty if imports ignore the directory, or None if the path is not a directory. Raise `NotLazy` if the directory cannot be
    read at the moment.
    """
    try:
        names = os.listdir(directory or ".")
    except OSError as error:
        reraise_interrupt(error)
        require_absent(error)
        return None if isinstance(error, NotADirectoryError) else []
    return [name for name in names if name[-5:] in _ENDINGS or name.partition(".")[0] in packages]


def require_absent(error: OSError) -> None:
    """Return if an error means that a file or directory does not exist for imports. Otherwise raise `NotLazy`: the answer is unknown."""
    if not imports_ignore(error):
        raise NotLazy(f"the installed packages cannot be read at the moment: {error}; try again") from error


def read_file(path: str) -> bytes:
    """Return the content of a file; empty if the file does not exist. Few system calls are used, because a start reads many such files.

    Raise `NotLazy` if the file cannot be read at the moment.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = [os.read(file, _FIRST_READ)]
            if len(parts[0]) < _FIRST_READ:
                return parts[0]
            while parts[-1]:
                parts.append(os.read(file, _NEXT_READ))
        finally:
            os.close(file)
    except OSError as error:
        reraise_interrupt(error)
        require_absent(error)
        return b""
    return b"".join(parts)


def package_directory(name: str) -> str | None:
    """Return the directory of a package without importing it, or None if the package is not found or has no file."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def numba_version() -> str:
    """Return the version of the Numba that an import would load, from the name of its metadata; "" if it or the metadata is not found.

    Raise `NotLazy` if an archive on the path contains entry points, or the path cannot be read at the moment.
    """
    package = package_directory("numba")
    if package is None:
        return ""
    beside = os.path.dirname(package)
    names = [(name, os.path.join(beside, name)) for name in names_in(beside) or () if name.startswith("numba-")]
    for name, directory in names or distributions():  # metadata is usually beside the package
        if name.partition("-")[0] == "numba":
            return os.path.basename(directory).removesuffix(".dist-info").partition("-")[2]
    return ""
