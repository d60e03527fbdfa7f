"""Listing of module files with size and age, one directory at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compcache.directory.places import MODULES, module_id_of
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from compcache.store import Store

    #: Called now and then with the numbers of read modules and of all modules.
    Progress = Callable[[int, int], object]

__all__ = ["FileStatus", "files_of_directory", "modules_by_directory", "statuses_by_directory"]


class FileStatus(NamedTuple):
    """A module file: its size in bytes and its modification time in seconds since the epoch."""

    size: int
    modified: float


#: Makes a `FileStatus` from its fields without a constructor call in Python.
_status: Callable[[tuple[int, float]], FileStatus] = partial(tuple.__new__, FileStatus)


def modules_by_directory(store: Store, progress: Progress | None = None) -> Iterator[tuple[int, dict[bytes, FileStatus]]]:
    """Yield the modules of one directory at a time: the first byte of their module_ids, and their statuses by module_id, in order.

    The total given to `progress` is an estimate.
    """
    count, names, present = 0, store.fans(), set(store.directories())
    for number, name in enumerate(names):
        files = files_of_directory(store, name) if name in present else {}
        # Volumes are read after the files, because a compaction moves modules from files to volumes.
        modules = {module_id: FileStatus(*row[:2]) for module_id, row in store.volumes.of_directory(name).items()}
        modules.update([(module_id, _status((status.st_size, status.st_mtime))) for module_id, status in files.items()])
        count += len(modules)
        yield int(name, 16), dict(sorted(modules.items()))
        if progress is not None:
            progress(count, count * len(names) // (number + 1))


def statuses_by_directory(store: Store, since: float = 0.0) -> Iterator[dict[bytes, os.stat_result]]:
    """Yield the status of every module file, or of its volume, one directory at a time.

    Directories without a change since the time `since` are skipped.
    """
    present = set(store.directories())
    for name in store.fans():
        statuses = files_of_directory(store, name) if name in present and _has_changed(store, name, since) else {}
        # Volumes are read after the files, because a compaction moves modules from files to volumes.
        volumes = {module_id: status for module_id, (_, _, status) in store.volumes.of_directory(name).items()}
        packed = {module_id: status for module_id, status in volumes.items() if status.st_ctime >= since}
        if statuses or packed:
            yield dict(sorted({**packed, **statuses}.items()))


def _has_changed(store: Store, fan: str, since: float) -> bool:
    """Return whether a directory of modules may have changed since a time. If its status cannot be read, reading it reports the reason."""
    with suppress(OSError):
        return store.files.stat(store.path(MODULES, fan)).st_ctime >= since
    return True


def files_of_directory(store: Store, fan: str) -> dict[bytes, os.stat_result]:
    """Return the status of every module file in a directory, without modules in volumes. Files with other names are left out.

    A missing directory has no files. An unreadable directory is reported, and has none either.
    """
    path = store.path(MODULES, fan)
    try:
        statuses = store.files.statuses(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        reraise_interrupt(error)
        return {}
    except OSError as error:
        reraise_interrupt(error)
        store.report_unreadable(path, error)
        return {}
    by_module_id = {}
    for name, status in statuses.items():
        module_id = module_id_of(name)
        if module_id is not None and name.startswith(fan):
            by_module_id[module_id] = status
    return by_module_id
