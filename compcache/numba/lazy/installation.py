"""Key components other than the functions: the installed packages that compile them, and Numba's settings.

`compcache.numba.registered.distributions` finds what is installed. Reading what hundreds of distributions register, and the records of the
large ones, takes longer than the rest of a start. So the result is noted in the cache directory with the state of every file that was read,
and is valid as long as these files do not change.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.marshalled import dump_marshalled, load_marshalled
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.cache import Cache

__all__ = ["has_extensions", "packages_are_those_of_keys", "settings_and_packages"]

#: Incremented when the meaning of keys or entries changes.
FORMAT = 5


def settings_and_packages(open_cache: Callable[[], Cache | None] | None = None) -> str:
    """Return a text that differs if the same function could be compiled to different code.

    The cache that `open_cache` opens may contain a note of what is installed.

    Raises:
        NotLazy: it cannot be determined.
    """
    global _known  # noqa: PLW0603 - packages are installed for the whole process
    settings = _settings()
    if os.path.exists(".numba_config.yaml"):
        raise NotLazy("Numba is configured by the file .numba_config.yaml")
    path = tuple(sys.path)
    if _known[0] != path:
        _known = path, *_found_packages(open_cache)
    return f"{_python()}, {_known[1]}, {settings}"


def _found_packages(open_cache: Callable[[], Cache | None] | None) -> tuple[str, bool]:
    cache = open_cache() if open_cache is not None else None
    return _packages()[:2] if cache is None else _noted_packages(cache)


def _packages() -> tuple[str, bool, list[str]]:
    """Implement `find_packages`. Raises `NotLazy`."""
    from compcache.numba.registered.distributions import UnknownPackagesError, find_packages

    try:
        return find_packages()
    except UnknownPackagesError as error:
        raise NotLazy(str(error)) from error


def has_extensions() -> bool:
    """Return whether a package registers with Numba, which then runs the package's code before it compiles. Raises `NotLazy`."""
    settings_and_packages()
    return _known[2]


def packages_are_those_of_keys(open_cache: Callable[[], Cache | None] | None = None) -> bool:
    """Return whether the packages are still those in this process's keys: another one may have been installed since.

    A check takes a millisecond, but seconds if a checkout is installed in editable mode. So at most a twentieth of the time is spent on it.
    """
    global _next_look  # noqa: PLW0603 - packages are installed for the whole process
    began = monotonic()
    if _known[0] != tuple(sys.path):
        return False
    if began < _next_look:
        return True
    try:
        is_same = _known[1:] == _found_packages(open_cache)
    except NotLazy:
        return False
    if is_same:
        now = monotonic()
        _next_look = now + _RARELY * (now - began)
    return is_same


_next_look = 0.0
_RARELY = 20


def _settings() -> list[tuple[str, str | None]]:
    """Return the variables that concern the compiler, with their values. Raises `NotLazy` if one chooses the CPU."""
    held = getattr(os.environ, "_data", None)
    if held and os.name == "posix":  # usually answered from CPython's own table: iterating decodes each name, for each key
        names = b"\0".join(held)
        if b"NUMBA_" not in names and b"VS_PROFILER" not in names:
            return []
    from compcache.numba.registered.settings import chooses_cpu, is_variable

    chosen = next(filter(chooses_cpu, os.environ), None)
    if chosen is not None:
        raise NotLazy(f"the environment variable {chosen} chooses a CPU")
    return sorted((name, os.environ.get(name)) for name in os.environ if is_variable(name))


#: The directories of `sys.path`, the identity of the packages there, and whether others than compilers are among them.
_known: tuple[Any, str, bool] = (None, "", False)


def _python() -> str:
    return f"lazy {FORMAT}, python {sys.version}, {sys.implementation.cache_tag}, {sys.platform}"


# ------------------------------------------------------------------------------------ what former starts have found


_STAMP_SIZE = 40
#: A note: the directories of the path with the names of metadata in them, the paths of these and of all files that were read, each with a
#: NUL, their states (`file_stamps`), and the result.
_NOTE = "([(u[u])]bbui)"
#: The kind of entry that contains the note.
_KIND = "packages"


