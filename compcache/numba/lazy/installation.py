"""Computes the components of keys other than the functions: the installed packages that compile functions, and Numba's settings.

`compcache.numba.registered.registering` finds the packages. Reading the entry points of hundreds of distributions, and the records of
large distributions, takes longer than all other work of a start. Therefore the result is noted in the cache directory with the state of
every file that was read. The note is valid as long as none of these files changes.
"""

from __future__ import annotations

import os
import sys

import compcache
from compcache import frontend
from compcache.interrupts import reraise_interrupt, suppress
from compcache.numba.lazy import _dispatch, has_settings_file
from compcache.numba.lazy.marshalled import decode_fields, encode_fields
from compcache.numba.registered.distributions import distributions, names_in
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.cache import Cache

    #: The text that identifies the installed distributions, and the packages that register with Numba: their top-level names, and the
    #: environment variables that they read. A package has the variable "" if the text does not identify all that it reads.
    Packages = tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]

__all__ = ["are_packages_unchanged", "has_extensions", "packages_in_keys", "settings_and_packages"]

#: Incremented when the meaning of keys or entries changes.
FORMAT = 5


def settings_and_packages(open_cache: Callable[[], Cache | None] | None = None) -> str:
    """Return the versions of Python, the digests of the packages that compile functions, and the values of Numba's environment variables.

    Two processes with the same text compile the same function to the same code. The packages are examined again if `sys.path` has changed.
    `open_cache` opens the cache that may contain a note of the installed packages; None to use no note. Raise `NotLazy` if the packages or
    settings cannot be determined.
    """
    global _packages_on_path  # noqa: PLW0603 - packages are installed for the whole process
    settings = _relevant_variables()
    if has_settings_file():
        raise NotLazy("the file .numba_config.yaml in the current directory changes Numba's settings: set environment variables instead")
    path = tuple(sys.path)
    if _packages_on_path[0] != path:
        _packages_on_path = path, _find_packages(open_cache)
    identity, packages = _packages_on_path[1]
    if packages:
        values = [(name, os.environ.get(name)) for _, variables in packages for name in variables]
        identity = f"{identity}, imported {_imported_by_program(packages)}, {values}"
    python = f"lazy {FORMAT}, python {sys.version}, {sys.implementation.cache_tag}, {sys.platform}"
    return f"{python}, {identity}, {settings}"


