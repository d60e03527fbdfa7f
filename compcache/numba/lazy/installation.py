"""Key components besides the functions: the installed packages that compile them, and Numba's settings.

Packages are identified without importing them: by the `RECORD` of their distribution, which has the digest of each installed
file, or by their files if they are installed in editable mode. They are Numba, llvmlite, NumPy and every distribution that
registers an entry point in the group ``numba_extensions``, whose code Numba runs before it compiles.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import blake2b
from compcache.numba.lazy.content import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["has_extensions", "numba_version", "package_directory", "packages_are_those_of_keys", "settings_and_packages"]

#: Incremented when the meaning of keys or entries changes.
FORMAT = 2
#: Settings that change output or locations, never the code.
_HARMLESS = frozenset((
    "NUMBA_CACHE_DIR", "NUMBA_DEBUG_CACHE", "NUMBA_NUM_THREADS", "NUMBA_DEVELOPER_MODE", "NUMBA_COLOR_SCHEME",
    "NUMBA_DISABLE_PERFORMANCE_WARNINGS", "NUMBA_FULL_TRACEBACKS", "NUMBA_THREADING_LAYER",
    "NUMBA_THREADING_LAYER_PRIORITY", "NUMBA_WARNINGS", "NUMBA_SHOW_HELP", "NUMBA_DISABLE_JIT",
))  # fmt: skip
_COMPILERS = ("numba", "llvmlite", "numpy")
_OWN = "compcache"
_GROUP = b"numba_extensions"
_MOST_FILES = 20_000
_AT_FIRST = 1 << 12  # most files of metadata are shorter
_AT_ONCE = 1 << 18
#: How the names of metadata end, which are few among the names of a directory.
_ENDINGS = frozenset(("-INFO", "-info", "-link"))


def settings_and_packages() -> str:
    """A text that differs if the same function could be compiled to different code.

    Raises:
        NotLazy: it cannot be determined.
    """
    global _known  # noqa: PLW0603 - packages are installed for the whole process
    settings = sorted((name, os.environ.get(name)) for name in os.environ if _is_setting(name))
    chosen = [name for name, _ in settings if name.startswith("NUMBA_CPU_")]
    if chosen:
        raise NotLazy(f"{chosen[0]} chooses a CPU")
    if os.path.exists(".numba_config.yaml"):
        raise NotLazy("Numba is configured by the file .numba_config.yaml")
    path = tuple(sys.path)
    if _known[0] != path:
        _known = path, *_packages()
    return f"{_known[1]}, {settings}"


def has_extensions() -> bool:
    """Whether a package registers with Numba, which runs its code before it compiles. Raises `NotLazy`."""
    settings_and_packages()
    return _known[2]


def packages_are_those_of_keys() -> bool:
    """Whether the packages are still those that keys of this process have: another one may have been installed since."""
    try:
        return _known[0] == tuple(sys.path) and _known[1:] == _packages()
    except NotLazy:
        return False


def _is_setting(name: str) -> bool:
    return (name.startswith("NUMBA_") and name not in _HARMLESS) or name == "VS_PROFILER"


#: The directories of `sys.path`, the identity of the packages there, and whether others than compilers are among them.
_known: tuple[Any, str, bool] = (None, "", False)


def _packages() -> tuple[str, bool]:
    rows = [f"lazy {FORMAT}, python {sys.version}, {sys.implementation.cache_tag}, {sys.platform}"]
    seen = set()
    for name, directory in _distributions():
        if name in seen or name == _OWN:
            continue
        if name in _COMPILERS or _registers(directory):
            seen.add(name)  # the first on the path is used, as for imports
            rows.append(f"{name}: {_identity_of(directory)}")
    missing = [name for name in _COMPILERS if name not in seen]
    if missing:
        raise NotLazy(f"the distribution {missing[0]} was not found")
    if os.path.exists(os.path.join(sys.prefix, "lib", "libsvml.so")):
        raise NotLazy("Numba uses Intel's vector library")
    return ", ".join(rows), len(seen) > len(_COMPILERS)


def _distributions() -> Iterator[tuple[str, str]]:
    """The names and metadata directories of all distributions, in the order of the path."""
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except NotADirectoryError:  # an archive
            if b"entry_points.txt" in _read(place):
                raise NotLazy(f"the archive {place} may register packages with Numba") from None
            continue
        except OSError:
            continue
        for name in [name for name in names if name[-5:] in _ENDINGS]:
            if name == "EGG-INFO":
                yield os.path.basename(place).partition("-")[0].lower(), os.path.join(place, name)
            elif name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield name.partition("-")[0].partition(".")[0].lower(), f"{place or '.'}/{name}"


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
    except OSError:
        return []


def _read(path: str) -> bytes:
    """The bytes of a file, none where it cannot be read: with the fewest calls, for a start reads one of each distribution."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        return b""
    try:
        parts = [os.read(file, _AT_FIRST)]
        if len(parts[0]) < _AT_FIRST:
            return parts[0]
        while parts[-1]:
            parts.append(os.read(file, _AT_ONCE))
    except OSError:
        return b""
    finally:
        os.close(file)
    return b"".join(parts)


def _identity_of(directory: str) -> str:
    """The identity of an installed distribution: by its record, or by its files if they may be edited."""
    record = _read(os.path.join(directory, "RECORD"))
    origin = _read(os.path.join(directory, "direct_url.json"))
    if record and b'"editable"' not in origin:
        return blake2b(record, digest_size=16).hexdigest()
    if b"file://" in origin:
        import json
        from urllib.parse import unquote, urlparse

        return _digest_of_files(unquote(urlparse(json.loads(origin)["url"]).path))
    raise NotLazy(f"the distribution {os.path.basename(directory)} has no RECORD")


def _digest_of_files(root: str) -> str:
    """The digest of all Python files and extension modules of a source checkout."""
    state = blake2b(digest_size=16)
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")) and f != "node_modules")
        for name in sorted(files):
            if name.endswith((".py", ".so", ".pyd", ".toml", ".cfg", ".json")):
                count += 1
                if count > _MOST_FILES:
                    raise NotLazy(f"the source checkout {root} has too many files")
                path = os.path.join(folder, name)
                state.update(f"{os.path.relpath(path, root)}\0".encode() + _read(path))
    return state.hexdigest()


def package_directory(name: str) -> str | None:
    """The directory of a package that is not imported; None if it is not found."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def numba_version() -> str:
    """The version of the installed Numba, from the name of its metadata; "" if none is found."""
    for name, directory in _distributions():
        if name == "numba":
            return os.path.basename(directory).removesuffix(".dist-info").partition("-")[2]
    return ""
