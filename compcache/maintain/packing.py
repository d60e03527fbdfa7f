"""Packs small module files and small volumes into one volume, and removes the packed files and volumes."""

from __future__ import annotations

from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import DIGEST_SIZE, mac
from compcache.directory.places import MODULES, SIGNATURES
from compcache.errors import CompcacheError
from compcache.formats.footer import intact_footer
from compcache.formats.index import MODULE, STAMP_SIZE, Stamp
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish import index_merge
from compcache.publish.locks import try_lock
from compcache.publish.module_lists import write_empty_list
from compcache.publish.packs import stored_packs
from compcache.publish.removal import unlink
from compcache.publish.scratch import Scratch
from compcache.publish.volumes import Content, content_of, mark_gone, members_of, remove_orphaned_lists, remove_volume, write_volume
from compcache.usage.module_files import files_of_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.volume import Volume
    from compcache.store import Store
    from compcache.usage.module_files import Progress

    #: A volume, and the entries of its modules whose module_ids begin with the same byte.
    _Members = tuple[Volume, dict[bytes, bytes]]

__all__ = ["SMALL", "Packing", "free_removed"]

#: The largest file that is packed, in bytes. Processes share the memory of mapped files, but not of modules read from a volume.
SMALL = 1 << 15
#: A volume is rewritten if at least this fraction of its modules is removed.
_REMOVED_SHARE = 0.5
#: A volume is rewritten together with added modules if it has at most this many times their bytes.
_GROWTH = 2
#: A volume of at most this many bytes is rewritten with every addition.
_SMALL_VOLUME = 1 << 20
_MAC_SIZE = 16
_NO_STAMP = Stamp(0, 0, 0, 0)


