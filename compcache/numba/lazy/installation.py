"""Computes the components of keys other than the functions: the installed packages that compile functions, and Numba's settings.

`compcache.numba.registered.distributions` finds the packages. Reading the entry points of hundreds of distributions, and the records of
large distributions, takes longer than all other work of a start. Therefore the result is noted in the cache directory with the state of
every file that was read. The note is valid as long as none of these files changes.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

import compcache
from compcache import frontend
from compcache.interrupts import reraise_interrupt
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.marshalled import decode_fields, encode_fields
from compcache.numba.registered.distributions import distributions, find_packages, is_editable, metadata_in, vector_library
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.cache import Cache

__all__ = ["are_packages_unchanged", "has_extensions", "settings_and_packages"]

#: Incremented when the meaning of keys or entries changes.
FORMAT = 5


def settings_and_packages(open_cache: Callable[[], Cache | None] | None = None) -> str:
    """Return the versions of Python, the digests of the packages that compile functions, and the values of Numba's environment variables.

    Two processes with the same text compile the same function to the same code. The packages are examined again if `sys.path` has changed.

    `open_cache` opens the cache that may contain a note of the installed packages; None to use no note.

    Raise `NotLazy` if the packages or settings cannot be determined.
    """
    global _packages_on_path  # noqa: PLW0603 - packages are installed for the whole process
    settings = _relevant_variables()
    if os.path.exists(".numba_config.yaml"):
        raise NotLazy("the file .numba_config.yaml in the current directory changes Numba's settings: set environment variables instead")
    path = tuple(sys.path)
    if _packages_on_path[0] != path:
        _packages_on_path = path, *_find_packages(open_cache)
    python = f"lazy {FORMAT}, python {sys.version}, {sys.implementation.cache_tag}, {sys.platform}"
    return f"{python}, {_packages_on_path[1]}, {settings}"


def _find_packages(open_cache: Callable[[], Cache | None] | None) -> tuple[str, bool]:
    """Return the text that identifies the packages, and whether there are extensions; from a note if `open_cache` returns a cache.

    See `find_packages` for the exception.
    """
    cache = open_cache() if open_cache is not None else None
    return find_packages()[:2] if cache is None else _read_or_note_packages(cache)


def has_extensions() -> bool:
    """Return whether an installed package registers code that Numba runs before its first compilation.

    Raise `NotLazy` if the packages cannot be determined.
    """
    settings_and_packages()
    return _packages_on_path[2]


def are_packages_unchanged(open_cache: Callable[[], Cache | None] | None = None) -> bool:
    """Return whether the installed packages are still those in the keys of this process.

    The answer is also False if `sys.path` has changed, if this process has no keys yet, or if the packages cannot be determined. A check
    takes a millisecond, but seconds if a checkout is installed in editable mode. Therefore the answer True is kept for twenty times as long
    as the check took. See `settings_and_packages` for `open_cache`.
    """
    global _next_check  # noqa: PLW0603 - packages are installed for the whole process
    started = monotonic()
    if _packages_on_path[0] != tuple(sys.path):
        return False
    if started < _next_check:
        return True
    try:
        is_same = _packages_on_path[1:] == _find_packages(open_cache)
    except NotLazy:
        return False
    if is_same:
        end = monotonic()
        _next_check = end + _PAUSE_FACTOR * (end - started)
    return is_same


_next_check = 0.0
_PAUSE_FACTOR = 20


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


#: The value of `sys.path`, the identity of the packages there, and whether packages other than the compilers register with Numba.
_packages_on_path: tuple[Any, str, bool] = (None, "", False)
_STAMP_SIZE = 40
#: The shape of a note: the directories of the path with the names of the metadata in them; the paths of these directories and of all files
#: that were read, each followed by a NUL; their states (`file_stamps`); and the result.
_NOTE_SHAPE = "([(u[u])]bbui)"
#: The kind of entry that contains the note.
_KIND = "packages"


def _read_or_note_packages(cache: Cache) -> tuple[str, bool]:
    """Return the results of `_find_packages` from a valid note. Otherwise examine the packages, and store a note.

    See `find_packages` for the exception.
    """
    import_path = list(dict.fromkeys(sys.path))
    if not all(type(directory) is str for directory in import_path):
        return find_packages()[:2]
    where = "" if all(map(os.path.isabs, import_path)) else os.getcwd()
    host = os.uname().nodename
    name = "\n".join(["packages of Numba", str(FORMAT), sys.prefix, host, where, *import_path])
    noted, renewed = _read_note(frontend.get_entry(cache, name, _KIND))
    if renewed is not None:
        _store_note(cache, name, renewed)
    if noted is not None:
        return noted
    before = [_directory_state(directory) for directory in import_path]
    names_by_directory = [metadata_in(directory) for directory in import_path]
    packages = find_packages()
    if None not in before and None not in names_by_directory:
        data = _encode_note(import_path, names_by_directory, before, packages)
        if data is not None:
            _store_note(cache, name, data)
    return packages[:2]


def _store_note(cache: Cache, name: str, data: bytes) -> None:
    """Store a note. Ignore errors of the cache."""
    try:  # noqa: SIM105 - contextlib is a slow import
        frontend.put_entry(cache, name, data, kind=_KIND)
    except compcache.CompcacheError:
        pass  # the cache may be read-only; the next start examines the packages again


def _read_note(data: bytes | None) -> tuple[tuple[str, bool] | None, bytes | None]:
    """Check a note against the present state of files. Raise `NotLazy` if a directory cannot be read at the moment.

    Returns:
        The result in the note, or None if the note is not valid; and a new note, or None if the old note stays. A new note replaces states
        of directories that had just changed when the old note was written.
    """
    if data is None:
        return None, None
    try:
        listed, paths, stamps, identity, has_others = decode_fields(data, _NOTE_SHAPE)
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
            current_names = metadata_in(directory)
            if current_names is None or sorted(current_names) != names:  # files without metadata in the directory do not matter
                return None, None
        renewed += stamp
    renewed_stamps = renewed + stamps[size_of_directories:]
    fields = (listed, paths, renewed_stamps, identity, has_others)
    return (identity, bool(has_others)), encode_fields(fields) if renewed_stamps != stamps else None


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


def _encode_note(import_path: list[str], listed: list[Any], states: list[Any], packages: tuple[str, bool, list[str]]) -> bytes | None:
    """Return a result's note, or None if the result may change while the noted states stay equal. See `find_packages` for the exception."""
    directories = [directory for _, directory in distributions()]
    if any(directory.endswith(".egg-link") for directory in directories) or any(map(is_editable, packages[2])):
        return None
    files = [vector_library(), *(f"{directory}/entry_points.txt" for directory in directories)]
    files += [f"{directory}/{file}" for directory in packages[2] for file in ("RECORD", "direct_url.json")]
    paths = [b"".join([os.fsencode(path or ".") + b"\0" for path in part]) for part in (import_path, files)]
    read = _dispatch.file_stamps(paths[1])
    if read is None or not frontend.has_settled(read[1]) or find_packages() != packages:  # the noted result was read after the states
        return None
    identity, has_others, _ = packages
    rows = [(entry, sorted(names)) for entry, names in zip(import_path, listed, strict=True)]
    return encode_fields((rows, b"".join(paths), b"".join([*states, read[0]]), identity, int(has_others)))
