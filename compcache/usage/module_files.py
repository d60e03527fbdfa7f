"""Lists the module files with size and age: the status of a hundred thousand files without a `stat` of each.

The content of a directory is stored, and reused as long as the directory has the same modification time: adding,
removing or replacing a file changes that. As with git's index, a directory that changed just now may change again
without a new modification time, and is not stored yet.

The file is ``"CCFILES2" | check | directories``; a directory is ``its two digits | modification time in
ns u64 | number of modules u32``, and as many times ``module_id | size u64 | modification time f64`` (little-endian). It
is derived: without it the status of every file is read.
"""

from __future__ import annotations

import time
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception class
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.files import reraise_interrupt
from compcache.publish.atomic_file import publish
from compcache.store import MODULE_FILES, MODULES, module_id_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from compcache.store import Store

    #: Called with (modules read, modules to read) now and then.
    Progress = Callable[[int, int], object]

__all__ = ["FileStatus", "list_modules", "status_of_modules"]

_MAGIC = b"CCFILES2"
_MAX_SIZE = 1 << 31
_MAX_TIME = 1e11  # seconds since the epoch; NaN is not below it
_FAN = 2  # hexadecimal digits
_DIRECTORY = Struct("<2sQI")
_FILE = Struct("<16sQd")
#: Longer than any tick of a file system's clock, and than the clock difference of well-kept hosts.
_SETTLED_NS = 5_000_000_000


class FileStatus(NamedTuple):
    """A module file: its size in bytes and its modification time in seconds since the epoch."""

    size: int
    modified: float


#: A status from its fields, without a constructor call in Python.
_status: Callable[[tuple[int, float]], FileStatus] = partial(tuple.__new__, FileStatus)


class _Directory(NamedTuple):
    """The modules of a directory when it had this modification time."""

    changed: int
    modules: dict[bytes, FileStatus]


def list_modules(store: Store, progress: Progress | None = None) -> dict[bytes, FileStatus]:
    """The status of every module file; the total given to `progress` is an estimate."""
    known = _read(store)
    now = time.time_ns()
    found: dict[bytes, FileStatus] = {}
    settled: dict[str, _Directory] = {}
    renewed = False
    names = _directories(store)
    for number, name in enumerate(names):
        path = store.path(MODULES, name)
        try:
            changed = store.files.stat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            continue  # removed meanwhile
        except OSError as error:
            reraise_interrupt(error)
            store.tell_unreadable(path, error)
            continue
        directory = known.get(name)
        if directory is None or directory.changed != changed:
            statuses = _look_at(store, path, name)
            directory = _Directory(changed, {i: FileStatus(s.st_size, s.st_mtime) for i, s in statuses.items()})
            renewed = True
            if progress is not None and number:
                progress(len(found), len(found) * len(names) // number)
        if changed < now - _SETTLED_NS:
            settled[name] = directory
        found.update(directory.modules)
    if renewed and settled:
        _write(store, settled)
    if renewed and progress is not None:
        progress(len(found), len(found))
    return found


def status_of_modules(store: Store) -> dict[bytes, os.stat_result]:
    """The status of every module file, without the stored list."""
    found: dict[bytes, os.stat_result] = {}
    for name in _directories(store):
        found.update(_look_at(store, store.path(MODULES, name), name))
    return found


def _directories(store: Store) -> list[str]:
    names = store.present_names(store.directory(MODULES))
    return sorted(name for name in names if len(name) == _FAN and name.isascii())


def _look_at(store: Store, directory: str, fan: str) -> dict[bytes, os.stat_result]:
    found = {}
    for name, status in _statuses(store, directory).items():
        module_id = module_id_of(name)
        if module_id is not None and name[:_FAN] == fan:
            found[module_id] = status
    return found


def _statuses(store: Store, directory: str) -> dict[str, os.stat_result]:
    try:
        return store.files.statuses(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        reraise_interrupt(error)
        return {}
    except OSError as error:
        reraise_interrupt(error)
        store.tell_unreadable(directory, error)
        return {}


def _read(store: Store) -> dict[str, _Directory]:
    data = store.read_file(MODULE_FILES, most=_MAX_SIZE) or b""
    start = len(_MAGIC) + CHECK_SIZE
    content = data[start:]
    if data[: len(_MAGIC)] != _MAGIC or check(content) != data[len(_MAGIC) : start]:
        return {}
    try:
        return _decode(memoryview(content))
    except (StructError, ValueError) as error:
        reraise_interrupt(error)
        return {}


def _decode(content: memoryview) -> dict[str, _Directory]:
    """The directories by name. Raises `struct.error` or `ValueError` if these bytes are malformed."""
    found = {}
    at = 0
    while at < len(content):
        name, changed, count = _DIRECTORY.unpack_from(content, at)
        at += _DIRECTORY.size
        end = at + count * _FILE.size
        files = _FILE.iter_unpack(content[at:end])
        modules = {module_id: _status((size, modified)) for module_id, size, modified in files if abs(modified) < _MAX_TIME}
        if len(modules) != count:
            raise ValueError("the list of files is truncated")
        found[name.decode("ascii")] = _Directory(changed, modules)
        at = end
    return found


def _write(store: Store, directories: Mapping[str, _Directory]) -> None:
    """Store the list. If that fails, the next tool reads the status of every file again."""
    if store.readonly:
        return
    parts = []
    for name, (changed, modules) in directories.items():
        parts.append(_DIRECTORY.pack(name.encode("ascii"), changed, len(modules)))
        parts += [_FILE.pack(module_id, *status) for module_id, status in sorted(modules.items())]
    content = b"".join(parts)
    try:
        publish(store.files, store.temporary, store.path(MODULE_FILES), [_MAGIC, check(content), content], sync=False)
    except OSError as error:
        reraise_interrupt(error)
        return


assert _FILE.size == DIGEST_SIZE + 16