def free_removed(store: Store) -> None:
    """Rewrite this user's volumes of which at least half of the modules were removed, unless another process compacts the cache.

    Raise `OSError` if a volume cannot be read or written, or an old volume cannot be removed. No module is lost.
    """
    if not store.volumes.current():
        return
    with try_lock(store, "compact") as owned:
        if owned:
            packing = Packing(store, None)
            packing.write(with_files=False)
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
        self._small_count = 0
        self._old: list[Volume] = []
        self._files = Scratch()  # module_id and stamp of each file whose module is in a volume now
        self._entries = Scratch()  # the index entries of the verified modules in the new volume, without stamps
        self.packed = 0
        self.volume: Volume | None = None

    def has_files_to_remove(self) -> bool:
        """Return whether `remove_old` has files to remove. Raise `OSError` if a volume cannot be read."""
        return bool(self._files.size or self._old or self._store.volumes.replaced())

    def write(self, *, with_files: bool = True) -> None:
        """Publish a volume with the modules of small files and small volumes, if there are any.

        Without `with_files`, only rewrite volumes of which at least half of the modules were removed.

        Raise `OSError` if the volume could not be written.
        """
        store = self._store
        added = 0
        if with_files:
            self._packs = stored_packs(store)
            for fan in store.directories():
                sizes = [file.size for file in self._small_files(fan).values()]
                self._small_count += len(sizes)
                added += sum(sizes)
        self._old = self._choose_volumes(added)
        self.volume = write_volume(store, self._new_contents(), self._old)
        if self.volume is not None:
            self._write_stamps(Stamp.packed(self.volume.status))

    def _small_files(self, fan: str) -> dict[bytes, _SmallFile]:
        """Return the small module files in a directory by module_id, except packs and files of other users."""
        return {
            module_id: _SmallFile(Stamp.packed(status), status.st_size, status.st_mtime)
            for module_id, status in files_of_directory(self._store, fan).items()
            if status.st_size <= SMALL and module_id not in self._packs and not self._store.is_foreign(status)
        }

    def _choose_volumes(self, added: int) -> list[Volume]:
        """Return this user's volumes of which at least half of the modules were removed, and those that are small compared with `added`.

        `added` is the size in bytes of the added modules, which compression is assumed to reduce to a tenth. If it is 0, no volume is
        small.

        Raise `OSError` if a volume cannot be read.
        """
        chosen, size = [], added // 10
        for volume in sorted(self._store.volumes.current(), key=lambda volume: volume.status.st_size):
            removed = sum(bool(volume.table.find(module_id)) for module_id in volume.removed_ids())
            is_mostly_removed = removed >= _REMOVED_SHARE * volume.table.count
            if self._store.volumes.is_trusted(volume) and (
                is_mostly_removed or (added and volume.status.st_size <= max(_SMALL_VOLUME, _GROWTH * size))
            ):
                chosen.append(volume)
                size += volume.status.st_size
        return chosen

    def _new_contents(self) -> Iterator[Content]:
        """Yield the contents of the new volume in the order of module_ids, from small files and old volumes.

        Write the index entry of each module to `_entries`. See `members_of` for the exception.
        """
        read_count = 0
        for first, fan in enumerate(map("{:02x}".format, range(256))):
            small = self._small_files(fan) if self._small_count else {}
            old = [(volume, members_of(volume, first)) for volume in self._old]
            volumes = self._store.volumes
            current = [volume for volume in volumes.current() if volume not in self._old and volumes.is_trusted(volume)]
            staying = [(volume, members_of(volume, first)) for volume in (current if small else ())]
            for module_id in sorted({*small, *chain.from_iterable(members for _, members in old)}):
                content_and_entry = None
                if module_id in small:
                    content_and_entry = self._file_content(module_id, small[module_id], staying)
                    read_count += 1
                    if self._progress is not None:
                        self._progress(read_count, self._small_count)
                if content_and_entry is None:
                    content_and_entry = self._volume_content(module_id, old)
                if content_and_entry is not None:
                    content, entry = content_and_entry
                    self._entries.write(entry)
                    yield content

    def _file_content(self, module_id: bytes, file: _SmallFile, staying: list[_Members]) -> tuple[Content, bytes] | None:
        """Return the content and an index entry of a module file, or None if it is unusable or one of `staying` has the same content.

        `staying` are the volumes that stay. A usable file is recorded as packed. In a volume that stays, a module with
        other notes is marked as removed. See `mark_gone` for the exception.
        """
        content_and_entry = self._read_file(module_id, file)
        if content_and_entry is None:
            return None
        content, _ = content_and_entry
        for volume, members in staying:
            if module_id not in members:
                continue
            if volume.content(members[module_id]) == (content.data, content.signatures):
                self._files.write(module_id + file.stamp)
                return None
            mark_gone(self._store, volume, module_id)  # the member's notes differ from the notes of the file, which takes precedence
        self._files.write(module_id + file.stamp)
        self.packed += 1
        return content_and_entry

    def _read_file(self, module_id: bytes, file: _SmallFile) -> tuple[Content, bytes] | None:
        """Verify a module file, and return its content and an index entry.

        Return None if the module is damaged, missing, unreadable or not used by this cache, or no longer has its own file.
        """
        store = self._store
        try:
            with store.open_module(module_id, leave_stamp=False) as module:
                if module.volume is not None:
                    return None
                data, entry = module.read(0, module.size), store.entry_of(module, _NO_STAMP).encode()
            intact_footer(data, module_id)
            signatures = store.signatures_of(module_id)
        except (FileNotFoundError, CompcacheError) as error:
            reraise_interrupt(error)
            return None
        return Content(module_id, data, signatures, file.modified), entry

    def _volume_content(self, module_id: bytes, old: list[_Members]) -> tuple[Content, bytes] | None:
        """Return the content of a module from the first old volume that has the module, or None if there is no such volume.

        The second item of the result is an index entry, or b"" if the module is not used by this cache. Raise `OSError` if a volume cannot
        be read.
        """
        for volume, members in old:
            content = content_of(volume, module_id, members[module_id]) if module_id in members else None
            if content is not None:
                with suppress(FileNotFoundError, CompcacheError), self._store.open_module(module_id, leave_stamp=False) as module:
                    return content, self._store.entry_of(module, _NO_STAMP).encode()
                return content, b""
        return None

    def _write_stamps(self, stamp: bytes) -> None:
        """Add stamps of the volume to the index for the modules that were just verified, as for published files.

        Raise `OSError` if the segment could not be written.
        """
        store = self._store

        def entries() -> Iterator[bytes]:
            """Yield the index entries of the verified modules with the stamp, and a MAC if the store has a key."""
            for entry in self._entries.pieces(MODULE.size):
                signed = entry[:DIGEST_SIZE] + stamp + entry[DIGEST_SIZE + STAMP_SIZE : -_MAC_SIZE]
                yield signed + (mac(signed, store.mac_key)[:_MAC_SIZE] if store.mac_key else bytes(_MAC_SIZE))

        index_merge.publish_segment(store.index, (), entries(), (), prepare=partial(write_empty_list, store))
        store.index.refresh()

    def remove_old(self) -> None:
        """Remove files whose unchanged content is in a volume, replaced or empty volumes, and empty directories. Skip missing files.

        Raise `OSError` if a volume cannot be read, or a file cannot be removed.
        """
        store = self._store
        for first, records in groupby(self._files.pieces(DIGEST_SIZE + STAMP_SIZE), key=itemgetter(0)):
            own_members = [members_of(volume, first) for volume in store.volumes.current() if store.volumes.is_trusted(volume)]
            for record in records:
                module_id = record[:DIGEST_SIZE]
                path = store.module_path(module_id)
                try:
                    status = store.files.stat(path)
                except FileNotFoundError as error:
                    reraise_interrupt(error)
                    continue
                if Stamp.packed(status) == record[DIGEST_SIZE:] and any(module_id in members for members in own_members):
                    unlink(store, path)
                    unlink(store, store.path(SIGNATURES, SIGNATURES.file_name(module_id.hex())))
        obsolete = self._old if self.volume is None else ()
        for volume in (*store.volumes.replaced(), *obsolete):
            remove_volume(store, volume)
        remove_orphaned_lists(store)
        for fan in store.directories():
            with suppress(OSError):  # the directory is not empty or does not exist
                store.files.rmdir(store.path(MODULES, fan))
