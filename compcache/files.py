"""The file operations that the package uses, and the few compound ones built on them.

`Files` is the seam to the operating system: every effect on disk goes through one of its methods, so that a
test can count, fail, tear or drop the n-th one (`tests/mock_directory.py`).
"""

from __future__ import annotations

import os
import stat as stat_module
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DIRECTORY_MODE", "FILE_MODE", "READ_FLAGS", "Files", "is_settled", "make_directories", "publish", "read_at", "read_file", "unique_name"]

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
#: Symbolic links are not followed, and nobody waits for the other end of a pipe.
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CHUNK = 1 << 20


class Files:
    """Operating-system calls, one method each; errors are the `OSError`s of `os`."""

    __slots__ = ()

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    lstat = staticmethod(os.lstat)
    listdir = staticmethod(os.listdir)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    mkdir = staticmethod(os.mkdir)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    pread = staticmethod(os.pread)
    utime = staticmethod(os.utime)


_counter = 0


def unique_name() -> str:
    """A file name that no other process, thread or machine chooses at the same time."""
    global _counter  # noqa: PLW0603 - a counter per process; duplicates are harmless, O_EXCL decides
    _counter += 1
    return f"{os.getpid():x}-{_counter:x}-{os.urandom(6).hex()}"


def read_file(files: Files, path: str, limit: int, *, owner: int | None = None) -> bytes:
    """The whole content of a regular file, read with its size known beforehand.

    Args:
        files: the operations to use.
        path: the file; a symbolic link is not followed.
        limit: how many bytes it can have.
        owner: the user to whom it must belong; None for anyone.

    Raises:
        OSError: the file cannot be read, is longer than `limit` bytes, is somebody else's, or shrinks while it is
            read.
    """
    descriptor = -1  # opened inside the try: an interrupt between two lines must not leak it
    try:
        descriptor = files.open(path, READ_FLAGS)
        status = files.fstat(descriptor)
        size = status.st_size
        if not stat_module.S_ISREG(status.st_mode) or (owner is not None and status.st_uid != owner):
            raise OSError(f"{path} is not a regular file of this user")
        if size > limit:
            raise OSError(f"{path} has {size} bytes, more than the {limit} that it can have")
        data = files.pread(descriptor, size, 0)
        while len(data) < size:
            more = files.pread(descriptor, size - len(data), len(data))
            if not more:
                raise OSError(f"{path} ended after {len(data)} of {size} bytes")
            data += more
        return data
    finally:
        if descriptor >= 0:
            files.close(descriptor)


def read_at(files: Files, descriptor: int, offset: int, size: int) -> bytes:
    """`size` bytes of an open file, or fewer at its end, however few each call of the system gives.

    Raises:
        OSError: it cannot be read.
    """
    parts = []
    while size > 0:
        part = files.pread(descriptor, min(size, _CHUNK), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def make_directories(files: Files, path: str) -> None:
    """Create a directory and its missing parents, private to this user whatever the umask."""
    missing = []
    while True:
        try:
            files.mkdir(path, DIRECTORY_MODE)
            break
        except FileExistsError:
            break
        except FileNotFoundError:
            missing.append(path)
            parent = os.path.dirname(path)
            if parent == path:
                raise
            path = parent
    for child in reversed(missing):
        try:
            files.mkdir(child, DIRECTORY_MODE)
        except FileExistsError:
            continue


def publish(
    files: Files, temporary: str, path: str, parts: Iterable[bytes | memoryview], *, sync: bool = True
) -> os.stat_result:
    """Make a file visible under `path` by one rename, complete or not at all.

    Args:
        files: the operations to use.
        temporary: a directory on the same file system, in which the file is written.
        path: the final name; a file that has it is replaced, never overwritten in place.
        parts: the content.
        sync: write the content to the disk before the rename, so that no crash leaves a torn file.

    Returns:
        What `fstat` says of the file under its final name.

    Raises:
        OSError: nothing was published; what had been written is removed again.
    """
    scratch = f"{temporary}/{unique_name()}"
    descriptor = _create(files, scratch, temporary)
    try:
        try:
            for part in parts:
                _write_all(files, descriptor, part)
            _mark(files, descriptor)
            if sync:
                files.fsync(descriptor)
            _rename(files, scratch, path)
        except BaseException:
            _discard(files, scratch)
            raise
        return files.fstat(descriptor)
    finally:
        files.close(descriptor)


def _create(files: Files, scratch: str, directory: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return files.open(scratch, flags, FILE_MODE)
    except FileNotFoundError:
        make_directories(files, directory)
        return files.open(scratch, flags, FILE_MODE)


def _mark(files: Files, descriptor: int) -> None:
    """Set the modification time to one that no later write can leave.

    Where the system's clock for files ticks every few milliseconds, a write right after the publication leaves the
    same times, and would go unnoticed. So the file gets the time between two ticks.
    """
    now = time.time_ns()
    try:
        files.utime(descriptor, ns=(now, now))
    except (OSError, TypeError, NotImplementedError):
        return  # as the system has it, then


def _write_all(files: Files, descriptor: int, part: bytes | memoryview) -> None:
    view = memoryview(part)
    while view:
        written = files.write(descriptor, view[:_CHUNK])
        view = view[written:]


def _rename(files: Files, scratch: str, path: str) -> None:
    try:
        files.rename(scratch, path)
    except FileNotFoundError:
        make_directories(files, os.path.dirname(path))
        files.rename(scratch, path)


def _discard(files: Files, scratch: str) -> None:
    try:
        files.unlink(scratch)
    except OSError:
        return


#: The longest tick of the clocks that file systems of one machine stamp files with, with a good margin.
_TICK = 100_000_000


def is_settled(status: os.stat_result) -> bool:
    """Whether a file changed long enough ago that another change would give it other times.

    As git has it: what changes twice within a tick of the clock, with a look at it between, seems to have changed
    once. What `publish` wrote is marked, and safe from that.
    """
    return abs(time.time_ns() - max(status.st_ctime_ns, status.st_mtime_ns)) > _TICK
