"""Listing of module files with size and age: the status of a hundred thousand files without a call of `stat` for each file.

The content of a directory is stored, and reused as long as the directory has the same modification time. Adding, removing or replacing
a file changes this time. As with git's index, a directory that has changed just now may change again without a new modification time,
and is not stored yet.

The file is ``"CCFILES3" | directories``. A directory is ``two digits | modification time in ns u64 | number of modules u32 | check of the
other bytes``, followed by ``module_id | size u64 | modification time f64`` for each module (little-endian), in order. The file is derived:
without it, the status of every module file is read. It is read and written one directory at a time.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, check
from compcache.directory.places import MODULE_FILES, MODULES, module_id_of
from compcache.files import READ_FLAGS, read_at
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.atomic_file import publish
from compcache.publish.scratch import Scratch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from compcache.store import Store

    #: Called now and then with the numbers of read modules and of all modules.
    Progress = Callable[[int, int], object]

__all__ = ["FileStatus", "files_of_directory", "list_modules", "modules_by_directory", "statuses_by_directory"]

_MAGIC = b"CCFILES3"
_MAX_SIZE = 1 << 31
_MAX_TIME = 1e11  # seconds since the epoch; the comparison with it also excludes NaN
_FAN = 2  # hexadecimal digits in the name of a directory
_DIRECTORY = Struct(f"<2sqI{CHECK_SIZE}s")
_FILE = Struct("<16sQd")
#: Nanoseconds: longer than any tick of a file system's clock, and longer than the difference of synchronized clocks.
_SETTLED_NS = 5_000_000_000


class FileStatus(NamedTuple):
    """A module file: its size in bytes and its modification time in seconds since the epoch."""

    size: int
    modified: float


#: Makes a `FileStatus` from its fields without a constructor call in Python.
_status: Callable[[tuple[int, float]], FileStatus] = partial(tuple.__new__, FileStatus)


def list_modules(store: Store, progress: Progress | None = None) -> dict[bytes, FileStatus]:
    """Return the status of every module, by module_id. The total given to `progress` is an estimate."""
    return {module_id: status for _, statuses in modules_by_directory(store, progress) for module_id, status in statuses.items()}


def modules_by_directory(store: Store, progress: Progress | None = None) -> Iterator[tuple[int, dict[bytes, FileStatus]]]:
    """Yield the modules of one directory at a time: the first byte of their module_ids, and their statuses by module_id, in order.

    Rewrite the stored list at the end if a directory has changed.
    """
    stored = _StoredList(store)
    now = time.time_ns()
    count, renewed = 0, False
    names, present = store.fans(), set(store.directories())
    rewritten = Scratch()
    for number, name in enumerate(names):
        path, modules = store.path(MODULES, name), None
        if name in present:
            status = _status_of_directory(store, path)
            if status is not None:
                modules = stored.read(name, status.st_mtime_ns)
                if modules is None:
                    statuses = sorted(_module_statuses(store, path, name).items())
                    modules = {module_id: FileStatus(current.st_size, current.st_mtime) for module_id, current in statuses}
                    renewed = True
                if status.st_mtime_ns < now - _SETTLED_NS:
                    rewritten.write(_encode_directory(name, status.st_mtime_ns, modules))
        packed = {module_id: FileStatus(*row[:2]) for module_id, row in store.volumes.of_directory(name).items()}
        if packed:
            modules = dict(sorted({**packed, **(modules or {})}.items()))
        elif modules is None:
            continue  # the directory was removed in the meantime
        count += len(modules)
        yield int(name, 16), modules
        if progress is not None:
            progress(count, count * len(names) // (number + 1))
    if renewed and rewritten.size:
        _write_list(store, rewritten)


def statuses_by_directory(store: Store, since: float = 0.0) -> Iterator[dict[bytes, os.stat_result]]:
    """Yield the status of every module file, or of its volume, one directory at a time, without the stored list.

    Directories without a change since the time `since` are skipped.
    """
    present = set(store.directories())
    for name in store.fans():
        path = store.path(MODULES, name)
        directory_status = _status_of_directory(store, path) if name in present else None
        changed = directory_status is not None and directory_status.st_ctime >= since
        statuses = _module_statuses(store, path, name) if changed else {}
        # Volumes are read after the files, because a compaction moves modules from files to volumes.
        volumes = {module_id: status for module_id, (_, _, status) in store.volumes.of_directory(name).items()}
        packed = {module_id: status for module_id, status in volumes.items() if status.st_ctime >= since}
        if changed or packed:
            yield dict(sorted({**packed, **statuses}.items()))


def _status_of_directory(store: Store, path: str) -> os.stat_result | None:
    """Return the status of a directory; None if it does not exist, or is unreadable. See `Directory.present_names` for the exception."""
    try:
        return store.files.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        reraise_interrupt(error)
    except OSError as error:
        reraise_interrupt(error)
        store.report_unreadable(path, error)
    return None


def files_of_directory(store: Store, fan: str) -> dict[bytes, os.stat_result]:
    """Return the status of every module file in a directory, without modules in volumes."""
    return _module_statuses(store, store.path(MODULES, fan), fan)


def _module_statuses(store: Store, directory: str, fan: str) -> dict[bytes, os.stat_result]:
    """Return the status of every module file in a directory. Files with other names are left out."""
    by_module_id = {}
    for name, status in _file_statuses(store, directory).items():
        module_id = module_id_of(name)
        if module_id is not None and name[:_FAN] == fan:
            by_module_id[module_id] = status
    return by_module_id


def _file_statuses(store: Store, directory: str) -> dict[str, os.stat_result]:
    """Return the status of every file in a directory by name; none if it is missing or unreadable. Exception: see `present_names`."""
    try:
        return store.files.statuses(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        reraise_interrupt(error)
        return {}
    except OSError as error:
        reraise_interrupt(error)
        store.report_unreadable(directory, error)
        return {}


class _StoredList:
    """The stored list of module files. Each directory in it is read when it is needed."""

    def __init__(self, store: Store) -> None:
        self._directories: dict[str, tuple[int, int, int, bytes]] = {}
        self._files = store.files
        if store.exposed:
            return
        with suppress(OSError):
            self._opened = store.files.open_owned(store.path(MODULE_FILES), READ_FLAGS)
            status = store.files.fstat(self._opened.number)
            if status.st_size <= _MAX_SIZE and not store.is_foreign(status) and self._read_bytes(0, len(_MAGIC)) == _MAGIC:
                self._index_directories(status.st_size)

    def _read_bytes(self, offset: int, size: int) -> bytes:
        return read_at(self._files, self._opened, offset, size)

    def _index_directories(self, size: int) -> None:
        """Record the positions of the directories in the stored list, of 256 at most, up to the first incomplete directory."""
        offset = len(_MAGIC)
        while offset < size:
            head = self._read_bytes(offset, _DIRECTORY.size)
            if len(head) < _DIRECTORY.size or len(self._directories) >= 1 << 8:
                return
            name, changed, count, expected = _DIRECTORY.unpack(head)
            offset += _DIRECTORY.size
            self._directories[name.decode("latin-1")] = offset, count, changed, expected
            offset += count * _FILE.size

    def read(self, name: str, changed: int) -> dict[bytes, FileStatus] | None:
        """Return the stored statuses of a directory's modules, by module_id.

        Return None if the list cannot be read, is damaged, or does not contain the directory with the modification time `changed` in ns.
        """
        offset, count, stored_time, expected = self._directories.get(name, (0, 0, -1, b""))
        if stored_time != changed:
            return None
        try:
            data = self._read_bytes(offset, count * _FILE.size)
        except OSError as error:
            reraise_interrupt(error)
            return None
        if len(data) != count * _FILE.size or _directory_checksum(name, changed, data) != expected:
            return None
        files = _FILE.iter_unpack(data)
        statuses = {module_id: _status((size, modified)) for module_id, size, modified in files if abs(modified) < _MAX_TIME}
        return statuses if len(statuses) == count else None


def _directory_checksum(name: str, changed: int, data: bytes) -> bytes:
    """Return the checksum of a directory in the stored list: of its name, its modification time and its encoded files."""
    return check(b"%b%d\0%b" % (name.encode("latin-1"), changed, data))


def _encode_directory(name: str, changed: int, modules: dict[bytes, FileStatus]) -> bytes:
    """Encode a directory of the stored list. `changed` is its modification time in nanoseconds."""
    data = b"".join([_FILE.pack(module_id, *status) for module_id, status in modules.items()])
    return _DIRECTORY.pack(name.encode("ascii"), changed, len(modules), _directory_checksum(name, changed, data)) + data


def _write_list(store: Store, content: Scratch) -> None:
    """Write the stored list, unless the cache is read-only. A failure is ignored: the next tool can read every file's status again."""
    if store.readonly:
        return
    with suppress(OSError):
        publish(store.files, store.temporary, store.path(MODULE_FILES), chain([_MAGIC], content.parts()), sync=False)


assert _FILE.size == DIGEST_SIZE + 16
