"""Quarantines damaged files, rejects untrusted ones, and issues one warning for each file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache.directory.places import QUARANTINE, module_id_of
from compcache.errors import IntegrityError
from compcache.interrupts import reraise_interrupt
from compcache.publish.atomic_file import make_directories, unique_name
from compcache.publish.removal import remove_from_volumes
from compcache.warning import warn

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["UntrustedFileError", "move_to_quarantine", "quarantine", "reject_file", "warn_not_stored", "warn_once"]


class UntrustedFileError(IntegrityError):
    """Raised when a file is intact, but not trusted: it lacks a required signature, or another user may have written it."""


def quarantine(store: Store, path: str, reason: str) -> IntegrityError:
    """Move a damaged file to quarantine, issue a warning once, and return the exception to raise.

    A read-only cache does not move the file. A file behind a symbolic link is rejected instead, because links are not followed.
    """
    link = store.files.first_link(os.path.dirname(path))
    if link is not None:
        return reject_file(store, link, "it is a symbolic link, which is not followed; replace it by a directory")
    message = f"{path} is damaged: {reason}"
    store.stats.refused(path, reason)
    if not store.readonly:
        try:
            message += f"; {move_to_quarantine(store, path)}"
        except OSError as error:
            reraise_interrupt(error)
            message += f"; it cannot be moved to quarantine ({error.strerror or error}): remove it"
    warn_once(store, path, message)
    return IntegrityError(message, path=path, reason=reason)


def move_to_quarantine(store: Store, path: str) -> str:
    """Move a damaged file to quarantine, and count it. Return a description of the action for messages.

    A module without a file of its own is marked as removed in its volume instead. The loader forgets a module that was moved.

    Raises:
        OSError: the file could not be moved, or exists neither at the path nor in a volume.
        StorageError: the volume could not be changed.
    """
    target = store.path(QUARANTINE, f"{os.path.basename(path)}.{unique_name()}")
    make_directories(store.files, os.path.dirname(target))
    module_id = module_id_of(os.path.basename(path))
    try:
        store.files.rename(path, target)
    except FileNotFoundError as error:
        reraise_interrupt(error)
        if module_id is None or not remove_from_volumes(store, module_id):
            raise
        store.stats.count("corrupt")
        return "it was removed from its volume"
    if module_id is not None:
        store.tell_gone(module_id)
    store.stats.count("corrupt")
    return f"it was moved to {target}"


def reject_file(store: Store, path: str, reason: str) -> IntegrityError:
    """Warn once that an intact but untrusted file is not used, and return the exception to raise."""
    message = f"{path} is not used: {reason}"
    store.stats.refused(path, reason)
    warn_once(store, path, message)
    return UntrustedFileError(message, path=path, reason=reason)


def warn_not_stored(store: Store, func_name: str, error: Exception) -> None:
    """Warn that a compiled function works but could not be stored. Each problem of a store object is reported once."""
    problem = str(error).rpartition(": ")[2]  # without the name of a file of this function
    effect = "was not stored, so it will be compiled again next time (further functions are not reported)"
    warn_once(store, problem, f"the compiled function {func_name!r} {effect}: {error}")


def warn_once(store: Store, path: str, message: str) -> None:
    """Warn, unless this store object has already warned about the path."""
    if store.is_first_warning(path):
        warn(message)
