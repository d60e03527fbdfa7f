"""Key components besides the functions: the installed packages that compile them, and Numba's settings.

Packages are identified without importing them: by the `RECORD` of their distribution, which has the digest of each installed
file, or by their files if they are installed in editable mode. They are Numba, llvmlite, NumPy and every distribution that
registers an entry point in the group ``numba_extensions``, whose code Numba runs before it compiles.

To read what hundreds of distributions register, and the records of the large ones, takes longer than the rest of a start. So what was found is
noted in the cache directory, with the state of every file that it was read from, and holds for as long as these
are as they were.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import blake2b
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.content import NotLazy
from compcache.numba.lazy.marshalled import dump_marshalled, load_marshalled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.cache import Cache

__all__ = ["has_extensions", "numba_version", "package_directory", "packages_are_those_of_keys", "settings_and_packages"]

#: Incremented when the meaning of keys or entries changes.
FORMAT = 3
#: Settings that change output or locations, never the code.
_HARMLESS = frozenset((
    "NUMBA_CACHE_DIR", "NUMBA_DEBUG_CACHE", "NUMBA_NUM_THREADS", "NUMBA_DEVELOPER_MODE", "NUMBA_COLOR_SCHEME",
    "NUMBA_DISABLE_PERFORMANCE_WARNINGS", "NUMBA_FULL_TRACEBACKS", "NUMBA_THREADING_LAYER",
    "NUMBA_THREADING_LAYER_PRIORITY", "NUMBA_WARNINGS", "NUMBA_SHOW_HELP", "NUMBA_DISABLE_JIT",
))  # fmt: skip
#: A profiler that Numba registers its code with.
_PROFILER = "VS_PROFILER"
_COMPILERS = ("numba", "llvmlite", "numpy")
_OWN = "compcache"
_GROUP = b"numba_extensions"
_MOST_FILES = 20_000
_AT_FIRST = 1 << 12  # most files of metadata are shorter
_AT_ONCE = 1 << 18
#: How the names of metadata end, which are few among the names of a directory.
_ENDINGS = frozenset(("-INFO", "-info", "-link"))


def settings_and_packages(open_cache: Callable[[], Cache | None] | None = None) -> str:
    """A text that differs if the same function could be compiled to different code.

    The cache that `open_cache` opens may know what is installed.

    Raises:
        NotLazy: it cannot be determined.
    """
    global _known  # noqa: PLW0603 - packages are installed for the whole process
    settings = _settings()
    chosen = [name for name, _ in settings if name.startswith("NUMBA_CPU_")]
    if chosen:
        raise NotLazy(f"{chosen[0]} chooses a CPU")
    if os.path.exists(".numba_config.yaml"):
        raise NotLazy("Numba is configured by the file .numba_config.yaml")
    path = tuple(sys.path)
    if _known[0] != path:
        _known = path, *_found_packages(open_cache)
    return f"{_python()}, {_known[1]}, {settings}"


def _found_packages(open_cache: Callable[[], Cache | None] | None) -> tuple[str, bool]:
    cache = open_cache() if open_cache is not None else None
    return _packages()[:2] if cache is None else _noted_packages(cache)


def has_extensions() -> bool:
    """Whether a package registers with Numba, which runs its code before it compiles. Raises `NotLazy`."""
    settings_and_packages()
    return _known[2]


def packages_are_those_of_keys(open_cache: Callable[[], Cache | None] | None = None) -> bool:
    """Whether the packages are still those that keys of this process have: another one may have been installed since."""
    try:
        return _known[0] == tuple(sys.path) and _known[1:] == _found_packages(open_cache)
    except NotLazy:
        return False


def _settings() -> list[tuple[str, str | None]]:
    """The variables that concern the compiler, and their values."""
    held = getattr(os.environ, "_data", None)
    if held and os.name == "posix":  # of what CPython keeps, one look tells most often: to iterate decodes each name, for each key
        names = b"\0".join(held)
        if b"NUMBA_" not in names and _PROFILER.encode() not in names:
            return []
    return sorted((name, os.environ.get(name)) for name in os.environ if _is_setting(name))


def _is_setting(name: str) -> bool:
    return (name.startswith("NUMBA_") and name not in _HARMLESS) or name == _PROFILER


#: The directories of `sys.path`, the identity of the packages there, and whether others than compilers are among them.
_known: tuple[Any, str, bool] = (None, "", False)


def _python() -> str:
    return f"lazy {FORMAT}, python {sys.version}, {sys.implementation.cache_tag}, {sys.platform}"


def _packages() -> tuple[str, bool, list[str]]:
    """What tells the packages from others, whether others than compilers are among them, and the directories of their metadata."""
    rows, chosen = [], []
    seen = set()
    for name, directory in _distributions():
        if name in seen or name == _OWN:
            continue
        if name in _COMPILERS or _registers(directory):
            seen.add(name)  # the first on the path is used, as for imports
            chosen.append(directory)
            rows.append(f"{name}: {_identity_of(directory)}")
    missing = [name for name in _COMPILERS if name not in seen]
    if missing:
        raise NotLazy(f"the distribution {missing[0]} was not found")
    if os.path.exists(_vector_library()):
        raise NotLazy("Numba uses Intel's vector library")
    return ", ".join(rows), len(seen) > len(_COMPILERS), chosen


def _vector_library() -> str:
    return os.path.join(sys.prefix, "lib", "libsvml.so")


def _distributions() -> Iterator[tuple[str, str]]:
    """The names and metadata directories of all distributions, in the order of the path."""
    for place in dict.fromkeys(sys.path):
        names = _metadata_in(place)
        if names is None and b"entry_points.txt" in _read(place):
            raise NotLazy(f"the archive {place} may register packages with Numba")
        for name in names or ():
            if name == "EGG-INFO":
                yield os.path.basename(place).partition("-")[0].lower(), os.path.join(place, name)
            elif name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield name.partition("-")[0].partition(".")[0].lower(), f"{place or '.'}/{name}"


def _metadata_in(place: str) -> list[str] | None:
    """The names of metadata in a directory of the path; None for an archive."""
    try:
        names = os.listdir(place or ".")
    except NotADirectoryError:
        return None
    except OSError:
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
    record = _read(f"{directory}/RECORD")
    if record and not _is_editable(directory):
        return blake2b(record, digest_size=16).hexdigest()
    origin = _read(f"{directory}/direct_url.json")
    if b"file://" in origin:
        import json
        from urllib.parse import unquote, urlparse

        return _digest_of_files(unquote(urlparse(json.loads(origin)["url"]).path))
    raise NotLazy(f"the distribution {os.path.basename(directory)} has no RECORD")


# ------------------------------------------------------------------------------------ what former starts have found


_STAMP_SIZE = 40
#: The directories of the path with the names of metadata in them, the paths of these and of all files that were read, each with a NUL,
#: their states (`file_stamps`), and what was found.
_NOTE = "([(u[u])]bbui)"


def _noted_packages(cache: Cache) -> tuple[str, bool]:
    """What `_packages` finds, or what it found in another process while all files were as they are now."""
    places = list(dict.fromkeys(sys.path))
    if not all(type(place) is str for place in places):
        return _packages()[:2]
    where = "" if all(map(os.path.isabs, places)) else os.getcwd()
    host = os.uname().nodename if hasattr(os, "uname") else ""
    name = "\0".join(["packages of Numba", str(FORMAT), sys.prefix, host, where, *places])
    noted = _read_note(cache.read_note(name))
    if noted is not None:
        return noted
    before = [_stamp_of(place) for place in places]
    listed = [_metadata_in(place) for place in places]
    found = _packages()
    if None not in before and None not in listed:
        data = _encode_note(places, listed, before, found)
        if data is not None:
            cache.write_note(name, data)
    return found[:2]


def _read_note(data: bytes | None) -> tuple[str, bool] | None:
    if data is None:
        return None
    try:
        listed, paths, stamps, identity, has_others = load_marshalled(data, _NOTE)
    except ValueError:
        return None
    now = _dispatch.file_stamps(paths)
    of_places = len(listed) * _STAMP_SIZE
    if now is None or now[0][of_places:] != stamps[of_places:]:
        return None
    for number, (place, names) in enumerate(listed):
        stamp = slice(number * _STAMP_SIZE, (number + 1) * _STAMP_SIZE)
        if now[0][stamp] != stamps[stamp]:
            found = _metadata_in(place)
            if found is None or sorted(found) != names:  # other files in the directory, those that the program writes, do not matter
                return None
    return identity, bool(has_others)


def _stamp_of(place: str) -> bytes | None:
    """The state of a directory of the path; zeros if it has just changed, and may change again without another state: it is listed each time."""
    from compcache.publish.atomic_file import has_settled

    read = _dispatch.file_stamps(os.fsencode(place or ".") + b"\0")
    if read is None:
        return None
    stamp, newest = read
    return stamp if has_settled(newest) else bytes(_STAMP_SIZE)


def _encode_note(places: list[str], listed: list[Any], states: list[Any], found: tuple[str, bool, list[str]]) -> bytes | None:
    """The note of what was found; None where it may change without leaving a trace."""
    from compcache.publish.atomic_file import has_settled

    directories = [directory for _, directory in _distributions()]
    if any(directory.endswith(".egg-link") for directory in directories) or any(map(_is_editable, found[2])):
        return None
    files = [_vector_library(), *(f"{directory}/entry_points.txt" for directory in directories)]
    files += [f"{directory}/{file}" for directory in found[2] for file in ("RECORD", "direct_url.json")]
    paths = [b"".join([os.fsencode(path or ".") + b"\0" for path in part]) for part in (places, files)]
    read = _dispatch.file_stamps(paths[1])
    if read is None or not has_settled(read[1]) or _packages() != found:  # what is noted was read after the states
        return None
    identity, has_others, _ = found
    rows = [(place, sorted(in_place)) for place, in_place in zip(places, listed, strict=True)]
    return dump_marshalled((rows, b"".join(paths), b"".join([*states, read[0]]), identity, int(has_others)))


def _is_editable(directory: str) -> bool:
    return b'"editable"' in _read(f"{directory}/direct_url.json")


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
