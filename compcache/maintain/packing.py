"""Packs small module files and small volumes into one volume, and removes the packed files and volumes."""

from __future__ import annotations

from functools import partial
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import DIGEST_SIZE
from compcache.directory.module_file import ModuleFile
from compcache.directory.places import MODULES, SIGNATURES
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.footer import require_intact
from compcache.formats.index import STAMP_SIZE, Stamp
from compcache.interrupts import suppress
from compcache.publish import index_merge
from compcache.publish.locks import wait_lock
from compcache.publish.module_lists import write_empty_list
from compcache.publish.packs import stored_packs
from compcache.publish.removal import unlink
from compcache.publish.scratch import Scratch
from compcache.publish.volumes import Content, content_of, mark_gone, members_of, remove_lists, remove_volume, write_volume
from compcache.usage.module_files import files_of_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.volume import Member, Volume
    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["SMALL", "Packing", "free_removed"]

#: The largest file that is packed, in bytes. Processes share the memory of mapped files, but not of modules read from a volume.
SMALL = 1 << 15
#: A volume is rewritten if at least this fraction of its modules is removed.
_DEAD = 0.5
#: A volume is rewritten together with added modules if it has at most this many times their bytes.
_GROWTH = 2
#: A volume of at most this many bytes is rewritten with every addition.
_LITTLE = 1 << 20
#: The fields of a module entry in an index without the stamp: the module_id, and the arguments of `ModuleFile.describe`.
_DESCRIBED = Struct(f"<{DIGEST_SIZE}sQQ8sQ16s")


def free_removed(store: Store) -> None:
    """Rewrite volumes if at least half of their modules were removed. Do nothing while another process compacts the cache.

    Raises:
        OSError: a volume could not be written. No module is lost.
    """
    if not store.volumes.current():
        return
    with wait_lock(store, "compact", timeout=0) as owned:
        if owned is not False:
            packing = Packing(store, None)
            packing.write(packs=False)
            packing.remove_old()


class _SmallFile(NamedTuple):
    """The stamp of a module file (`Stamp.packed`), its size in bytes and its modification time."""

    stamp: bytes
    size: int
    modified: float


