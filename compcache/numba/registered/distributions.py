"""The installed distributions whose code compiles Numba's functions, and what distinguishes each from other versions of it.

They are not imported. A distribution is identified by its `RECORD`, which has the digest of each installed file, or by its files if it is
installed in editable mode.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import blake2b
from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "UnknownPackagesError",
    "distributions",
    "find_packages",
    "is_editable",
    "metadata_in",
    "numba_version",
    "package_directory",
    "vector_library",
]

_COMPILERS = ("numba", "llvmlite", "numpy")
_OWN = "compcache"
_GROUP = b"numba_extensions"
_MOST_FILES = 20_000
_AT_FIRST = 1 << 12  # most files of metadata are shorter
_AT_ONCE = 1 << 18
#: The endings of metadata names, which are few among the names of a directory.
_ENDINGS = frozenset(("-INFO", "-info", "-link"))


class UnknownPackagesError(Exception):
    """Raised if it cannot be determined what compiles functions. The message tells why."""


def find_packages() -> tuple[str, bool, list[str]]:
    """Return what identifies the packages, whether others than compilers are among them, and the directories of their metadata.

    They are Numba, llvmlite, NumPy and every distribution with an entry point in the group ``numba_extensions``.

    Raises:
        UnknownPackagesError: they cannot be determined.
    """
    rows, chosen = [], []
    seen = set()
    for name, directory in distributions():
        if name in seen or name == _OWN:
            continue
        if name in _COMPILERS or _registers(directory):
            seen.add(name)  # imports also use the first one on the path
            chosen.append(directory)
            rows.append(f"{name}: {_identity_of(directory)}")
    missing = [name for name in _COMPILERS if name not in seen]
    if missing:
        raise UnknownPackagesError(f"the distribution {missing[0]} was not found")
    if os.path.exists(vector_library()):
        raise UnknownPackagesError("Numba uses Intel's vector library")
    return ", ".join(rows), len(seen) > len(_COMPILERS), chosen


def vector_library() -> str:
    """Return the path where Numba looks for Intel's vector library, which changes what it compiles."""
    return os.path.join(sys.prefix, "lib", "libsvml.so")


def distributions() -> Iterator[tuple[str, str]]:
    """Yield the names and metadata directories of all distributions, in the order of the path."""
    for place in dict.fromkeys(sys.path):
        names = metadata_in(place)
        if names is None and b"entry_points.txt" in _read(place):
            raise UnknownPackagesError(f"the archive {place} may register packages with Numba")
        for name in names or ():
            if name == "EGG-INFO":
                yield os.path.basename(place).partition("-")[0].lower(), os.path.join(place, name)
            elif name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield name.partition("-")[0].partition(".")[0].lower(), f"{place or '.'}/{name}"


def metadata_in(place: str) -> list[str] | None:
    """Return the names of metadata in a directory of the path; None for an archive."""
    try:
        names = os.listdir(place or ".")
    except NotADirectoryError as error:
        reraise_interrupt(error)
        return None
    except OSError as error:
        reraise_interrupt(error)
        return []
    return [name for name in names if name[-5:] in _ENDINGS]


def _registers(directory: str) -> bool:
    if directory.endswith(".egg-link"):
        with open(directory, encoding="utf-8") as file:
            source = file.readline().strip()
        infos = [name for name in _listed(source) if name.endswith(".egg-info")]
        return any(_registers(os.path.join(source, name)) for name in infos)
    return _GROUP in _read(f"{directory}/entry_points.txt")


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        reraise_interrupt(error)
        return []


def _read(path: str) -> bytes:
    """Return the bytes of a file, or none if it cannot be read. Makes the fewest calls, because a start reads a file of
    each distribution.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        reraise_interrupt(error)
        return b""
    try:
        parts = [os.read(file, _AT_FIRST)]
        if len(parts[0]) < _AT_FIRST:
            return parts[0]
        while parts[-1]:
            parts.append(os.read(file, _AT_ONCE))
    except OSError as error:
        reraise_interrupt(error)
        return b""
    finally:
        os.close(file)
    return b"".join(parts)


def _identity_of(directory: str) -> str:
    """Return the identity of an installed distribution: its record, or its files if they may be edited."""
    record = _read(f"{directory}/RECORD")
    if record and not is_editable(directory):
        return blake2b(record, digest_size=16).hexdigest()
    origin = _read(f"{directory}/direct_url.json")
    if b"file://" in origin:
        import json
        from urllib.parse import unquote, urlparse

        return _digest_of_files(unquote(urlparse(json.loads(origin)["url"]).path))
    raise UnknownPackagesError(f"the distribution {os.path.basename(directory)} has no RECORD")


def is_editable(directory: str) -> bool:
    """Return whether a distribution, given by the directory of its metadata, is installed in editable mode."""
    return b'"editable"' in _read(f"{directory}/direct_url.json")


def _digest_of_files(root: str) -> str:
    """Return the digest of all Python files and extension modules of a source checkout."""
    state = blake2b(digest_size=16)
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")) and f != "node_modules")
        for name in sorted(files):
            if name.endswith((".py", ".so", ".pyd", ".toml", ".cfg", ".json")):
                count += 1
                if count > _MOST_FILES:
                    raise UnknownPackagesError(f"the source checkout {root} has too many files")
                path = os.path.join(folder, name)
                state.update(f"{os.path.relpath(path, root)}\0".encode() + _read(path))
    return state.hexdigest()


def package_directory(name: str) -> str | None:
    """Return the directory of a package that is not imported; None if it is not found."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def numba_version() -> str:
    """Return the version of the Numba that would be imported, from the name of its metadata; "" if none is found."""
    beside = os.path.dirname(package_directory("numba") or "")
    names = [(name, os.path.join(beside, name)) for name in (metadata_in(beside) or () if beside else ()) if name.startswith("numba-")]
    for name, directory in names or distributions():  # usually beside the package
        if name.partition("-")[0] == "numba":
            return os.path.basename(directory).removesuffix(".dist-info").partition("-")[2]
    return ""
