"""Removes module files and other files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import StorageError
from compcache.files import reraise_interrupt
from compcache.store import SIGNATURES

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["remove_file", "unlink"]


def remove_file(store: Store, module_id: bytes) -> bool:
    """Remove the file of a module, and its signatures; return whether it existed. Mapped code stays mapped; later look-ups miss it.

    Raises:
        StorageError: it could not be removed.
    """
    store.tell_gone(module_id)
    if not unlink(store, store.module_path(module_id)):
        return False
    try:
        store.files.unlink(store.path(SIGNATURES, SIGNATURES.file_name(module_id.hex())))
    except OSError as error:
        # It has no signature.
        reraise_interrupt(error)
    return True


def unlink(store: Store, path: str) -> bool:
    """Remove a file; return whether it existed.

    Raises:
        StorageError: it could not be removed.
    """
    try:
        store.files.unlink(path)
    except FileNotFoundError as error:
        reraise_interrupt(error)
        return False
    except OSError as error:
        reraise_interrupt(error)
        raise StorageError(f"cannot remove {path}: {error.strerror or error}", path=path, errno=error.errno) from error
    return True
