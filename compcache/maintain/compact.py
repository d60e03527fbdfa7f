"""Puts small modules together: many in one file, each as it was published, and of several that realize the same functions one.

Being killed at any point is safe: a volume becomes visible by one rename, without what somebody else removes meanwhile
(`compcache.publish.volumes.write_volume`), and the files that it has are removed behind that.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompcacheError, FormatError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats.footer import require_intact
from compcache.formats.index import FUNCTION, Stamp
from compcache.interrupts import suppress
from compcache.maintain.prune import rewrite_index
from compcache.maintain.remove import remove_modules
from compcache.maintain.report_types import CompactReport
from compcache.publish import index_merge
from compcache.publish.locks import wait_lock
from compcache.publish.module_lists import ModuleLists, forget_list
from compcache.publish.packs import stored_packs
from compcache.publish.removal import unlink
from compcache.publish.volumes import Content, contents_of, mark_gone, remove_lists, remove_volume, write_volume
from compcache.store import MODULE_FILES, MODULES, SIGNATURES
from compcache.usage.module_files import files_of_directory, modules_by_directory
from compcache.usage.size_estimate import remember_size

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from compcache.formats.volume import Volume
    from compcache.store import ModuleFile, Store
    from compcache.usage.module_files import Progress

__all__ = ["GRACE", "SMALL", "compact"]

#: Larger files stay as they are: processes share the memory of what they map of a file, and not of what they read of a volume.
SMALL = 1 << 15
#: For how many seconds a file stays beside the volume that has it: for those on other hosts who do not see the volume yet.
GRACE = 10.0
_LOCK_SECONDS = 1.0
#: A volume is written again once so much of it is gone; with what is added, if it has so many times its bytes at most, or these.
_DEAD, _GROWTH, _LITTLE = 0.5, 2, 1 << 20
_RANGE = 1 << 13


def compact(store: Store, *, grace: float = GRACE, progress: Progress | None = None) -> CompactReport:
    """See `Cache.compact`."""
    store.require_writable()
    if not isinstance(grace, (int, float)):
        raise TypeError(f"grace must be a number of seconds, not {type(grace).__name__}")
    if not grace >= 0:
        raise ValueError(f"grace must be a number of seconds that is not negative, not {grace!r}")
    started = time.perf_counter()
    with _storing(store), wait_lock(store, "compact", timeout=_LOCK_SECONDS) as owned:
        if owned is False:
            raise StorageError(f"another process compacts {store.root}: nothing was done; try again when it is done", path=store.root)
        before = _measure(store)
        merged = _merge_duplicates(store)
        work = _Compaction(store, progress)
        work.write()
        if work.replaces_anything():
            time.sleep(grace)
            work.remove_old()
            _forget_lists(store)
            rewrite_index(store, ())
        after = _measure(store)
        remember_size(store, after.size_of_modules)
    return CompactReport(
        packed=len(work.packed), merged=tuple([module_id.hex() for module_id in merged]), modules=after.modules,
        size_before=before.size, size_after=after.size, files_before=before.files, files_after=after.files,
        seconds=time.perf_counter() - started,
    )  # fmt: skip


@contextmanager
def _storing(store: Store) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reraise_interrupt(error)
        if isinstance(error, CompcacheError):
            raise
        message = f"cannot compact {store.root}: {error.strerror or error}; what was stored is still there"
        raise StorageError(message, path=str(error.filename or store.root), errno=error.errno) from error


class _Measured(NamedTuple):
    """The number of modules, their sizes together as listings show them, the number of files that hold them, and the size of these."""

    modules: int
    size_of_modules: int
    files: int
    size: int


def _measure(store: Store) -> _Measured:
    modules = size = 0
    for _, found in modules_by_directory(store):
        modules += len(found)
        size += sum(status.size for status in found.values())
    files = [status.st_size for fan in store.directories() for status in files_of_directory(store, fan).values()]
    files += [volume.status.st_size for volume in store.volumes.current()]
    return _Measured(modules, size, len(files), sum(files))


def _forget_lists(store: Store) -> None:
    """Remove the lists that say what modules take; they are made again."""
    for segment in index_merge.readable(store.index):
        forget_list(store, segment.name)
    with suppress(OSError):
        store.files.unlink(store.path(MODULE_FILES))


class _Compaction:
    """One run. `packed` has the modules of the new volume that were files, with what these were."""

    def __init__(self, store: Store, progress: Progress | None) -> None:
        self._store = store
        self._progress = progress
        self._old: list[Volume] = []
        self._known: list[tuple[bytes, os.stat_result]] = []  # files of what a volume has already
        self._entries: list[bytes] = []
        self._described: dict[bytes, ModuleFile] = {}  # what the index can vouch for
        self._seen: set[bytes] = set()
        self.packed: dict[bytes, os.stat_result] = {}
        self.volume: Volume | None = None

    def replaces_anything(self) -> bool:
        """Return whether there are files to remove."""
        return bool(self.packed or self._old or self._known or self._store.volumes.replaced())

    def write(self) -> None:
        """Publish a volume of all small files, and of small volumes, if that is worth it."""
        store = self._store
        small = list(self._small_files())
        self._old = self._choose(sum(status.st_size for _, status in small))
        self.volume = write_volume(store, self._contents(small), self._old)
        if self.volume is None:
            return
        self._write_stamps()

    def _small_files(self) -> Iterator[tuple[bytes, os.stat_result]]:
        packs = stored_packs(self._store)
        for fan in self._store.directories():
            for module_id, status in sorted(files_of_directory(self._store, fan).items()):
                if status.st_size <= SMALL and module_id not in packs and not self._store.is_foreign(status):
                    yield module_id, status

    def _choose(self, added: int) -> list[Volume]:
        """Return the volumes to write again: those that are mostly gone, and small ones beside what is added, a tenth of it when
        compressed.
        """
        chosen, size = [], added // 10
        for volume in sorted(self._store.volumes.current(), key=lambda volume: volume.status.st_size):
            dead = len(volume.gone()) >= _DEAD * volume.table.count
            if self._store.volumes.is_own(volume) and (dead or (added and volume.status.st_size <= max(_LITTLE, _GROWTH * size))):
                chosen.append(volume)
                size += volume.status.st_size
        return chosen

    def _contents(self, small: list[tuple[bytes, os.stat_result]]) -> Iterator[Content]:
        for number, (module_id, status) in enumerate(small, 1):
            content = self._read(module_id, status.st_mtime)
            known = self._store.volumes.find(module_id)
            if content is not None and known is not None and known[0] not in self._old and self._store.volumes.is_own(known[0]):
                if known[0].content(known[1]) == content[1:3]:
                    self._known.append((module_id, status))
                    continue
                mark_gone(self._store, known[0], [module_id])  # with other notes than the file, which goes before it
            if content is not None and self._described[module_id].volume is None:  # else it was removed since it was listed
                self.packed[module_id] = status
                self._seen.add(module_id)
                yield content
            if self._progress is not None:
                self._progress(number, len(small))
        for content in chain.from_iterable(map(contents_of, self._old)):
            if content.module_id not in self._seen:
                self._seen.add(content.module_id)
                self._read(content.module_id, content.modified)
                yield content

    def _read(self, module_id: bytes, modified: float) -> Content | None:
        """Return a module that this cache uses, and that is intact; None for others."""
        store = self._store
        try:
            with store.open_module(module_id, leave_stamp=False) as module:
                require_intact(module.footer(), module_id, module.read)
                data = module.read(0, module.size)
                self._described[module_id] = module
        except (FileNotFoundError, CompcacheError) as error:
            reraise_interrupt(error)
            return None
        return Content(module_id, data, store.signatures_of(module_id), modified)

    def _write_stamps(self) -> None:
        """Let the index vouch for the modules that were just read, as for published files."""
        store, volume = self._store, self.volume
        assert volume is not None
        stamp = Stamp.of(volume.status)
        entries = []
        for module_id in sorted(self._seen & self._described.keys()):
            functions = max([entry.functions for entry in index_merge.module_entries(store.index, module_id)], default=0)
            entries.append(store.entry_of(self._described[module_id], stamp, functions).encode())
        index_merge.publish_segment(store.index, None, (), entries, ())
        store.index.refresh()

    def remove_old(self) -> None:
        """Remove the files that are in the volume unchanged, and the volumes that are replaced or empty."""
        store = self._store
        for module_id, known in (*self.packed.items(), *self._known):
            path = store.module_path(module_id)
            try:
                status = store.files.stat(path)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                continue
            found = store.volumes.find(module_id)
            if Stamp.of(status) == Stamp.of(known) and found is not None and store.volumes.is_own(found[0]):
                unlink(store, path)
                unlink(store, store.path(SIGNATURES, SIGNATURES.file_name(module_id.hex())))
        for volume in (*store.volumes.replaced(), *(self._old if self.volume is None else ())):
            remove_volume(store, volume)
        remove_lists(store)
        for fan in store.directories():
            with suppress(OSError):  # it is not empty, or not there
                store.files.rmdir(store.path(MODULES, fan))


# ------------------------------------------------------------------------------------------------ duplicates


def _merge_duplicates(store: Store) -> list[bytes]:
    """Remove the modules all of whose functions others realize, by the same content and for the same hosts; return them.

    Of each function the newest addition stays, and so does what has functions of which the content is not known, or what anything requires.
    """
    everything: set[bytes] = set()
    winners: dict[bytes, set[bytes]] = {}
    keep: set[bytes] = set()
    for _, entries in groupby(_function_entries(store), key=_same):
        holders = sorted([(order, module_id) for _, module_id, _, _, order, _ in map(FUNCTION.unpack, entries)])
        if not holders:
            continue
        winner = holders[-1][1]
        keep.add(winner)
        for _, module_id in holders[:-1]:
            everything.add(module_id)
            winners.setdefault(module_id, set()).add(winner)
    lists = ModuleLists(store)
    doubles = [
        module_id for module_id in sorted(everything - keep)
        if all(_is_usable(store, winner) for winner in winners[module_id]) and not any(True for _ in lists.entries_requiring(module_id))
    ]  # fmt: skip
    return remove_modules(store, doubles) if doubles else []


def _same(entry: bytes) -> bytes:
    """Return what is equal in entries of one content; of an entry without content all."""
    name, module_id, offset, needs, _, content = FUNCTION.unpack(entry)
    known: bytes = name + needs + content
    return known if any(content) else known + module_id + offset.to_bytes(4, "little")


def _function_entries(store: Store) -> Iterator[bytes]:
    """Yield all function entries of the index, by name, requirement and content."""
    segments = index_merge.readable(store.index)
    bits = (sum(segment.functions.count for segment in segments) // _RANGE).bit_length()
    for number in range(1 << bits):
        found = {entry.ljust(FUNCTION.size, b"\0") for segment in segments for entry in segment.functions.entries_of_range(number, bits)}
        yield from sorted(index_merge.unrepeated(found), key=_same)


def _is_usable(store: Store, module_id: bytes) -> bool:
    try:
        store.open_module(module_id, leave_stamp=False).close()
    except (FileNotFoundError, CompcacheError, FormatError) as error:
        reraise_interrupt(error)
        return False
    return True
