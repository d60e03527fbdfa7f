"""Pins, which keep functions from being pruned. Each is a small file that holds the function's name."""

from __future__ import annotations

from errno import ELOOP, ENOENT, ENOTDIR
from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.directory.places import PINS
from compcache.files import read_file, reraise_interrupt
from compcache.publish.removal import unlink
from compcache.publish.writer import publish_file

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["pin", "pinned", "unpin"]

_MAX_SIZE = 1 << 24
_NO_PINS = (ENOENT, ENOTDIR, ELOOP)


def _file_name(func_name: str) -> str:
    return PINS.file_name(name_key(func_name).hex())


def pin(store: Store, func_name: str) -> bool:
    """Pin a function; return whether it was not pinned before."""
    new = store.read_file(PINS, _file_name(func_name)) is None
    if new:
        publish_file(store, PINS, _file_name(func_name), func_name.encode("utf-8", "surrogatepass"))
    return new


def unpin(store: Store, func_name: str) -> bool:
    """Remove a pin; return whether there was one."""
    path = store.path(PINS, _file_name(func_name))
    store.require_writable(path)
    return unlink(store, path)


def pinned(store: Store) -> tuple[str, ...]:
    """Return the pinned functions, sorted; files that are not valid pins are ignored.

    Raises:
        StorageError: they cannot be read; what is pinned is then not known.
    """
    found = []
    directory = store.directory(PINS)
    try:
        for name in store.files.listdir(directory):
            if PINS.includes(name):
                text = _read(store, f"{directory}/{name}")
                if _file_name(text) == name:
                    found.append(text)
    except OSError as error:
        reraise_interrupt(error)
        if error.errno not in _NO_PINS:
            raise store.unreadable(directory, error) from error
    return tuple(sorted(found))


def _read(store: Store, path: str) -> str:
    try:
        return read_file(store.files, path, _MAX_SIZE).decode("utf-8", "replace")
    except OSError as error:
        reraise_interrupt(error)
        if error.errno is not None and error.errno not in _NO_PINS:
            raise
        return ""  # unpinned meanwhile, or not a regular file