def packages_in_keys() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the top-level packages whose files are in keys, and those of them that the program imported itself before Numba did."""
    return tuple(name for name, variables in _packages_on_path[1][1] if "" not in variables), tuple(_imported)


def _imported_by_program(packages: Any) -> list[str]:
    """Return the names of the packages that the program has imported. Once Numba has imported all packages, the result stays the same."""
    if not getattr(sys.modules.get("numba.core.entrypoints"), "_already_initialized", None):
        _imported[:] = [name for name, _ in packages if name in sys.modules]
    return _imported


#: The packages that register with Numba and that the program has imported.
_imported: list[str] = []


def _find_packages(open_cache: Callable[[], Cache | None] | None) -> Packages:
    """Return the packages, from a note if `open_cache` returns a cache. See `find_packages` for the exception."""
    cache = open_cache() if open_cache is not None else None
    if cache is not None and all(type(directory) is str for directory in sys.path):
        return _read_or_note_packages(cache)
    from compcache.numba.registered.registering import find_packages

    return find_packages()[0]


def has_extensions() -> bool:
    """Return whether an installed package registers code that Numba runs before its first compilation.

    Raise `NotLazy` if the packages cannot be determined.
    """
    settings_and_packages()
    return bool(_packages_on_path[1][1])


def are_packages_unchanged(open_cache: Callable[[], Cache | None] | None = None) -> bool:
    """Return whether the installed packages are still those in the keys of this process.

    The answer is also False if `sys.path` has changed, if this process has no keys yet, or if the packages cannot be determined. See
    `settings_and_packages` for `open_cache`.
    """
    try:
        return _packages_on_path[0] == tuple(sys.path) and _packages_on_path[1] == _find_packages(open_cache)
    except NotLazy:
        return False


def _relevant_variables() -> list[tuple[str, str | None]]:
    """Return the environment variables that affect the compiler, with their values. Raise `NotLazy` if a variable chooses the CPU."""
    environment = getattr(os.environ, "_data", None)
    if environment:  # CPython's own table, because iterating over `os.environ` decodes each name, for each key
        names = b"\0".join(environment)
        if b"NUMBA_" not in names and b"VS_PROFILER" not in names:
            return []
    from compcache.numba.registered.settings import chooses_cpu, is_in_keys

    chosen = next(filter(chooses_cpu, os.environ), None)
    if chosen is not None:
        raise NotLazy(f"the environment variable {chosen} chooses the CPU for which Numba compiles: unset the variable")
    return sorted((name, os.environ.get(name)) for name in os.environ if is_in_keys(name))


#: The value of `sys.path`, and the packages there.
_packages_on_path: tuple[Any, Packages] = (None, ("", ()))
_STAMP_SIZE = 40
#: The shape of a note: the directories of the path with the names in them (`names_in`); the paths of these directories and of all files and
#: directories that were examined, each followed by a NUL; their states (`file_stamps`); and the packages.
_NOTE_SHAPE = "([(u[u])]bb(u[(u[u])]))"
#: The kind of entry that contains the note.
_KIND = "packages"


def _read_or_note_packages(cache: Cache) -> Packages:
    """Return the packages from a valid note. Otherwise examine the packages, and store a note. See `find_packages` for the exception."""
    import_path = list(dict.fromkeys(sys.path))
    where = "" if all(map(os.path.isabs, import_path)) else os.getcwd()
    name = "\n".join(["packages of Numba", str(FORMAT), sys.prefix, os.uname().nodename, where, *import_path])
    noted, renewed = _read_note(frontend.get_entry(cache, name, _KIND))
    if renewed is not None:
        _store_note(cache, name, renewed)
    if noted is not None:
        return noted
    from compcache.numba.registered.registering import find_packages

    before = [_directory_state(directory) for directory in import_path]
    found = find_packages()
    data = _encode_note(import_path, before, found) if None not in before else None
    if data is not None:
        _store_note(cache, name, data)
    return found[0]


def _store_note(cache: Cache, name: str, data: bytes) -> None:
    """Store a note. Ignore errors of the cache."""
    with suppress(compcache.CompcacheError):  # the cache may be read-only; the next start examines the packages again
        frontend.put_entry(cache, name, data, kind=_KIND)


def _read_note(data: bytes | None) -> tuple[Packages | None, bytes | None]:
    """Check a note against the present state of files. Raise `NotLazy` if a directory cannot be read at the moment.

    Returns:
        The result in the note, or None if the note is not valid; and a new note, or None if the old note stays. A new note replaces states
        of directories that had just changed when the old note was written.
    """
    if data is None:
        return None, None
    try:
        listed, paths, stamps, packages = decode_fields(data, _NOTE_SHAPE)
    except ValueError as error:
        reraise_interrupt(error)
        return None, None
    current = _dispatch.file_stamps(paths)
    size_of_directories = len(listed) * _STAMP_SIZE
    if current is None or current[0][size_of_directories:] != stamps[size_of_directories:]:
        return None, None
    renewed = b""
    for number, (directory, names) in enumerate(listed):
        stamp = stamps[number * _STAMP_SIZE : (number + 1) * _STAMP_SIZE]
        if current[0][len(renewed) : len(renewed) + _STAMP_SIZE] != stamp:
            stamp = stamp if any(stamp) else _directory_state(directory) or stamp
            current_names = names_in(directory, dict(packages[1]))
            if current_names is None or sorted(current_names) != names:  # other files in the directory do not matter
                return None, None
        renewed += stamp
    renewed_stamps = renewed + stamps[size_of_directories:]
    return packages, encode_fields((listed, paths, renewed_stamps, packages)) if renewed_stamps != stamps else None


def _directory_state(directory: str) -> bytes | None:
    """Return the state of a directory of `sys.path`, as `file_stamps` returns it, or None if the directory cannot be read.

    The state consists of zeros if the directory has changed so recently that another change could leave the same state. A note with such a
    state is valid if the directory contains the noted names.
    """
    read = _dispatch.file_stamps(os.fsencode(directory or ".") + b"\0")
    if read is None:
        return None
    stamp, newest = read
    return stamp if frontend.has_settled(newest) else bytes(_STAMP_SIZE)


def _encode_note(import_path: list[str], states: list[Any], found: tuple[Packages, list[str]]) -> bytes | None:
    """Return a note, or None if the packages may change while the noted states stay equal. See `find_packages` for the exception.

    `states` are the states of the directories before the packages were `found`.
    """
    from compcache.numba.registered.registering import find_packages

    packages, examined = found
    listed = [names_in(directory, dict(packages[1])) for directory in import_path]
    if None in listed or any(directory.endswith(".egg-link") for _, directory in distributions()):
        return None
    paths = [b"".join([os.fsencode(path or ".") + b"\0" for path in part]) for part in (import_path, examined)]
    read = _dispatch.file_stamps(paths[1])
    if read is None or not frontend.has_settled(read[1]) or find_packages() != found:  # the packages were examined before the states
        return None
    rows = [(directory, sorted(names or ())) for directory, names in zip(import_path, listed, strict=True)]
    return encode_fields((rows, b"".join(paths), b"".join([*states, read[0]]), packages))