class Packing:
    """One run of packing.

    Attributes:
        packed: the number of module files that were packed.
        volume: the new volume, or None if there was nothing to pack.
    """

    def __init__(self, store: Store, progress: Progress | None) -> None:
        self._store = store
        self._progress = progress
        self._packs: frozenset[bytes] = frozenset()
        self._small = 0
        self._old: list[Volume] = []
        self._files = Scratch()  # module_id and stamp of each file whose module is in a volume now
        self._described = Scratch()  # the described fields of the verified modules
        self.packed = 0
        self.volume: Volume | None = None

    def has_files_to_remove(self) -> bool:
        """Return whether `remove_old` has files to remove."""
        return bool(self._files.size or self._old or self._store.volumes.replaced())

    def write(self, *, packs: bool = True) -> None:
        """Publish a volume with the modules of small files and small volumes, if there are any.

        If `packs` is false, only rewrite volumes if at least half of their modules were removed.
        """
        store = self._store
        added = 0
        if packs:
            self._packs = stored_packs(store)
            for fan in store.directories():
                sizes = [file.size for file in self._small_files(fan).values()]
                self._small, added = self._small + len(sizes), added + sum(sizes)
        self._old = self._choose_volumes(added)
        self.volume = write_volume(store, self._contents(), self._old)
        if self.volume is not None:
            self._write_stamps(Stamp.of(self.volume.status))

    def _small_files(self, fan: str) -> dict[bytes, _SmallFile]:
        """Return the small module files in a directory by module_id, except packs and files of other users."""
        return {
            module_id: _SmallFile(Stamp.packed(status), status.st_size, status.st_mtime)
            for module_id, status in files_of_directory(self._store, fan).items()
            if status.st_size <= SMALL and module_id not in self._packs and not self._store.is_foreign(status)
        }

    def _choose_volumes(self, added: int) -> list[Volume]:
        """Return the volumes to rewrite: volumes that are mostly removed, and volumes that are small compared with the added bytes.

        Compression reduces added modules to a tenth of their size.
        """
        chosen, size = [], added // 10
        for volume in sorted(self._store.volumes.current(), key=lambda volume: volume.status.st_size):
            removed = sum(bool(volume.table.find(module_id)) for module_id in volume.removed_ids())
            is_mostly_removed = removed >= _DEAD * volume.table.count
            if self._store.volumes.is_own(volume) and (
                is_mostly_removed or (added and volume.status.st_size <= max(_LITTLE, _GROWTH * size))
            ):
                chosen.append(volume)
                size += volume.status.st_size
        return chosen

    def _contents(self) -> Iterator[Content]:
        """Yield the contents of the new volume in the order of module_ids: modules of small files, then of old volumes."""
        done = 0
        for first, fan in enumerate(map("{:02x}".format, range(256))):
            small = self._small_files(fan) if self._small else {}
            old = [(volume, members_of(volume, first)) for volume in self._old]
            for module_id in sorted({*small, *chain.from_iterable(members for _, members in old)}):
                content = None
                if module_id in small:
                    content = self._file_content(module_id, small[module_id])
                    done += 1
                    if self._progress is not None:
                        self._progress(done, self._small)
                if content is None:
                    content = self._volume_content(module_id, old)
                if content is not None:
                    yield content

    def _file_content(self, module_id: bytes, file: _SmallFile) -> Content | None:
        """Return the content of a module file, or None if the file is unusable or a volume that stays has the same content.

        A usable file is recorded as packed. A module with other notes in a volume that stays is marked as removed.
        """
        store = self._store
        content = self._read_module(module_id, file.modified, is_file=True)
        if content is None:
            return None
        known = store.volumes.find(module_id)
        if known is not None and known[0] not in self._old and store.volumes.is_own(known[0]):
            volume, member = known
            if volume.content(member) == content[1:3]:
                self._files.write(module_id + file.stamp)
                return None
            mark_gone(store, volume, [module_id])  # its notes differ from the notes of the file, which takes precedence
        self._files.write(module_id + file.stamp)
        self.packed += 1
        return content

    def _volume_content(self, module_id: bytes, old: list[tuple[Volume, dict[bytes, Member]]]) -> Content | None:
        """Return the content of a module from the first old volume that has the module, or None if there is no such volume."""
        for volume, members in old:
            content = content_of(volume, module_id, members[module_id]) if module_id in members else None
            if content is not None:
                self._read_module(module_id, content.modified, is_file=False)
                return content
        return None

    def _read_module(self, module_id: bytes, modified: float, *, is_file: bool) -> Content | None:
        """Verify and return the content of a module, or None if the module is damaged, missing or not used by this cache.

        With `is_file`, also return None if the module no longer has its own file.
        """
        store = self._store
        try:
            with store.open_module(module_id, leave_stamp=False) as module:
                if is_file and module.volume is not None:
                    return None
                require_intact(module.footer(), module_id, module.read)
                data = module.read(0, module.size)
                self._described.write(_DESCRIBED.pack(module_id, module.image, module.records, module.target_id, module.flags, module.key))
        except (FileNotFoundError, CompcacheError) as error:
            reraise_interrupt(error)
            return None
        return Content(module_id, data, store.signatures_of(module_id), modified)

    def _write_stamps(self, stamp: Stamp) -> None:
        """Add stamps of the volume to the index for the modules that were just verified, as for published files."""
        store = self._store

        def entries() -> Iterator[bytes]:
            """Yield the module entries with the stamp, without repetitions, in the order of module_ids."""
            last = b""
            for module_id, *fields in map(_DESCRIBED.unpack, self._described.pieces(_DESCRIBED.size)):
                if module_id != last:
                    module = ModuleFile(store.files, "", module_id)
                    module.describe(*fields)
                    functions = max([entry.functions for entry in index_merge.module_entries(store.index, module_id)], default=0)
                    yield store.entry_of(module, stamp, functions).encode()
                last = module_id

        index_merge.publish_segment(store.index, None, (), entries(), (), prepare=partial(write_empty_list, store))
        store.index.refresh()

    def remove_old(self) -> None:
        """Remove files whose unchanged content is in a volume, and replaced or empty volumes."""
        store = self._store
        for record in self._files.pieces(DIGEST_SIZE + STAMP_SIZE):
            module_id = record[:DIGEST_SIZE]
            path = store.module_path(module_id)
            try:
                status = store.files.stat(path)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                continue
            found = store.volumes.find(module_id)
            if Stamp.packed(status) == record[DIGEST_SIZE:] and found is not None and store.volumes.is_own(found[0]):
                unlink(store, path)
                unlink(store, store.path(SIGNATURES, SIGNATURES.file_name(module_id.hex())))
        for volume in (*store.volumes.replaced(), *(self._old if self.volume is None else ())):
            remove_volume(store, volume)
        remove_lists(store)
        for fan in store.directories():
            with suppress(OSError):  # the directory is not empty or does not exist
                store.files.rmdir(store.path(MODULES, fan))
