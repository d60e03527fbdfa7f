"""Publishes files atomically, by one rename (miss path)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from compcache.files import DIRECTORY_MODE, FILE_MODE
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from compcache.directory.places import Place
    from compcache.files import Files, Opened
    from compcache.store import Store

    FinalPath = str | Callable[[], str]
    _Result = TypeVar("_Result")

__all__ = ["has_settled", "is_settled", "keep_file", "make_directories", "publish", "publish_all", "remove_oldest", "unique_name"]

_CHUNK = 1 << 20
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
#: The number of files synchronized at a time. With eight, a hundred files take a tenth of the time of one after another.
_SYNCS = 8
_counter = 0


def unique_name() -> str:
    """Return a file name that is unique among all processes, threads and hosts."""
    global _counter  # noqa: PLW0603 - a counter per process; duplicates are harmless, O_EXCL decides
    _counter += 1
    return f"{os.getpid():x}-{_counter:x}-{os.urandom(6).hex()}"


def make_directories(files: Files, path: str) -> bool:
    """Create a directory and its missing parents, and return whether this call created the directory.

    The directories are private to this user, independent of the umask.

    Raise `OSError` if a directory could not be created. If the root of `files` was removed, the error names `path`.
    """
    missing: list[str] = []
    first: tuple[int | None, str | None, str] | None = None  # the fields of the first error, without its traceback and frames
    created = True
    while True:
        try:
            files.mkdir(path, DIRECTORY_MODE)
            break
        except FileExistsError as error:
            reraise_interrupt(error)
            created = False
            break
        except FileNotFoundError as error:
            reraise_interrupt(error)
            first = first or (error.errno, error.strerror, error.filename)
            missing.append(path)
            parent = os.path.dirname(path)
            if parent == path:
                raise FileNotFoundError(*first) from None
            path = parent
    for child in reversed(missing):
        try:
            files.mkdir(child, DIRECTORY_MODE)
            created = True
        except FileExistsError as error:
            reraise_interrupt(error)
            created = False
    return created


def publish(files: Files, temporary: str, path: FinalPath, parts: Iterable[bytes | memoryview], *, sync: bool = True) -> os.stat_result:
    """Write a file to a temporary name, and rename it to `path` atomically.

    Args:
        files: the file operations to use.
        temporary: a directory on the same file system, for the temporary file. It is created if it does not exist.
        path: the final path, or a function that returns it once the content is written. An existing file is replaced, never overwritten
            in place. Missing parent directories are created.
        parts: the content.
        sync: sync the content to disk before the rename, so that a crash cannot leave a truncated file.

    Returns:
        The `fstat` result of the published file.

    Raises:
        OSError: nothing was published. The temporary file was removed.
    """
    (status,) = publish_all(files, temporary, [(path, parts)], sync=sync)
    return status


def publish_all(
    files: Files, temporary: str, contents: Iterable[tuple[FinalPath, Iterable[bytes | memoryview]]], *, sync: bool = True
) -> list[os.stat_result]:
    """Publish several files, given as (path, parts), like `publish`, and return the `fstat` results of the files.

    If `sync` is true, all files are synced together before the first of them is renamed.

    Raise `OSError` if a file could not be written, synced or renamed. Files that were renamed before are published. Temporary files are
    removed.
    """
    pending: list[_TemporaryFile] = []
    try:
        for path, parts in contents:
            pending.append(_TemporaryFile(files, temporary, path))
            pending[-1].write(parts)
        if sync:
            _sync_all(files, [file.descriptor for file in pending])
        return [file.publish() for file in pending]
    finally:
        for file in pending:
            file.close()


class _TemporaryFile:
    """A file that is being written under a temporary name. Methods raise `OSError` if the file system reports an error."""

    def __init__(self, files: Files, temporary: str, path: FinalPath) -> None:
        self._files = files
        self._path = path
        self._scratch = f"{temporary}/{unique_name()}"
        self._is_published = False
        self._time = 0
        self._opened: Opened | None = _in_directory(files, temporary, lambda: files.open_owned(self._scratch, _NEW_FILE, FILE_MODE))
        self.descriptor = self._opened.number

    def write(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write the parts, joined to large writes, and set a unique modification time."""
        small = bytearray()
        for part in parts:
            if len(small) + len(part) > _CHUNK:
                _write_all(self._files, self.descriptor, small)
                small = bytearray()
            if len(part) > _CHUNK:
                _write_all(self._files, self.descriptor, part)
            else:
                small += part
        _write_all(self._files, self.descriptor, small)
        self._time = _set_unique_time(self._files, self.descriptor)

    def publish(self) -> os.stat_result:
        """Rename the file to its final name, and return its `fstat` result."""
        path = self._path if isinstance(self._path, str) else self._path()
        try:
            _in_directory(self._files, os.path.dirname(path), lambda: self._files.rename(self._scratch, path))
        except FileNotFoundError as error:
            reraise_interrupt(error)
            if not self._was_renamed(path):
                raise
        self._is_published = True
        return self._files.fstat(self.descriptor)

    def _was_renamed(self, path: str) -> bool:
        """Return whether the file was renamed although an error was reported.

        If an NFS server's answer is lost, the client repeats the request, and the server then reports that the file does not exist. The
        file is recognized by its unique modification time.
        """
        with suppress(OSError):
            return self._files.lstat(path).st_mtime_ns == self._time
        return False

    def close(self) -> None:
        """Close the file, and remove it unless it was published."""
        try:
            if not self._is_published:
                _remove_scratch(self._files, self._scratch)
        finally:
            self._opened = None


