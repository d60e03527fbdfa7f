"""Unpacks bundles that are layers: into the cache directory, or, if that cannot be written, for this process alone."""

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
    """Unpack the open bundle to `place` in the cache directory, or to a directory that is removed with this process.

    Returns:
        The directory.

    Raises:
        FormatError: the file is not a bundle, or a part of it is missing.
        OSError: no directory can be written to.
    """
    if not store.readonly and not store.exposed and _unpack(store, path, file, place):
        return place
    return _for_this_process(path, os.path.basename(place))


def _unpack(store: Store, path: str, file: BinaryIO, place: str) -> bool:
    """Make the directory by one rename; return whether it exists afterwards."""
    scratch = f"{store.temporary}/{unique_name()}"
    try:
        prepare_root(store)
        make_directories(store.files, store.directory(BUNDLES))
        make_directories(store.files, scratch)
        import_bundle(Store(scratch, files=store.files), path, (), as_layer=file)
        store.files.rename(scratch, place)
    except OSError as error:  # no space, no permission; or another process was as fast
        reraise_interrupt(error)
        remove_directory(store, scratch)
        return is_unpacked(store, place)
    except BaseException:
        remove_directory(store, scratch)
        raise
    for other in unused_bundles(store, time.time()):
        remove_directory(store, other)
    return True


@functools.cache
def _for_this_process(path: str, name: str) -> str:
    """Return a directory of this process alone, removed at its exit. `name` distinguishes states of the bundle."""
    place = tempfile.mkdtemp(prefix=f"compcache-{name[:8]}-")
    atexit.register(_remove, place, os.getpid())
    with open(path, "rb") as file:
        if name_of_state(path, os.fstat(file.fileno())) != name:  # the check of its writers concerned its earlier state
            raise StorageError(f"the bundle {path} was changed while it was opened: open the cache again", path=path)
        import_bundle(Store(place), path, (), as_layer=file)
    return place


def _remove(place: str, process: int) -> None:
    if os.getpid() == process:  # and not in its forked children
        shutil.rmtree(place, ignore_errors=True)
