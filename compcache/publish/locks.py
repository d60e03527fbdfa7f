"""Locks between processes (miss path: imports fcntl, or filelock where that is missing).

A lock here saves work and never guards correctness: where locking does not work, or is switched off with
``COMPCACHE_LOCKS=0``, work proceeds without locks. The kernel releases a lock when its holder dies; a holder
that hangs delays the others by their timeouts. Forked children of a holder do not hold its locks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.files import FILE_MODE, reraise_interrupt
from compcache.publish.atomic_file import make_directories
from compcache.store import LOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compcache.files import Opened
    from compcache.store import Store

__all__ = ["locks_enabled", "try_lock", "wait_lock"]

#: The pause between two attempts grows to this: short compared with a compilation, no load with many waiters.
_LONGEST_PAUSE = 0.03
#: How often in one attempt a holder may remove the lock file between this process's opening and locking it.
_ATTEMPTS = 8
_WORTH_LOGGING = 0.001  # seconds
_CONTENTION = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)


class _HeldLocks(threading.local):
    """The locks that this thread has taken, by path."""

    def __init__(self) -> None:
        self.locks: dict[str, _FlockLock | _PortableLock] = {}


_held = _HeldLocks()
#: The open lock files of the process, to disown in a child: `flock` belongs to the open file, which a child shares.
_open: dict[int, _FlockLock] = {}


def _disown() -> None:
    """In a forked child: give up the locks, which belong to its parent and must not outlive it."""
    for lock in list(_open.values()):
        lock.disown()
    _held.locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def locks_enabled() -> bool:
    """Whether the environment allows lock files."""
    return os.environ.get("COMPCACHE_LOCKS", "1").strip().lower() not in ("0", "off", "no", "false")


@contextmanager
def try_lock(store: Store, name: str) -> Iterator[bool]:
    """Take a lock of the cache unless it is held elsewhere; yields whether this caller has it (or locks do not work)."""
    with wait_lock(store, name, timeout=0) as owned:
        yield owned is not False


@contextmanager
def wait_lock(
    store: Store, name: str, *, timeout: float, until: Callable[[], bool] | None = None
) -> Iterator[bool | None]:
    """Wait for a lock of the cache, for at most `timeout` seconds or until `until` returns true.

    Yields:
        True: this caller has the lock. False: another holder kept it. None: locks do not work here.
    """
    if not locks_enabled() or store.readonly:
        yield None
        return
    path = store.path(LOCKS, LOCKS.file_name(name_key(name).hex()))
    lock = _FlockLock(store, path) if os.name == "posix" else _PortableLock(path)
    # A thread never asks for a lock that it holds. If it seems to, an interrupt came between acquiring and releasing.
    lost = _held.locks.pop(path, None)
    if lost is not None:
        lost.release()
    try:
        _held.locks[path] = lock
        owned: bool | None = None
        try:
            make_directories(store.files, store.directory(LOCKS))
            started = time.monotonic()
            owned = _wait(lock, timeout, until)
            waited = time.monotonic() - started
            if waited > _WORTH_LOGGING:
                store.stats.waited(name, waited, owned=owned)
        except (OSError, NotImplementedError) as error:
            reraise_interrupt(error)
        yield owned
    finally:
        lock.release()
        if _held.locks.get(path) is lock:
            del _held.locks[path]


def _wait(lock: _FlockLock | _PortableLock, timeout: float, until: Callable[[], bool] | None) -> bool:
    deadline = time.monotonic() + timeout
    pause = 0.002
    while not lock.acquire():
        left = deadline - time.monotonic()
        if left <= 0 or (until is not None and until()):
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return True


class _FlockLock:
    """A lock file held with `flock` and removed by its holder: with a lock per function they would pile up.

    A waiter that gets the lock of a file that was removed meanwhile notices that by its link count, and retries.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._files = store.files
        self._path = path
        self._descriptor = -1
        self._opened: Opened | None = None
        self._held = False
        self._owner = os.getpid()

    def acquire(self) -> bool:
        """Try to take the lock; whether it is held now. Raises `OSError` if the file system has no locks."""
        for _ in range(_ATTEMPTS):
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._opened = self._files.open_owned(self._path, flags, FILE_MODE)
                self._descriptor = self._opened.number
                _open[self._descriptor] = self
            if not self._lock():
                return False
            if self._files.fstat(self._descriptor).st_nlink:
                self._held = True
                return True
            self._close()
        return False

    def _lock(self) -> bool:
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
        """Release the lock if it is held."""
        if os.getpid() != self._owner:  # forked without the hook of Python
            self.disown()
            return
        try:
            if self._held:
                self._files.unlink(self._path)
        except OSError as error:
            reraise_interrupt(error)
            return  # a leftover lock file does no harm
        finally:
            if self._held:
                self._unlock()
            self._held = False
            self._close()

    def disown(self) -> None:
        """Close the file without releasing the lock, which belongs to another process."""
        self._held = False
        self._close()

    def _unlock(self) -> None:
        """Release the lock even if a child has the file open: closing it here would not release it."""
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _close(self) -> None:
        if self._descriptor >= 0:
            _open.pop(self._descriptor, None)
            self._descriptor = -1
            self._opened = None


class _PortableLock:
    """A lock file held with filelock, for systems without `flock`."""

    def __init__(self, path: str) -> None:
        from filelock import FileLock

        self._lock = FileLock(path, timeout=0, thread_local=False)

    def acquire(self) -> bool:
        """Try to take the lock; whether it is held now."""
        from filelock import Timeout

        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock if it is held."""
        self._lock.release(force=True)