def _sync_all(files: Files, descriptors: list[int]) -> None:
    """Sync files, in parallel if threads start: journaling file systems commit them together. Raise `OSError` if a sync fails."""
    if len(descriptors) == 1:
        files.fsync(descriptors[0])
        return
    try:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_SYNCS) as pool:
            for _ in pool.map(files.fsync, descriptors):
                pass
    except RuntimeError as error:  # Python starts no threads while the process exits
        reraise_interrupt(error)
        for descriptor in descriptors:
            files.fsync(descriptor)


def _in_directory(files: Files, directory: str, action: Callable[[], _Result]) -> _Result:
    """Return the result of an action on a file in a directory, which is created only if it is missing.

    Raise `OSError` if the action fails, or the directory cannot be created.
    """
    try:
        return action()
    except FileNotFoundError as error:
        reraise_interrupt(error)
        make_directories(files, directory)
        return action()


def _set_unique_time(files: Files, descriptor: int) -> int:
    """Set a modification time that no later write can produce, and return it in nanoseconds.

    If the clock for file timestamps ticks every few milliseconds, a write right after the publication could leave the timestamps unchanged
    and go unnoticed. Therefore the file gets a time between two ticks, if the file system supports that. Otherwise it keeps its time.
    """
    now = time.time_ns()
    with suppress(OSError, TypeError, NotImplementedError):  # the file keeps the system's timestamp
        files.utime(descriptor, ns=(now, now))
    return now


def _write_all(files: Files, descriptor: int, part: bytes | bytearray | memoryview) -> None:
    """Write all bytes of a part. A single `write` may write fewer. Raise `OSError` if that fails."""
    view = memoryview(part)
    while view:
        written = files.write(descriptor, view[:_CHUNK])
        view = view[written:]


def _remove_scratch(files: Files, scratch: str) -> None:
    """Remove a temporary file if it still exists. Failures are ignored, because prunes remove leftover files."""
    with suppress(OSError):
        files.unlink(scratch)


#: An upper bound on the granularity of file timestamps, with a good margin, in nanoseconds.
_TICK = 100_000_000


def is_settled(status: os.stat_result) -> bool:
    """Return whether the last change of a file is so long ago that another change would alter its timestamps.

    Otherwise a file that changes again within one tick of the clock looks unchanged, like a "racily clean" file in Git. Files that
    `publish` wrote have unique times and do not have this problem.
    """
    return has_settled(max(status.st_ctime_ns, status.st_mtime_ns))


def has_settled(newest: int) -> bool:
    """Return whether the last change of a file is old enough that another change would change the file's times.

    Only then do the times identify the content.

    Args:
        newest: the later of the file's times of modification and change, in nanoseconds.
    """
    return abs(time.time_ns() - newest) > _TICK


def keep_file(store: Store, place: Place, name: str, data: bytes, limit: int) -> None:
    """Write a derived file. Then remove the oldest other files of its place, so that `limit` files remain. Ignore `OSError`."""
    with suppress(OSError):
        publish(store.files, store.temporary, store.path(place, name), [data], sync=False)
        remove_oldest(store, place, name, limit)


def remove_oldest(store: Store, place: Place, name: str, limit: int) -> None:
    """Remove the oldest files of a place, except the file `name`, until at most `limit` files remain. Files that cannot be removed stay."""
    with suppress(OSError):
        others = [other for other in store.names(place) if other != name]
        if len(others) < limit:
            return
        directory = store.directory(place)
        statuses = store.files.statuses(directory)
        others = sorted([other for other in others if other in statuses], key=lambda other: statuses[other].st_mtime_ns)
        for other in others[: max(len(others) - limit + 1, 0)]:
            with suppress(OSError):
                store.files.unlink(f"{directory}/{other}")
