"""Identifies the installed distributions whose code compiles Numba's functions.

The distributions are not imported. A distribution is identified by its `RECORD`, which contains the digest of each installed file. If it is
installed in editable mode, it is identified by its files. A package that registers with Numba is also identified by the files that an
import finds, because files are edited where they are, and copies in other directories hide them.
"""

from __future__ import annotations

import os
import re
import sys

from compcache.digest import blake2b
from compcache.interrupts import reraise_interrupt
from compcache.numba.registered.distributions import distributions, names_in, read_file, require_absent
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.numba.lazy.installation import Packages

__all__ = ["find_packages"]

_COMPILERS = ("numba", "llvmlite", "numpy")
_OWN = "compcache"
_GROUP = b"numba_extensions"
_MAX_FILES = 20_000
_ENTRY_POINT = re.compile(rb"^\s*\w+\s*=\s*(\w+)", re.MULTILINE)
_REQUIREMENT = re.compile(rb"^Requires-Dist: *([\w-]+)(?!.*\bextra *==)", re.MULTILINE)
#: Uses of environment variables. The groups match a variable's name that is given as text.
_VARIABLE = re.compile(
    rb"""\b(?:environ(?:\.\w+\(|\[)|getenv\()\s*["'](\w+)["']\s*[],)]|["'](\w+)["']\s+(?:not\s+)?in\s+os\.environ\b(?!\.)|"""
    rb"""\benvironb?\b|\bgetenvb?\b"""
)


def find_packages() -> tuple[Packages, list[str]]:
    """Find Numba, llvmlite, NumPy, every distribution with an entry point in the group ``numba_extensions``, and what these require.

    Returns:
        The packages, and the paths of all files and directories that were examined.

    Raises:
        NotLazy: a distribution is missing or cannot be identified or read, an archive on the path contains entry points, or Numba uses
            Intel's vector library.
    """
    vector_library = os.path.join(sys.prefix, "lib", "libsvml.so")  # Numba looks for it there, and then compiles other code
    examined = [vector_library]
    found: dict[str, str] = {}
    chosen: dict[str, str] = {}
    packages: list[str] = []
    for name, directory in distributions():
        found.setdefault(name, directory)
        examined.append(f"{directory}/entry_points.txt")
        if name not in chosen and name != _OWN:  # an import also uses the first match on the path
            entry_points = _entry_points(directory)
            if name in _COMPILERS or _GROUP in entry_points:
                chosen[name] = directory
                section = entry_points.partition(b"[%s]" % _GROUP)[2].partition(b"\n[")[0]
                packages += map(os.fsdecode, _ENTRY_POINT.findall(section) or [b""] * (name not in _COMPILERS))
    missing = [name for name in _COMPILERS if name not in chosen]
    if missing:
        raise NotLazy(f"the distribution {missing[0]} is not on sys.path: install it, or add its directory")
    if os.path.exists(vector_library):
        raise NotLazy(
            f"only Numba can run code for Intel's vector library {vector_library}: uninstall this library to run functions without Numba"
        )
    rows = [f"{name}: {_distribution_digest(directory, examined)}" for name, directory in chosen.items()]
    others = [directory for name, directory in chosen.items() if name not in _COMPILERS]
    rows += [_requirement_text(directory, examined) for directory in _required_by(others, found, set(chosen.values()))]
    variables: dict[str, set[str]] = {package: set() for package in packages}
    for package, names in variables.items():
        path = _path_of_package(package)
        if path is None:
            names.add("")
        else:
            rows.append(f"{package}: {_digest_of_files(path, examined, names)}")
    return (", ".join(rows), tuple((package, tuple(sorted(names))) for package, names in variables.items())), examined


def _entry_points(directory: str) -> bytes:
    """Return the entry points of a distribution, given by its metadata. See `read_file` for exceptions."""
    if directory.endswith(".egg-link"):
        source = os.fsdecode(read_file(directory).partition(b"\n")[0].strip())
        infos = [name for name in (names_in(source) if source else None) or () if name.endswith(".egg-info")]
        return b"\n".join([_entry_points(os.path.join(source, name)) for name in infos])
    return read_file(f"{directory}/entry_points.txt")


