"""Unpacking of bundles that are layers: into the cache directory, or for this process alone if the directory cannot be written."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING

from compcache.bundles.unpack import import_bundle
from compcache.directory.places import BUNDLES
from compcache.errors import StorageError
from compcache.interrupts import reraise_interrupt
from compcache.layers.unpacked_bundle import touch_if_unpacked, unpacked_name
from compcache.processes.scratch import make_directory_until_exit
from compcache.publish.atomic_file import make_directories, unique_name
from compcache.publish.root import prepare_root
from compcache.store import Store
from compcache.usage.whole_directories import remove_directory, unused_bundles

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["unpack_layer"]


def unpack_layer(store: Store, path: str, file: BinaryIO, directory: str) -> str:
    """Unpack an open bundle and return the path of the directory with its modules.

    The result is `directory` if the cache directory can be written. Otherwise it is a temporary directory until this process exits.

    Raises:
        FormatError: the file is not a bundle, or is damaged or truncated.
        StorageError: the bundle was changed while it was opened, or cannot be read.
        OSError: no directory for the modules is writable, or the bundle cannot be opened again.
    """
    if not store.readonly and not store.exposed and _unpack_to_cache(store, path, file, directory):
        return directory
    return _unpack_for_this_process(path, os.path.basename(directory))


def _unpack_to_cache(store: Store, path: str, file: BinaryIO, directory: str) -> bool:
    """Unpack a bundle to `directory` in the cache directory, and remove unused unpacked bundles.

    Return False if a file cannot be written, and no other process has unpacked the bundle. See `import_bundle` for the exceptions.
    """
    scratch = f"{store.temporary}/{unique_name()}"
    try:
        prepare_root(store)
        make_directories(store.files, store.directory(BUNDLES))
        make_directories(store.files, scratch)
        import_bundle(Store(scratch, files=store.files), path, (), as_layer=file)
        store.files.rename(scratch, directory)
    except OSError as error:  # no space, no permission, or another process has made the directory
        reraise_interrupt(error)
        remove_directory(store, scratch)
        return touch_if_unpacked(store, directory)
    except BaseException:
        remove_directory(store, scratch)
        raise
    for unused in unused_bundles(store, time.time()):
        remove_directory(store, unused)
    return True


@functools.cache
def _unpack_for_this_process(path: str, name: str) -> str:
    """Unpack a bundle to a temporary directory that this process removes at exit, and return the directory's path.

    `name` is the result of `unpacked_name` for the state of the file that was checked.

    Raise `StorageError` if the file has changed since then. See `import_bundle` for other exceptions.
    """
    directory = make_directory_until_exit(f"compcache-{name[:8]}-")
    with open(path, "rb") as file:
        if unpacked_name(path, os.fstat(file.fileno())) != name:  # the owner and the mode were checked before, and may have changed
            raise StorageError(f"the bundle {path} was changed while it was opened: open the cache again", path=path)
        import_bundle(Store(directory), path, (), as_layer=file)
    return directory
