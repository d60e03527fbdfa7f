"""Removes module files and other files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from compcache.directory.places import GONE, SIGNATURES, VOLUMES
from compcache.errors import StorageError
from compcache.files import FILE_MODE
from compcache.formats.volume import encode_removed
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from compcache.directory.places import Place
    from compcache.store import Store

__all__ = ["append", "remove_file", "remove_from_volumes", "unlink"]


#: How often a removal lists the volumes at most. Usually it lists them twice, and once more for each volume that appears meanwhile.
_ATTEMPTS = 16


def remove_file(store: Store, module_id: bytes) -> bool:
    """Remove a module and its signatures, and return whether the module existed. Mapped code stays mapped. Later look-ups miss the module.

    Raise `StorageError` if the module could not be removed.
    """
    store.tell_gone(module_id)
    existed = unlink(store, store.module_path(module_id))
    if not remove_from_volumes(store, module_id) and not existed:
        return False
    with suppress(OSError):  # few modules have a signature
        store.files.unlink(store.path(SIGNATURES, SIGNATURES.file_name(module_id.hex())))
    return True


def remove_from_volumes(store: Store, module_id: bytes) -> bool:
    """Remove a module from all volumes, including volumes that are being written, and return whether a volume contained it.

    The loop ends when a listing after the last mark shows no further volume to mark, or after `_ATTEMPTS` listings. A volume whose list
    appears later is safe, because its writer then checks whether the module still exists. See `compcache.publish.volumes.write_volume`.

    Raise `StorageError` if a mark could not be written.
    """
    marked: set[str] = set()
    removed = False
    try:
        for _ in range(_ATTEMPTS):
            lists = store.volumes.lists_to_mark(module_id)
            if marked.issuperset(lists):
                break
            for name in lists.keys() - marked:
                append(store, GONE, name, encode_removed(module_id))
            marked.update(lists)
            removed = removed or any(lists.values())
    except OSError as error:
        reraise_interrupt(error)
        path = store.directory(VOLUMES)
        message = f"cannot remove module {module_id.hex()} from {path}: {error.strerror or error}"
        raise StorageError(message, path=path, errno=error.errno) from error
    return removed


def append(store: Store, place: Place, file_name: str, data: bytes, *, sync: bool = False) -> None:
    """Append data to a small file in one write. Create the file if it does not exist. With `sync`, sync the file to disk.

    Raise `OSError` if the data could not be written completely.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = store.files.open_owned(store.path(place, file_name), flags, FILE_MODE)
    if data and store.files.write(opened.number, data) < len(data):  # the disk is almost full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if sync:
        store.files.fsync(opened.number)


def unlink(store: Store, path: str) -> bool:
    """Remove a file, and return whether it existed. Raise `StorageError` if the file could not be removed."""
    try:
        store.files.unlink(path)
    except FileNotFoundError as error:
        reraise_interrupt(error)
        return False
    except OSError as error:
        reraise_interrupt(error)
        raise StorageError(f"cannot remove {path}: {error.strerror or error}", path=path, errno=error.errno) from error
    return True
