"""Unpacking of bundles that are layers: into the cache directory, or for this process alone if the directory cannot be written."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING

from compcache.bundles.unpack import import_bundle
from compcache.directory.places import BUNDLES
from compcache.errors import StorageError
from compcache.files import reraise_interrupt
from compcache.layers.unpacked_bundle import is_unpacked, name_of_state
from compcache.publish.atomic_file import make_directories, unique_name
from compcache.publish.root import prepare_root
from compcache.store import Store
from compcache.usage.whole_directories import remove_directory, unused_bundles

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["unpack_layer"]


def unpack_layer(store: Store, path: str, file: BinaryIO, place: str) -> str:
    """Unpack an open bundle, and return the directory with its modules.

    This is `place` in the cache directory if it can be written, else a directory that is removed at the exit of this process.

    Raises:
        FormatError: the file is not a bundle, or is damaged or truncated.
        StorageError: the bundle was changed in the meantime, or cannot be read.
        OSError: no directory can be written.
    """
    if not store.readonly and not store.exposed and _unpack(store, path, file, place):
        return place
    return _unpack_for_this_process(path, os.path.basename(place))


def _unpack(store: Store, path: str, file: BinaryIO, place: str) -> bool:
    """Unpack a bundle and rename the directory to `place`. Return whether `place` exists afterwards."""
    scratch = f"{store.temporary}/{unique_name()}"
    try:
        prepare_root(store)
        make_directories(store.files, store.directory(BUNDLES))
        make_directories(store.files, scratch)
        import_bundle(Store(scratch, files=store.files), path, (), as_layer=file)
        store.files.rename(scratch, place)
    except OSError as error:  # no space, no permission, or another process has made the directory
        reraise_interrupt(error)
        remove_directory(store, scratch)
        return is_unpacked(store, place)
    except BaseException:
        remove_directory(store, scratch)
        raise
    for unused in unused_bundles(store, time.time()):
        remove_directory(store, unused)
    return True


@functools.cache
def _unpack_for_this_process(path: str, name: str) -> str:
    """Unpack a bundle to a new directory, which this process removes at its exit, and return it. `name` identifies the bundle's state."""
    directory = tempfile.mkdtemp(prefix=f"compcache-{name[:8]}-")
    atexit.register(_remove, directory, os.getpid())
    with open(path, "rb") as file:
        if name_of_state(path, os.fstat(file.fileno())) != name:  # the owner and mode that were checked may have changed, too
            raise StorageError(f"the bundle {path} was changed while it was opened: open the cache again", path=path)
        import_bundle(Store(directory), path, (), as_layer=file)
    return directory


def _remove(directory: str, process: int) -> None:
    """Remove a directory, but not in forked children of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
