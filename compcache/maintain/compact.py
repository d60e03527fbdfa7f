"""Compaction: packs small modules into few files, and removes modules whose functions newer modules realize with the same content.

A process that compacts may be killed at any point. A volume becomes visible by one rename, without modules that another process has
removed in the meantime (`compcache.publish.volumes.write_volume`). The files of its modules are removed after the rename.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from itertools import groupby
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompcacheError, FormatError, StorageError
from compcache.formats.index import FUNCTION
from compcache.hit.target import path_opener
from compcache.interrupts import reraise_interrupt, suppress
from compcache.maintain.packing import Packing
from compcache.maintain.prune import rewrite_index
from compcache.maintain.remove import remove_modules
from compcache.maintain.report_types import CompactReport
from compcache.processes.detached import LateFiles
from compcache.publish import index_merge
from compcache.publish.locks import wait_lock
from compcache.publish.module_lists import ModuleLists
from compcache.publish.open_segments import readable_segments
from compcache.store import Store
from compcache.usage.module_files import files_of_directory
from compcache.usage.size_estimate import remember_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.usage.module_files import Progress

__all__ = ["GRACE", "compact", "compact_at_low_priority"]

#: The seconds for which a file stays beside its volume, for processes on other hosts that do not see the volume yet.
GRACE = 10.0
_LOCK_SECONDS = 1.0
_RANGE = 1 << 13  # index entries in memory at a time


def compact(store: Store, *, grace: float = GRACE, progress: Progress | None = None) -> CompactReport:
    """Compact a cache, and return a report; see `Cache.compact`.

    Raises:
        StorageError: the cache is read-only, another process compacts it, or a file cannot be written.
        TypeError: `grace` is not a number.
        ValueError: `grace` is negative, NaN, or longer than a process can wait.
    """
    store.require_writable()
    if not isinstance(grace, (int, float)):
        raise TypeError(f"grace must be a number of seconds, not {type(grace).__name__}")
    if not 0 <= grace <= TIMEOUT_MAX:
        raise ValueError(f"grace must be from 0 to {TIMEOUT_MAX:.0f} seconds, not {grace!r}")
    started = time.perf_counter()
    with _storage_errors(store), wait_lock(store, "compact", timeout=_LOCK_SECONDS) as owned:
        if owned is False:
            raise StorageError(f"another process is compacting the cache {store.root}; try again later", path=store.root)
        before = _measure_sizes(store)
        merged = _merge_duplicates(store)
        packing = Packing(store, progress)
        packing.write()
        if packing.has_files_to_remove():
            time.sleep(grace)
            packing.remove_old()
            rewrite_index(store, (), resized=True)
        after = _measure_sizes(store)
        remember_size(store, after.size_of_modules)
    return CompactReport(
        packed=packing.packed, merged=tuple([module_id.hex() for module_id in merged]), modules=after.modules,
        size_before=before.size, size_after=after.size, files_before=before.files, files_after=after.files,
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def compact_at_low_priority(root: str, *, trust: bool) -> None:
    """Compact a cache at low priority. `compcache.maintain.size_limit` runs this function in a subprocess.

    `trust` is the argument of `Cache`. Side effect: the calling process keeps the low priority. See `Store` and `compact` for exceptions.
    """
    os.nice(5)
    compact(Store(root, files=LateFiles(), trust=trust, open_beneath=path_opener()), grace=GRACE)


@contextmanager
def _storage_errors(store: Store) -> Iterator[None]:
    """Convert an `OSError` that the block raises into a `StorageError`. Errors of compcache are not converted."""
    try:
        yield
    except OSError as error:
        reraise_interrupt(error)
        if isinstance(error, CompcacheError):
            raise
        message = f"cannot compact the cache {store.root}: {error.strerror or error}; no module was lost, so it can be compacted again"
        raise StorageError(message, path=str(error.filename or store.root), errno=error.errno) from error


class _Measured(NamedTuple):
    """Numbers and total sizes in bytes of the modules and of the files that hold them."""

    modules: int
    size_of_modules: int
    files: int
    size: int


def _measure_sizes(store: Store) -> _Measured:
    """Count the modules of a cache and their files, and add up their sizes. Raise `OSError` if a volume cannot be read."""
    modules = size = files = size_of_files = 0
    for fan in store.fans():
        sizes = {module_id: status.st_size for module_id, status in files_of_directory(store, fan).items()}
        files += len(sizes)
        size_of_files += sum(sizes.values())
        for module_id, (module_size, *_) in store.volumes.of_directory(fan).items():
            sizes.setdefault(module_id, module_size)
        modules += len(sizes)
        size += sum(sizes.values())
    volumes = [volume.status.st_size for volume in store.volumes.current()]
    return _Measured(modules, size, files + len(volumes), size_of_files + sum(volumes))


def _merge_duplicates(store: Store) -> list[bytes]:
    """Remove modules whose functions are all in newer modules, with the same content and for the same hosts.

    Modules with functions of unknown content, and modules that an entry of data requires, stay.

    Return the ids of the removed modules. Raise `StorageError` if a module could not be removed.
    """
    newer: dict[bytes, set[bytes]] = {}
    for *older, newest in _modules_by_content(store):
        for module_id in older:
            newer.setdefault(module_id, set()).add(newest)
    if not newer:
        return []
    # A module that is the newest for one of its functions stays, although others are newer for its other functions.
    surplus = newer.keys() - {newest for *_, newest in _modules_by_content(store) if newest in newer}
    lists = ModuleLists(store)
    usable = [module_id for module_id in sorted(surplus) if all(_is_usable(store, module) for module in newer[module_id])]
    duplicates = [module_id for module_id in usable if next(lists.entries_requiring(module_id), None) is None]
    return remove_modules(store, duplicates) if duplicates else []


def _modules_by_content(store: Store) -> Iterator[list[bytes]]:
    """Yield the ids of the modules that hold the same function with the same content and requirement, the newest last."""
    for _, entries in groupby(_function_entries(store), key=_content_key):
        additions = sorted([(order, module_id) for _, module_id, _, _, order, _ in map(FUNCTION.unpack, entries)])
        if additions:
            yield [module_id for _, module_id in additions]


def _content_key(entry: bytes) -> bytes:
    """Return a key that is equal for entries with equal name, requirement and content. An entry of unknown content has a unique key."""
    name, module_id, offset, requirement, _, content = FUNCTION.unpack(entry)
    key: bytes = name + requirement + content
    return key if any(content) else key + module_id + offset.to_bytes(4, "little")


def _function_entries(store: Store) -> Iterator[bytes]:
    """Yield the function entries of the index, sorted by name, requirement and content. Of repeated additions, yield only the latest."""
    segments = readable_segments(store.index)
    bits = (sum(segment.functions.count for segment in segments) // _RANGE).bit_length()
    for number in range(1 << bits):
        entries = {entry for segment in segments for entry in segment.functions.entries_of_range(number, bits)}
        yield from sorted(index_merge.newest_additions(entries), key=_content_key)


def _is_usable(store: Store, module_id: bytes) -> bool:
    """Return whether a module exists, can be read, and is intact."""
    with suppress(FileNotFoundError, CompcacheError, FormatError):
        store.open_module(module_id, leave_stamp=False).close()
        return True
    return False
