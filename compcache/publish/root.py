"""The root of a cache directory. The first addition creates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.directory.places import LAYERS, TAG
from compcache.files import DIRECTORY_MODE
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.atomic_file import make_directories, publish

if TYPE_CHECKING:
    from compcache.directory.places import Place
    from compcache.store import Store

__all__ = ["make_place", "prepare_root"]

_CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This directory holds compiled code that compcache can make again.\n"
    b"# For information about cache directory tags see https://bford.info/cachedir/\n"
)


def prepare_root(store: Store) -> None:
    """Create the root directory if it does not exist, and with layers their directory, from which other caches know that it has layers.

    Only a directory that is created here gets a CACHEDIR.TAG, because backups skip it, and an existing directory may contain other files.

    Raises:
        UntrustedDirectoryError: another user has created the directory since it was opened.
        OSError: the directory could not be created.
    """
    if not store.check_root():
        created = make_directories(store.files, store.root)
        store.check_root()  # another process may have created it first
        if created:
            publish(store.files, store.temporary, store.path(TAG), [_CACHEDIR_TAG], sync=False)
    if store.layers:
        make_place(store, LAYERS)


def make_place(store: Store, place: Place) -> None:
    """Create the directory of a place, and the root if it is missing. See `prepare_root` for the exceptions."""
    directory = store.directory(place)
    try:
        with suppress(FileExistsError):
            store.files.mkdir(directory, DIRECTORY_MODE)
    except FileNotFoundError as error:
        reraise_interrupt(error)
        prepare_root(store)
        make_directories(store.files, directory)