def _required_by(directories: list[str], found: dict[str, str], known: set[str]) -> Iterator[str]:
    """Yield the metadata directories of the installed distributions that these require, directly or not, without those that are `known`."""
    waiting = list(directories)
    for directory in waiting:
        for name in _REQUIREMENT.findall(read_file(f"{directory}/METADATA")):
            required = found.get(os.fsdecode(name).replace("-", "_").lower())
            if required is not None and required not in known:
                known.add(required)
                waiting.append(required)
                yield required


def _requirement_text(directory: str, examined: list[str]) -> str:
    """Return the text that identifies a required distribution, given by its metadata. Add the files that were read to `examined`."""
    paths = [f"{directory}/METADATA", f"{directory}/RECORD"]
    examined += paths
    return f"{os.path.basename(directory)}: {blake2b(b''.join(map(read_file, paths)), digest_size=16).hexdigest()}"


def _distribution_digest(directory: str, examined: list[str]) -> str:
    """Return the digest of an installed distribution: of its record, or of its source files if it is editable or has no record.

    Add the paths of the files and directories that were examined to `examined`. Raise `NotLazy` if the distribution has neither a record
    nor a directory of source files, if the directory has more than `_MAX_FILES` files, if `direct_url.json` is not valid, or if a file
    cannot be read at the moment.
    """
    paths = [f"{directory}/{file}" for file in ("RECORD", "direct_url.json", "METADATA")]
    examined += paths
    record, origin, _ = map(read_file, paths)
    if record and b'"editable"' not in origin:
        return blake2b(record, digest_size=16).hexdigest()
    if b"file://" in origin:
        import json
        from urllib.parse import unquote, urlparse

        try:
            path = unquote(urlparse(json.loads(origin)["url"]).path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reraise_interrupt(error)
            raise NotLazy(f"the file {directory}/direct_url.json is not valid: install the distribution again with pip") from error
        return _digest_of_files(path, examined, set())
    raise NotLazy(f"the distribution {os.path.basename(directory)} has no RECORD file: install the distribution again with pip")


def _path_of_package(name: str) -> str | None:
    """Return the directory or the only file of a package without importing it; None if the package is not found or has no source file."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name) if name else None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    path = spec.origin if spec.submodule_search_locations is None else os.path.dirname(spec.origin)
    return path if os.path.exists(path) else None


def _digest_of_files(root: str, examined: list[str], variables: set[str]) -> str:
    """Return the digest of the code and settings in a file or directory.

    Add the paths of the files and directories that were examined to `examined`, and the environment variables that Python code names to
    `variables`: "" for a variable with a computed name. Raise `NotLazy` if there are too many files, or one cannot be read now.
    """
    state = blake2b(digest_size=16)
    count = 0
    single = [(os.path.dirname(root), list[str](), [os.path.basename(root)])]
    for folder, folders, files in os.walk(root, onerror=require_absent) if os.path.isdir(root) else single:
        folders[:] = sorted(inner for inner in folders if not inner.startswith((".", "__pycache__")) and inner != "node_modules")
        examined += [folder] * (folder.startswith(root))
        for name in sorted(files):
            if name.endswith((".py", ".so", ".toml", ".cfg", ".json")):
                count += 1
                if count > _MAX_FILES:
                    raise NotLazy(f"the directory {root} has more than {_MAX_FILES} files: install the distribution without --editable")
                path = os.path.join(folder, name)
                data = read_file(path)
                state.update(f"{os.path.relpath(path, root)}\0".encode() + data)
                examined.append(path)
                if name.endswith(".py") and (b"environ" in data or b"getenv" in data):
                    variables.update(os.fsdecode(first or second) for first, second in _VARIABLE.findall(data))
    return state.hexdigest()
