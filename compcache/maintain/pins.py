"""Pins, which protect functions from pruning. A pin is a small file that contains the name of the function."""

from __future__ import annotations

from errno import ELOOP, ENOENT, ENOTDIR
from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.directory.places import PINS
from compcache.files import read_file
from compcache.interrupts import reraise_interrupt
from compcache.publish.removal import unlink
from compcache.publish.writer import publish_file

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["pin", "pinned", "unpin"]

_MAX_SIZE = 1 << 24  # bytes
_NO_PINS = (ENOENT, ENOTDIR, ELOOP)


def _file_name(func_name: str) -> str:
    return PINS.file_name(name_key(func_name).hex())


def pin(store: Store, func_name: str) -> bool:
    """Pin a function, and return whether it was not pinned before. Raise `StorageError` if the pin cannot be read or written."""
    is_new = store.read_file(PINS, _file_name(func_name)) is None
    if is_new:
        publish_file(store, PINS, _file_name(func_name), func_name.encode("utf-8", "surrogatepass"))
    return is_new


def unpin(store: Store, func_name: str) -> bool:
    """Remove the pin of a function, and return whether there was one. Raise `StorageError` if the cache is read-only or removal fails."""
    path = store.path(PINS, _file_name(func_name))
    store.require_writable(path)
    return unlink(store, path)


def pinned(store: Store) -> tuple[str, ...]:
    """Return the sorted names of the pinned functions, without invalid files. Raise `StorageError` if the pins cannot be read."""
    names = []
    directory = store.directory(PINS)
    try:
        for name in store.files.listdir(directory):
            if PINS.includes(name):
                text = _read_pin(store, f"{directory}/{name}")
                if _file_name(text) == name:
                    names.append(text)
    except OSError as error:
        reraise_interrupt(error)
        if error.errno not in _NO_PINS:
            raise store.unreadable_error(directory, error) from error
    return tuple(sorted(names))


def _read_pin(store: Store, path: str) -> str:
    """Return the function name in a pin file, or "" if the file was removed or is not a regular file. Raise other `OSError`s."""
    try:
        return read_file(store.files, path, _MAX_SIZE).decode("utf-8", "replace")
    except OSError as error:
        reraise_interrupt(error)
        if error.errno is not None and error.errno not in _NO_PINS:
            raise
        return ""
