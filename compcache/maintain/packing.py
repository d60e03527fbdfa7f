"""Puts small module files and volumes together in volumes, and removes what these replace."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from compcache.directory.module_file import ModuleFile
from compcache.directory.places import MODULES, SIGNATURES
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.footer import require_intact
from compcache.formats.index import Stamp
from compcache.interrupts import suppress
from compcache.publish import index_merge
from compcache.publish.locks import wait_lock
from compcache.publish.packs import stored_packs
from compcache.publish.removal import unlink
from compcache.publish.volumes import Content, contents_of, mark_gone, remove_lists, remove_volume, write_volume
from compcache.usage.module_files import files_of_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.volume import Volume
    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["SMALL", "Packing", "free_removed"]

#: Larger files stay as they are: processes share the memory of what they map of a file, and not of what they read of a volume.
SMALL = 1 << 15
#: A volume is written again once so much of it is gone; with what is added, if it has so many times its bytes at most, or these.
_DEAD, _GROWTH, _LITTLE = 0.5, 2, 1 << 20


def free_removed(store: Store) -> None:
    """Write the volumes again of which half was removed, unless another process compacts. Nobody else is waited for.

    Raises:
        OSError: one could not be written; nothing is lost.
    """
    if not store.volumes.current():
        return
    with wait_lock(store, "compact", timeout=0) as owned:
        if owned is not False:
            work = Packing(store, None)
            work.write(packs=False)
            work.remove_old()


class _SmallFile(NamedTuple):
    """A module file, its stamp (`Stamp.packed`), its size in bytes and its modification time."""

    module_id: bytes
    stamp: bytes
    size: int
    modified: float


class Packing:
    """One run. `packed` has the modules of the new volume that were files, with the stamps of these."""

    def __init__(self, store: Store, progress: Progress | None) -> None:
        self._store = store
        self._progress = progress
        self._old: list[Volume] = []
        self._known: list[tuple[bytes, bytes]] = []  # files of what a volume has already
        self._described: dict[bytes, tuple[int, int, bytes, int, bytes]] = {}  # what the index can vouch for
        self._seen: set[bytes] = set()
        self.packed: dict[bytes, bytes] = {}
        self.volume: Volume | None = None

    def replaces_anything(self) -> bool:
        """Return whether there are files to remove."""
        return bool(self.packed or self._old or self._known or self._store.volumes.replaced())

    def write(self, *, packs: bool = True) -> None:
        """Publish a volume of all small files, and of small volumes, if that is worth it; without `packs` only of volumes half removed."""
        store = self._store
        small = list(self._small_files()) if packs else []
        self._old = self._choose(sum(file.size for file in small))
        self.volume = write_volume(store, self._contents(small), self._old)
        if self.volume is None:
            return
        self._write_stamps()

    def _small_files(self) -> Iterator[_SmallFile]:
        packs = stored_packs(self._store)
        for fan in self._store.directories():
            for module_id, status in sorted(files_of_directory(self._store, fan).items()):
                if status.st_size <= SMALL and module_id not in packs and not self._store.is_foreign(status):
                    yield _SmallFile(module_id, Stamp.packed(status), status.st_size, status.st_mtime)

    def _choose(self, added: int) -> list[Volume]:
        """Return the volumes to write again: those that are mostly gone, and small ones beside what is added, a tenth of it when
        compressed.
        """
        chosen, size = [], added // 10
        for volume in sorted(self._store.volumes.current(), key=lambda volume: volume.status.st_size):
            dead = sum(bool(volume.table.find(module_id)) for module_id in volume.gone()) >= _DEAD * volume.table.count
            if self._store.volumes.is_own(volume) and (dead or (added and volume.status.st_size <= max(_LITTLE, _GROWTH * size))):
                chosen.append(volume)
                size += volume.status.st_size
        return chosen

    def _contents(self, small: list[_SmallFile]) -> Iterator[Content]:
        for number, (module_id, stamp, _, modified) in enumerate(small, 1):
            content = self._read(module_id, modified, is_file=True)
            known = self._store.volumes.find(module_id)
            if content is not None and known is not None and known[0] not in self._old and self._store.volumes.is_own(known[0]):
                if known[0].content(known[1]) == content[1:3]:
                    self._known.append((module_id, stamp))
                    continue
                mark_gone(self._store, known[0], [module_id])  # with other notes than the file, which goes before it
            if content is not None:
                self.packed[module_id] = stamp
                self._seen.add(module_id)
                yield content
            if self._progress is not None:
                self._progress(number, len(small))
        for content in chain.from_iterable(map(contents_of, self._old)):
            if content.module_id not in self._seen:
                self._seen.add(content.module_id)
                self._read(content.module_id, content.modified, is_file=False)
                yield content

    def _read(self, module_id: bytes, modified: float, *, is_file: bool) -> Content | None:
        """Return a module that this cache uses, and that is intact; None for others, and if it is to be a file and is none any more."""
        store = self._store
        try:
            with store.open_module(module_id, leave_stamp=False) as module:
                if is_file and module.volume is not None:
                    return None
                require_intact(module.footer(), module_id, module.read)
                data = module.read(0, module.size)
                self._described[module_id] = module.image, module.records, module.target_id, module.flags, module.key
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
            module = ModuleFile(store.files, "", module_id)
            module.describe(*self._described[module_id])
            entries.append(store.entry_of(module, stamp, functions).encode())
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
            if Stamp.packed(status) == known and found is not None and store.volumes.is_own(found[0]):
                unlink(store, path)
                unlink(store, store.path(SIGNATURES, SIGNATURES.file_name(module_id.hex())))
        for volume in (*store.volumes.replaced(), *(self._old if self.volume is None else ())):
            remove_volume(store, volume)
        remove_lists(store)
        for fan in store.directories():
            with suppress(OSError):  # it is not empty, or not there
                store.files.rmdir(store.path(MODULES, fan))
