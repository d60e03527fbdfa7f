"""The directory with an unpacked bundle, which serves as the layer. The dynamic linker can map only whole files, not members.

The cache directory has one such directory for each state of the bundle's file. `compcache.bundles.unpacked_layer` makes it.
"""

from __future__ import annotations

import os
import stat
import time

from compcache.digest import digest
from compcache.directory.places import BUNDLES
from compcache.errors import StorageError, UntrustedDirectoryError
from compcache.files import WRITABLE_BY_OTHERS
from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from compcache.store import Store

__all__ = ["ensure_unpacked", "touch_if_unpacked", "unpacked_name"]

_DAY = 86400.0


def ensure_unpacked(path: str, store: Store) -> str:
    """Unpack a bundle that is a layer of `store` unless it is already unpacked, and return the directory with its modules.

    Raises:
        FormatError: the file is not a bundle, or is damaged or truncated.
        UntrustedDirectoryError: another user could have written the bundle, and `store` has neither `trust` nor a key.
        StorageError: the bundle cannot be read, or there is no writable directory to unpack it into.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe may have replaced it
            return _ensure_unpacked(path, file, store)
    except OSError as error:
        reraise_interrupt(error)
        if isinstance(error, StorageError | UntrustedDirectoryError):
            raise
        raise StorageError(
            f"cannot use the bundle {path} as a layer ({error.strerror or error}): make it readable", path=path, errno=error.errno
        ) from error


def _ensure_unpacked(path: str, file: BinaryIO, store: Store) -> str:
    """Unpack an open bundle unless it is already unpacked. Return the directory with its modules; see `ensure_unpacked`."""
    status = os.fstat(file.fileno())
    _require_trust(path, status, store)
    directory = store.path(BUNDLES, unpacked_name(path, status))
    if not store.exposed and touch_if_unpacked(store, directory):  # in an exposed directory, other users could have replaced it
        return directory
    from compcache.bundles.unpacked_layer import unpack_layer

    return unpack_layer(store, path, file, directory)


def unpacked_name(path: str, status: os.stat_result) -> str:
    """Return the name of the directory for an unpacked bundle. The name changes with the path and the status of the bundle's file."""
    state = f"{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}".encode()
    return BUNDLES.file_name("-".join([digest([value], size=16).hex() for value in (os.fsencode(path), state)]))


def _require_trust(path: str, status: os.stat_result, store: Store) -> None:
    """Check that other users cannot have written a bundle. A store that trusts the directory or requires signatures skips the check.

    Raise `UntrustedDirectoryError` if another user owns the file, owns a symbolic link to it, or can write to it.
    """
    if store.trust or store.stamp_key:
        return
    user = os.geteuid()
    other_owners = {status.st_uid, os.lstat(path).st_uid} - {user, 0}
    if other_owners:
        reason = f"the bundle {path} belongs to user {other_owners.pop()}, not to you ({user}): loading from it would run code of that user"
    elif status.st_mode & WRITABLE_BY_OTHERS:
        mode = f"{status.st_mode & 0o7777:o}"
        reason = f"the bundle {path} can be written by other users (mode {mode}): loading from it would run their code"
    else:
        return
    advice = "pass trusted_keys with the keys that you trust, or pass trust=True if you trust all users who can write to the file"
    raise UntrustedDirectoryError(f"{reason}; {advice}", path=path, reason=reason)


def touch_if_unpacked(store: Store, directory: str) -> bool:
    """Update the modification time of an unpacked bundle, at most once a day, to record its use.

    Return whether `directory` is a directory whose owner is trusted. Otherwise leave it unchanged.
    """
    with suppress(FileNotFoundError):
        status = store.files.stat(directory)
        if not stat.S_ISDIR(status.st_mode) or store.is_foreign(status):
            return False  # a link, a file or another user's directory, which this user's cache did not create
        if status.st_mtime < time.time() - _DAY and not store.readonly:
            descriptor = store.files.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                store.files.utime(descriptor)
            finally:
                store.files.close(descriptor)
        return True
    return False
