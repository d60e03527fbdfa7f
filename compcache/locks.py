"""Locks between processes (miss path: imports filelock).

A lock here saves work and never guards correctness: where locking does not work, or is switched off with
``COMPCACHE_LOCKS=0``, everything goes on without.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.files import make_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.store import Store

__all__ = ["locks_enabled", "try_lock", "wait_lock"]


def locks_enabled() -> bool:
    """Whether the environment allows lock files."""
    return os.environ.get("COMPCACHE_LOCKS", "1").strip().lower() not in ("0", "off", "no", "false")


@contextmanager
def try_lock(store: Store, name: str) -> Iterator[bool]:
    """Hold a lock of the cache if nobody else does; yields whether it is held (or locking does not work)."""
    with wait_lock(store, name, timeout=0) as owned:
        yield owned is not False


@contextmanager
def wait_lock(store: Store, name: str, *, timeout: float) -> Iterator[bool | None]:
    """Wait for a lock of the cache, at most `timeout` seconds.

    Yields:
        True where it is held, False where somebody else kept it all the time, None where it does not work.
    """
    if not locks_enabled() or store.readonly:
        yield None
        return
    from filelock import FileLock, Timeout

    directory = store.path("locks")
    lock = FileLock(f"{directory}/{name_key(name).hex()}.lock", timeout=timeout, thread_local=False)
    owned: bool | None = True
    try:
        make_directories(store.files, directory)
        lock.acquire(poll_interval=0.01)
    except Timeout:
        owned = False
    except (OSError, NotImplementedError):
        owned = None
    try:
        yield owned
    finally:
        lock.release(force=True)
