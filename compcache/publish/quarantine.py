"""Sets damaged files aside, refuses what is not to be believed, and warns of both, once each."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from compcache import files as file_ops
from compcache.errors import CacheWarning, IntegrityError
from compcache.store import QUARANTINE

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["quarantine", "refuse", "require_real_directories", "warn", "warn_not_stored", "warn_once"]


def quarantine(store: Store, path: str, reason: str) -> IntegrityError:
    """Set a damaged file aside, warn, and return the exception that says so."""
    message = f"{path} is damaged: {reason}"
    if not store.readonly:
        target = store.path(QUARANTINE, f"{os.path.basename(path)}.{file_ops.unique_name()}")
        try:
            file_ops.make_directories(store.files, os.path.dirname(target))
            require_real_directories(store, os.path.dirname(target))
            store.files.rename(path, target)
            store.stats.count("corrupt")
            message += f"; it was moved to {target}"
        except OSError:
            message += "; it could not be moved away"
    warn_once(store, path, message)
    return IntegrityError(message, path=path, reason=reason)


def refuse(store: Store, path: str, reason: str) -> IntegrityError:
    """Warn of something that is not damaged but not to be believed; the exception that says so."""
    message = f"{path} is not used: {reason}"
    warn_once(store, path, message)
    return IntegrityError(message, path=path, reason=reason)


def require_real_directories(store: Store, path: str) -> None:
    """Refuse directories between the root and `path` (itself included) that are symbolic links.

    Raises:
        IntegrityError: one is.
    """
    while len(path) > len(store.root):
        try:
            mode = store.files.lstat(path).st_mode
        except FileNotFoundError:
            mode = 0
        if stat.S_ISLNK(mode):
            raise refuse(store, path, "it is a symbolic link, which is not followed")
        path = os.path.dirname(path)


def warn(message: str) -> None:
    """Issue a `CacheWarning`."""
    import warnings

    warnings.warn(message, CacheWarning, stacklevel=4)


def warn_not_stored(func_name: str, error: Exception) -> None:
    """Tell once that a compiled function works but could not be stored."""
    warn(f"the compiled function {func_name!r} was not stored and will be compiled again next time: {error}")


def warn_once(store: Store, path: str, message: str) -> None:
    """Warn, unless this cache object has warned about the same thing before."""
    if path not in store.complaints:
        store.complaints.add(path)
        warn(message)
