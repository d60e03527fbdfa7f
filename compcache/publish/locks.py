"""Locks between processes (miss path).

Locks save work, but correctness never depends on them. If locks do not work, or are disabled with ``COMPCACHE_LOCKS=0``, work proceeds
without locks. A lock is a file that is held with `flock`. The holder removes the file, because otherwise one file per function would
accumulate. The kernel releases the lock when its holder dies; a forked child does not hold it. On file systems without a working `flock`,
as some network file systems are, locks are filelock's soft locks: files that exist while the lock is held. If the holder died on this
host, filelock removes the file.

A holder that hangs delays other processes by their timeouts.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.directory.places import LOCKS
from compcache.files import FILE_MODE
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.root import make_place
from compcache.settings import is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.files import Opened
    from compcache.store import Store

__all__ = ["try_lock", "wait_lock"]

#: The longest pause between two attempts: short compared with a compilation, and no load even with many waiters.
_LONGEST_PAUSE = 0.03
#: How often, in one attempt, another process may remove the lock file between `open` and `flock`.
_MAX_ATTEMPTS = 8
_MIN_LOGGED_SECONDS = 0.001
#: The errors of file systems without a working `flock`.
_NO_FLOCK = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY))
_CONTENTION = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)
#: The errors if the lock file was removed, by this host or by another one.
_REMOVED = (errno.ENOENT, errno.ESTALE)


class _HeldLocks(threading.local):
    """The locks that the current thread has taken, by path."""

    def __init__(self) -> None:
        self.locks: dict[str, _FlockLock | _SoftLock] = {}


_held = _HeldLocks()
#: The open lock files of the process, by descriptor. A forked child disowns them: a `flock` belongs to the open file, which it shares.
_open: dict[int, _FlockLock] = {}


def _disown_all() -> None:
    """Close all lock files in a forked child, because the locks belong to the parent."""
    for lock in list(_open.values()):
        lock.disown()
    _held.locks.clear()


@contextmanager
def try_lock(store: Store, name: str) -> Iterator[bool]:
    """Try to take a lock for background work, such as merges, without waiting.

    Yields:
        False if another process or thread holds the lock; True if this caller holds it, or if `wait_lock` would yield None.
    """
    with wait_lock(store, name, timeout=0) as owned:
        yield owned is not False


@contextmanager
def wait_lock(store: Store, name: str, *, timeout: float, until: Callable[[], bool] | None = None) -> Iterator[bool | None]:
    """Wait for a lock, at most `timeout` seconds, or until `until`, if given, returns true, and hold it while the context runs.

    Yields:
        True if this caller holds the lock, False if another process or thread holds it. None if locks do not work here or are disabled, or
        if the cache is read-only.
    """
    if not is_on("COMPCACHE_LOCKS", default=True) or store.readonly:
        yield None
        return
    path = _lock_path(store, name)
    lock: _FlockLock | _SoftLock = _FlockLock(store, path)
    # A thread never requests a lock that it holds. A leftover means that an interrupt prevented the release.
    leftover = _held.locks.pop(path, None)
    if leftover is not None:
        leftover.release()
    try:
        _held.locks[path] = lock
        owned: bool | None = None
        with suppress(OSError, NotImplementedError):
            make_place(store, LOCKS)
            started = time.monotonic()
            try:
                owned = _acquire_within(lock, timeout, until)
            except OSError as error:
                reraise_interrupt(error)
                if error.errno not in _NO_FLOCK:
                    raise
                lock.release()
                # A soft lock needs another name, because it is held as long as its file exists. Its directory is no link: it was opened.
                lock = _held.locks[path] = _SoftLock(_lock_path(store, f"soft {name}"))
                owned = _acquire_within(lock, timeout, until)
            waited = time.monotonic() - started
            if waited > _MIN_LOGGED_SECONDS:
                store.stats.waited(name, waited, owned=owned)
        yield owned
    finally:
        lock.release()
        if _held.locks.get(path) is lock:
            del _held.locks[path]


def _lock_path(store: Store, name: str) -> str:
    """Return the path of the file of a lock. Names of locks may contain any characters, so the file has a digest as its name."""
    return store.path(LOCKS, LOCKS.file_name(name_key(name).hex()))


def _acquire_within(lock: _FlockLock | _SoftLock, timeout: float, until: Callable[[], bool] | None) -> bool:
    """Try to take a lock for `timeout` seconds, or until `until`, if given, returns true. Return whether the lock was taken.

    Raise `OSError` if the file system does not support locks, or the lock file cannot be opened.
    """
    deadline = time.monotonic() + timeout
    pause = 0.002
    while not lock.acquire():
        remaining = deadline - time.monotonic()
        if remaining <= 0 or (until is not None and until()):
            return False
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return True


class _FlockLock:
    """A lock file that is locked with `flock`. The holder removes the file, because one file per function would accumulate.

    A process may lock a file that its former holder has just removed, and then tries again. A file whose path does not lead to it counts as
    removed, because NFS renames a removed file that a process of this host has open. So does a file without links, because NFS may look up
    its path in an old state of the directory.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._files = store.files
        self._path = path
        self._descriptor = -1
        self._opened: Opened | None = None
        self._held = False
        self._owner = os.getpid()

    def acquire(self) -> bool:
        """Try to take the lock, and return whether it was taken. See `_acquire_within` for the exception."""
        for _ in range(_MAX_ATTEMPTS):
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._opened = self._files.open_owned(self._path, flags, FILE_MODE)
                self._descriptor = self._opened.number
                _open[self._descriptor] = self
            try:
                if not self._try_flock():
                    return False
                if self._is_at_path():
                    self._held = True
                    return True
            except OSError as error:
                reraise_interrupt(error)
                if error.errno not in _REMOVED:
                    raise
            self._close()
        return False

    def _is_at_path(self) -> bool:
        """Return whether the open file is still the lock file. Raise `OSError` if there is none."""
        opened = self._files.fstat(self._descriptor)
        if not opened.st_nlink:
            return False
        current = self._files.lstat(self._path)
        return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)

    def _try_flock(self) -> bool:
        """Take the lock, and return True, or return False if another process holds it. Raise `OSError` for other problems."""
        import fcntl

        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            reraise_interrupt(error)
            if error.errno in _CONTENTION:
                return False
            raise
        return True

    def release(self) -> None:
        """Release the lock if it is held, and remove its file."""
        if os.getpid() != self._owner:  # this process was forked without Python's hook
            self.disown()
            return
        try:
            if self._held:
                self._files.unlink(self._path)
        except OSError as error:
            reraise_interrupt(error)
            return  # a leftover lock file is harmless
        finally:
            if self._held:
                self._unlock()
            self._held = False
            self._close()

    def disown(self) -> None:
        """Close the file without releasing the lock, which belongs to the parent process."""
        self._held = False
        self._close()

    def _unlock(self) -> None:
        """Unlock the file. Closing it would not release the lock while a forked child has the file open."""
        import fcntl

        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _close(self) -> None:
        """Close the file if it is open."""
        if self._descriptor >= 0:
            _open.pop(self._descriptor, None)
            self._descriptor = -1
            self._opened = None


class _SoftLock:
    """A soft lock of the filelock library."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock: Any = None

    def acquire(self) -> bool:
        """Try to take the lock, and return whether it was taken. See `_acquire_within` for the exception."""
        from filelock import SoftFileLock, Timeout

        if self._lock is None:
            self._lock = SoftFileLock(self._path, mode=FILE_MODE, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock if it is held. If that fails, filelock tries again when the object is deleted."""
        with suppress(OSError):
            if self._lock is not None:
                self._lock.release(force=True)
        self._lock = None