def _noted_packages(cache: Cache) -> tuple[str, bool]:
    """Return the result of `_packages`, or the one that another process noted while all files were as they are now."""
    places = list(dict.fromkeys(sys.path))
    if not all(type(place) is str for place in places):
        return _packages()[:2]
    where = "" if all(map(os.path.isabs, places)) else os.getcwd()
    host = os.uname().nodename if hasattr(os, "uname") else ""
    name = "\n".join(["packages of Numba", str(FORMAT), sys.prefix, host, where, *places])
    noted, renewed = _read_note(frontend.get_entry(cache, name, _KIND))
    if renewed is not None:
        _keep(cache, name, renewed)
    if noted is not None:
        return noted
    from compcache.numba.registered.distributions import metadata_in

    before = [_stamp_of(place) for place in places]
    listed = [metadata_in(place) for place in places]
    found = _packages()
    if None not in before and None not in listed:
        data = _encode_note(places, listed, before, found)
        if data is not None:
            _keep(cache, name, data)
    return found[:2]


def _keep(cache: Cache, name: str, data: bytes) -> None:
    try:  # noqa: SIM105 - contextlib is a slow import
        frontend.put_entry(cache, name, data, kind=_KIND)
    except CompcacheError:
        pass  # read-only: the next start examines the packages again


def _read_note(data: bytes | None) -> tuple[tuple[str, bool] | None, bytes | None]:
    """Return the result in a note, or None if it is not valid; and a note to replace it if directories that had just changed when it was
    written have settled since.
    """
    if data is None:
        return None, None
    try:
        listed, paths, stamps, identity, has_others = load_marshalled(data, _NOTE)
    except ValueError as error:
        reraise_interrupt(error)
        return None, None
    now = _dispatch.file_stamps(paths)
    of_places = len(listed) * _STAMP_SIZE
    if now is None or now[0][of_places:] != stamps[of_places:]:
        return None, None
    renewed = b""
    for number, (place, names) in enumerate(listed):
        stamp = stamps[number * _STAMP_SIZE : (number + 1) * _STAMP_SIZE]
        if now[0][len(renewed) : len(renewed) + _STAMP_SIZE] != stamp:
            from compcache.numba.registered.distributions import metadata_in

            stamp = stamp if any(stamp) else _stamp_of(place) or stamp
            found = metadata_in(place)
            if found is None or sorted(found) != names:  # other files in the directory, such as the program's output, do not matter
                return None, None
        renewed += stamp
    stamps_now = renewed + stamps[of_places:]
    fields = (listed, paths, stamps_now, identity, has_others)
    return (identity, bool(has_others)), dump_marshalled(fields) if stamps_now != stamps else None


def _stamp_of(place: str) -> bytes | None:
    """Return the state of a directory of the path. It is zeros if the directory has just changed, and may change again without another
    state; such a directory is listed each time.
    """
    read = _dispatch.file_stamps(os.fsencode(place or ".") + b"\0")
    if read is None:
        return None
    stamp, newest = read
    return stamp if frontend.has_settled(newest) else bytes(_STAMP_SIZE)


def _encode_note(places: list[str], listed: list[Any], states: list[Any], found: tuple[str, bool, list[str]]) -> bytes | None:
    """Return the note of a result; None if the result may change without leaving a trace."""
    from compcache.numba.registered.distributions import distributions, is_editable, vector_library

    directories = [directory for _, directory in distributions()]
    if any(directory.endswith(".egg-link") for directory in directories) or any(map(is_editable, found[2])):
        return None
    files = [vector_library(), *(f"{directory}/entry_points.txt" for directory in directories)]
    files += [f"{directory}/{file}" for directory in found[2] for file in ("RECORD", "direct_url.json")]
    paths = [b"".join([os.fsencode(path or ".") + b"\0" for path in part]) for part in (places, files)]
    read = _dispatch.file_stamps(paths[1])
    if read is None or not frontend.has_settled(read[1]) or _packages() != found:  # what is noted was read after the states
        return None
    identity, has_others, _ = found
    rows = [(place, sorted(in_place)) for place, in_place in zip(places, listed, strict=True)]
    return dump_marshalled((rows, b"".join(paths), b"".join([*states, read[0]]), identity, int(has_others)))
