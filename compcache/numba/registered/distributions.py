"""Identifies the installed distributions whose code compiles Numba's functions.

The distributions are not imported. A distribution is identified by its `RECORD`, which contains the digest of each installed file. If it is
installed in editable mode, it is identified by its files.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import blake2b
from compcache.interrupts import reraise_interrupt
from compcache.numba.registered.refusals import NotLazy, imports_ignore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["distributions", "find_packages", "is_editable", "metadata_in", "numba_version", "package_directory", "vector_library"]

_COMPILERS = ("numba", "llvmlite", "numpy")
_OWN_NAME = "compcache"
_GROUP = b"numba_extensions"
_MAX_FILES = 20_000
_FIRST_READ = 1 << 12  # bytes; most files of metadata are shorter
_NEXT_READ = 1 << 18
#: The last five characters of metadata names.
_ENDINGS = frozenset(("-INFO", "-info", "-link"))


def find_packages() -> tuple[str, bool, list[str]]:
    """Find Numba, llvmlite, NumPy and every distribution with an entry point in the group ``numba_extensions``.

    Returns:
        The text that identifies these distributions; whether distributions other than the first three were found; and the directories of
        their metadata.

    Raises:
        NotLazy: a distribution is missing or cannot be identified or read, an archive on the path contains entry points, or Numba uses
            Intel's vector library.
    """
    rows, chosen = [], []
    names = set()
    for name, directory in distributions():
        if name in names or name == _OWN_NAME:
            continue
        if name in _COMPILERS or _has_entry_point(directory):
            names.add(name)  # an import also uses the first match on the path
            chosen.append(directory)
            rows.append(f"{name}: {_distribution_digest(directory)}")
    missing = [name for name in _COMPILERS if name not in names]
    if missing:
        raise NotLazy(f"the distribution {missing[0]} is not on sys.path: install it, or add its directory")
    if os.path.exists(vector_library()):
        raise NotLazy(f"Numba uses Intel's vector library {vector_library()}, which compcache supports only with Numba: remove this file")
    return ", ".join(rows), len(names) > len(_COMPILERS), chosen


def vector_library() -> str:
    """Return the path at which Numba looks for Intel's vector library. If the file exists, Numba compiles other code."""
    return os.path.join(sys.prefix, "lib", "libsvml.so")


def distributions() -> Iterator[tuple[str, str]]:
    """Yield the name and the metadata directory of each distribution, in the order of `sys.path`.

    Raise `NotLazy` if an archive on the path contains entry points, or the path cannot be read at the moment.
    """
    for directory in dict.fromkeys(sys.path):
        names = metadata_in(directory)
        if names is None and b"entry_points.txt" in _read_file(directory):
            raise NotLazy(f"the archive {directory} on sys.path may register packages with Numba: unpack the archive")
        for name in names or ():
            if name == "EGG-INFO":
                yield os.path.basename(directory).partition("-")[0].lower(), os.path.join(directory, name)
            elif name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield name.partition("-")[0].partition(".")[0].lower(), f"{directory or '.'}/{name}"


def metadata_in(directory: str) -> list[str] | None:
    """Return the names of the metadata in a directory; empty if imports ignore the directory, or None if the path is not a directory.

    Raise `NotLazy` if the directory cannot be read at the moment.
    """
    try:
        names = os.listdir(directory or ".")
    except OSError as error:
        reraise_interrupt(error)
        _require_absent(error)
        return None if isinstance(error, NotADirectoryError) else []
    return [name for name in names if name[-5:] in _ENDINGS]


def _has_entry_point(directory: str) -> bool:
    """Return whether a distribution, given by its metadata, has an entry point in Numba's group. See `_read_file` for exceptions."""
    if directory.endswith(".egg-link"):
        source = os.fsdecode(_read_file(directory).partition(b"\n")[0].strip())
        infos = [name for name in (metadata_in(source) if source else None) or () if name.endswith(".egg-info")]
        return any(_has_entry_point(os.path.join(source, name)) for name in infos)
    return _GROUP in _read_file(f"{directory}/entry_points.txt")


def _require_absent(error: OSError) -> None:
    """Return if an error means that a file or directory does not exist for imports. Otherwise raise `NotLazy`: the answer is unknown."""
    if not imports_ignore(error):
        raise NotLazy(f"the installed packages cannot be read at the moment: {error}; try again") from error


def _read_file(path: str) -> bytes:
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
        _require_absent(error)
        return b""
    return b"".join(parts)


def _distribution_digest(directory: str) -> str:
    """Return the digest of an installed distribution: of its record, or of its source files if it is editable or has no record.

    Raise `NotLazy` if the distribution has neither a record nor a directory of source files, if the directory has more than `_MAX_FILES`
    files, if `direct_url.json` is not valid, or if a file cannot be read at the moment.
    """
    record = _read_file(f"{directory}/RECORD")
    if record and not is_editable(directory):
        return blake2b(record, digest_size=16).hexdigest()
    origin = _read_file(f"{directory}/direct_url.json")
    if b"file://" in origin:
        import json
        from urllib.parse import unquote, urlparse

        try:
            path = unquote(urlparse(json.loads(origin)["url"]).path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reraise_interrupt(error)
            raise NotLazy(f"the file {directory}/direct_url.json is not valid: install the distribution again with pip") from error
        return _digest_of_files(path)
    raise NotLazy(f"the distribution {os.path.basename(directory)} has no RECORD file: install the distribution again with pip")


def is_editable(directory: str) -> bool:
    """Return whether a distribution, given by its metadata directory, is editable. Raise `NotLazy` if this cannot be read at the moment."""
    return b'"editable"' in _read_file(f"{directory}/direct_url.json")


def _digest_of_files(root: str) -> str:
    """Return the digest of a checkout's code and settings. Raise `NotLazy` if there are too many files, or one cannot be read now."""
    state = blake2b(digest_size=16)
    count = 0
    for folder, folders, files in os.walk(root, onerror=_require_absent):
        folders[:] = sorted(inner for inner in folders if not inner.startswith((".", "__pycache__")) and inner != "node_modules")
        for name in sorted(files):
            if name.endswith((".py", ".so", ".toml", ".cfg", ".json")):
                count += 1
                if count > _MAX_FILES:
                    raise NotLazy(f"the checkout {root} has more than {_MAX_FILES} files: install the distribution without --editable")
                path = os.path.join(folder, name)
                state.update(f"{os.path.relpath(path, root)}\0".encode() + _read_file(path))
    return state.hexdigest()


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
    names = [(name, os.path.join(beside, name)) for name in metadata_in(beside) or () if name.startswith("numba-")]
    for name, directory in names or distributions():  # metadata is usually beside the package
        if name.partition("-")[0] == "numba":
            return os.path.basename(directory).removesuffix(".dist-info").partition("-")[2]
    return ""
