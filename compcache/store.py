"""The cache directory: look-ups in its index, and verified files.

The store knows no LLVM and no symbols: it hands out verified bytes. A file is verified against its digest once;
its stamp (inode, size, times) in the index then vouches for it until any of them changes. What is damaged goes
to `quarantine/`, with one warning, and is a miss from then on.
"""

from __future__ import annotations

from errno import ELOOP, ENOENT, ENOTDIR

from compcache.digest import mac, name_key
from compcache.directory import Directory
from compcache.directory.module_file import ModuleFile
from compcache.directory.places import PLACES
from compcache.errors import CompcacheError, FormatError, IntegrityError, MissingPackageError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats.index import ModuleEntry, Stamp, in_order
from compcache.formats.manifest import LINKED, SUSPECT
from compcache.native import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from compcache import files as file_ops
    from compcache.directory.null_recorder import NullRecorder
    from compcache.formats.entry import EntryRecord
    from compcache.formats.index import Index, Numbered, Segment
    from compcache.hit.loader import Loader
    from compcache.hit.recorder import Recorder
    from compcache.signing.keys import PublicKey, SecretKey
    from compcache.targets.host_probe import Host

    #: Whether a realization is preferred to others of the same content, by its module_id.
    IsNear = Callable[[bytes], bool]
    #: Image, records, graph, bitcode and notes of a module.
    Sections = tuple[bytes, bytes, bytes, bytes, bytes]

__all__ = ["PLACES", "Store", "is_ordered"]


def is_ordered(name: str) -> bool:
    """Return whether a name means its newest realization: a plain name does; content names and entries of data do not."""
    answer: bool = runtime.is_ordered(name)
    return answer


class Store(Directory):
    """A cache directory. The first write creates it; opening one that does not exist succeeds.

    Args:
        root: the directory.
        files: the operating system; the tree of another store, for a directory in its directory.
        open_beneath: see `compcache.files.Tree`.
        readonly: never write; anything that needs writing is a miss, or is done in memory.
        verify: check the digests of files without a known stamp; a signing key always implies this.
        signing_key: accept only modules that carry its signature, and sign what is published.
        trust: open the directory even if other users can write to it.
        trusted_keys: accept only modules signed by one of these keys, and modules that this store publishes.
        publish_key: sign what is published for readers with its public key.
        min_llvm: skip code that an older version of LLVM has compiled; empty for no limit.
        user: the only user who can write to the directory, if this was checked before; it is not checked again.
        recorder: makes the recorder from the tree, the root and whether the directory is read-only; None counts nothing.

    Raises:
        UntrustedDirectoryError: the directory belongs to another user, or others can write to it.
        StorageError: its owner cannot be determined.
    """

    __slots__ = (
        "_checked_index", "_host", "_in_memory", "_memory_names", "_pack", "listener", "mac_key", "min_llvm", "publish_key", "readonly",
        "stats", "trusted_keys", "verify",
    )  # fmt: skip
    #: Read-only caches below it; see `compcache.layers`.
    layers: tuple[Store, ...] = ()
    #: The state of the table `compcache.formats.known_faults`, by which stamps are made.
    known_faults = b""

    def __init__(
        self,
        root: str,
        *,
        files: file_ops.Files | None = None,
        open_beneath: file_ops.OpenBeneath | None = None,
        readonly: bool = False,
        verify: bool = True,
        signing_key: bytes | None = None,
        trust: bool = False,
        trusted_keys: tuple[PublicKey, ...] = (),
        publish_key: SecretKey | None = None,
        min_llvm: str = "",
        user: int | None = None,
        recorder: Callable[..., Recorder | NullRecorder] | None = None,
    ) -> None:
        # With trusted keys, stamps are those of checks for the same keys. Keys are public: they tell stamps apart, and prove nothing.
        keys = "\n".join(sorted(map(str, trusted_keys)))
        stamp_key = signing_key or (mac(b"stamps", keys.encode()) if keys else None)
        super().__init__(root, files, open_beneath, trust=trust, signing_key=signing_key, stamp_key=stamp_key)
        self.readonly = readonly
        self.verify = verify
        self.trusted_keys = trusted_keys
        self.publish_key = publish_key
        self.mac_key = mac(self.known_faults, stamp_key or b"") if self.known_faults else stamp_key
        self.min_llvm = min_llvm
        self._host: Host | None = None
        self._in_memory: dict[bytes, ModuleFile] = {}
        self._pack: ModuleFile | None = None  # the last one that an entry was read of
        self._memory_names: dict[str, dict[tuple[bytes, int], None]] = {}
        self._checked_index = False
        self.listener: Callable[[], Loader | None] | None = None  # gives who has modules in memory, while it lives
        if user is None:
            self.check_root()
        else:
            self._use_files_of(user)
        self.stats: Recorder | NullRecorder
        if recorder is not None:
            self.stats = recorder(self.files, root, readonly=readonly or self.exposed)
        else:
            from compcache.directory.null_recorder import NullRecorder

            self.stats = NullRecorder()

    # --------------------------------------------------------------- look-ups

    def find(
        self, func_name: str, is_near: IsNear | None = None, *, again: bool = False, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the (module_id, record offset) of every realization of a function.

        Realizations of a content name are found lazily, the one that fits this host best first. For a plain name, the newest addition
        comes first; within an addition, the one that fits best. If `is_near` is given, realizations with the same content in near modules
        come before it. A name that this process's index does not have is looked up on disk once more; `again` does the same for newer
        realizations. Those in `linked` closures have `LINKED` in their offsets.
        """
        found = False
        if self._memory_names:
            yield from list(self._memory_names.get(func_name, ()))
        was_listed = self.index.is_listed
        candidates = self.find_here(func_name, is_near, linked=linked)
        if again and was_listed and candidates and self._renew_index():
            candidates = self.find_here(func_name, is_near, linked=linked)
        for candidate in candidates:
            found = True
            yield candidate
        if not found and self._renew_index(look=was_listed):
            yield from self.find_here(func_name, is_near, linked=linked)

    def find_here(self, func_name: str, is_near: IsNear | None = None, *, linked: bool = False) -> Iterable[tuple[bytes, int]]:
        """Yield the same from the index that this process has read."""
        key = name_key(func_name)
        found = in_order(self.index.find_numbered(key), is_near) if is_ordered(func_name) else self.index.find(key)
        return found if linked else (row for row in found if row[1] < LINKED)

    def find_numbered(self, func_name: str) -> list[Numbered]:
        """Return all rows for a name in the index that this process has read, also of linked closures, unordered."""
        return self.index.find_numbered(name_key(func_name))

    def segments(self) -> tuple[Segment, ...]:
        """Return the parts of the index that look-ups use. They change with any addition or removal."""
        return self.index.segments

    def state(self) -> bytes:
        """Return a value that changes with any addition or removal."""
        return self.index.state()

    def find_all(self, func_name: str) -> list[tuple[bytes, int]]:
        """Return every realization in the index at this moment."""
        self.renew_index()
        return self.find_known(func_name)

    def find_known(self, func_name: str) -> list[tuple[bytes, int]]:
        """Return every realization in the index that this process has read."""
        return [*self._memory_names.get(func_name, ()), *self.find_here(func_name)]

    def exists(self, module_id: bytes) -> bool:
        """Return whether the file of a module exists.

        Raises:
            StorageError: this cannot be determined.
        """
        try:
            self.status_of(module_id)
        except OSError as error:
            reraise_interrupt(error)
            if error.errno not in (ENOENT, ENOTDIR, ELOOP):
                self.report_unreadable(self.module_path(module_id), error)
            return False
        return True

    def holds_in_memory(self, module_id: bytes) -> bool:
        """Return whether this object alone has the module, which could not be published."""
        return module_id in self._in_memory

    def has_in_memory(self) -> bool:
        """Return whether this object alone has any module."""
        return bool(self._in_memory)

    def hold_in_memory(self, module: ModuleFile, functions: Iterable[tuple[str, int, str]]) -> None:
        """Keep a module that could not be published, with its functions, only in this object."""
        self._in_memory[module.module_id] = module
        for name, offset, _ in functions:
            self._memory_names.setdefault(name, {})[module.module_id, offset] = None

    def renew_index(self) -> bool:
        """Read the index on disk again, and those of layers; return whether one has changed."""
        return self._renew_index()

    def _renew_index(self, *, look: bool = True) -> bool:
        """Read the index again, and rebuild it if it is damaged or missing; return whether it has changed."""
        if self.index.segments and not self.index.unfinished:
            self._checked_index = False  # an index that was there and goes is looked for again
        try:
            changed = look and self.index.refresh()
            nothing = (self.index.unfinished or not self.index.segments) and not self.index.problem and not self._checked_index
        except OSError as error:
            reraise_interrupt(error)
            raise StorageError(f"cannot read the index of {self.root}: {error}", path=self.root) from error
        if nothing or self.index.damaged:
            self._checked_index = True
            if not self._has_to_recover():
                return changed
            try:
                from compcache.publish.verify import recover_index
            except MissingPackageError:
                return changed  # compcache-runtime rebuilds none
            known, damaged = self.index.segments, self.index.damaged.copy()
            recover_index(self)
            changed = changed or self.index.segments is not known or self.index.damaged != damaged
        return changed

    def _has_to_recover(self) -> bool:
        """Return whether an index without segments may be incomplete. Above layers, a directory without modules is the usual case."""
        try:
            return bool(self.index.damaged) or self.index.unfinished or bool(self.fans())
        except OSError as error:  # the recovery says what cannot be read
            reraise_interrupt(error)
            return True

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """Open and verify a module. With `leave_stamp`, the index records that it was verified.

        Raises:
            FileNotFoundError: it is not there (any more).
            IntegrityError: it is damaged (and in quarantine now), not signed with the key, or another user's.
            IncompatibleTargetError: another version of this package has written it.
            StorageError: it cannot be read.
        """
        if module_id in self._in_memory:
            return self._in_memory[module_id]
        module = ModuleFile(self.files, self.module_path(module_id), module_id)
        try:
            self.files.look_again()
            status = module.open(self)
            foreign = self.exposed or self.is_foreign(status)
            if foreign or not self._recognize(module, status):
                from compcache.publish.verify import verify_module

                module = verify_module(self, module, status, leave_stamp=leave_stamp, foreign=foreign)
        except (FileNotFoundError, IntegrityError, StorageError) as error:
            reraise_interrupt(error)
            module.close()
            raise
        except FormatError as error:
            raise self.condemn(module, error) from error
        except OSError as error:
            reraise_interrupt(error)
            from compcache.publish.verify import unreadable

            raise unreadable(self, module, error) from error
        return module

    def _recognize(self, module: ModuleFile, status: os.stat_result, index: Index | None = None) -> bool:
        """Return whether an index, by default this one's, has a stamp of the file in its present state."""
        return self._describe(module, status, (index or self.index).verified(module.module_id, status))

    def _describe(
        self, module: ModuleFile, status: os.stat_result, entries: Iterable[tuple[int, int, bytes, int, int, bytes, bytes]]
    ) -> bool:
        """Describe a module by the first of its entries that this user has written; return False if there is none."""
        for image, records, target, flags, functions, key, entry_mac in entries:
            if self.mac_key:
                fields = (module.module_id, Stamp.of(status), image, records, target, flags, functions, key)
                if self._entry_mac(*fields) != entry_mac:
                    continue
            module.describe(image, records, target, flags, key)
            return True
        return False

    def _entry_mac(self, *fields: object) -> bytes:
        if not self.mac_key:
            return bytes(16)
        return mac(ModuleEntry(*fields, bytes(16)).encode()[:-16], self.mac_key)[:16]

    def entry_of(self, module: ModuleFile, status: os.stat_result | Stamp, functions: int = 0) -> ModuleEntry:
        """Return the index entry that vouches for a verified module file."""
        stamp = status if isinstance(status, Stamp) else Stamp.of(status)
        sizes = (module.image, module.records, module.target_id, module.flags)
        fields = (module.module_id, stamp, *sizes, functions, module.key)
        return ModuleEntry(*fields, self._entry_mac(*fields))

    def remember(self, entry: ModuleEntry) -> None:
        """Remember that a file with this stamp was verified."""
        if not self.readonly:
            from compcache.publish.verify import remember_in

            remember_in(self, self.index, entry)

    def read_entry(self, kind: str, name: str, *, alone: bool = True, again: bool = True) -> EntryRecord | None:
        """Return the entry of data in force under this name, or the record of its removal; None if there is neither, or it cannot be read.

        An entry counts only if all its modules exist, unless a remote store may have them (not `alone`). `again` repeats the look-up if a
        file has gone since the index was read.
        """
        from compcache.formats.entry import index_name

        best: EntryRecord | None = None
        vanished = False
        for module_id, offset in self.find(index_name(kind, name)):
            try:
                record = self._read_entry(module_id, offset, kind)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                vanished = True  # pruned, or put together with others, since the index was read
                continue
            except CompcacheError:
                continue
            if record is not None and (record.kind, record.name) == (kind, name) and (best is None or record.order > best.order):
                best = record
        if vanished and again:
            self.renew_index()
            return self.read_entry(kind, name, alone=alone, again=False)
        return best if best is None or not alone or all(map(self.exists, best.requires)) else None

    def _read_entry(self, module_id: bytes, offset: int, kind: str) -> EntryRecord | None:
        """Return the entry at this place of a file, if entries of the kind may be read from it.

        A pack stays open while its file exists, because more of its entries are often needed next.
        """
        from compcache.formats.entry import PACK_FLAG, decode_entry, may_be_read

        file = self._open_pack(module_id)
        if file is None:
            file = self.open_module(module_id)
            self._pack = file if file.flags == PACK_FLAG and not file.copied else None
        try:
            usable = may_be_read(kind, elsewhere=file.elsewhere) and file.flags != SUSPECT
            return decode_entry(file.read_record(offset)) if usable else None
        except FormatError as error:
            self._pack = None
            raise self.condemn(file, error) from error

    def _open_pack(self, module_id: bytes) -> ModuleFile | None:
        pack = self._pack
        if pack is None or pack.module_id != module_id:
            return None
        try:
            return pack if self.files.fstat(pack.descriptor).st_nlink else None
        except OSError as error:
            reraise_interrupt(error)
            return None

    # ---------------------------------------------------------------- removal

    def tell_gone(self, module_id: bytes) -> None:
        """Hide a module from look-ups in memory."""
        loader = self.listener() if self.listener is not None else None
        if loader is not None:
            loader.forget(module_id)

    def require_writable(self, path: str = "") -> None:
        """Refuse to change a cache that was opened with readonly=True.

        Raises:
            StorageError: it was opened that way.
        """
        if self.readonly:
            message = f"the cache {self.root} was opened with readonly=True: it cannot be changed through this object"
            raise StorageError(message, path=path or self.root)

    def condemn(self, module: ModuleFile, error: FormatError) -> CompcacheError:
        """Close a module file that does not decode; return the exception that says why.

        A damaged file goes to quarantine. An intact one was written by another version.
        """
        from compcache.publish.verify import condemn

        return condemn(self, module, error)

    def quarantine(self, path: str, reason: str) -> IntegrityError:
        """Quarantine a damaged file, warn, and return the exception."""
        from compcache.publish.quarantine import quarantine

        return quarantine(self, path, reason)

    # ----------------------------------------------------------- linked closures

    def has_closures(self) -> bool:
        """Return whether loads may store their findings about linked closures: only if these depend on nothing but the stored files."""
        return not (self.exposed or self.min_llvm or self._in_memory)

    def host(self) -> Host:
        """Return this machine, as LLVM describes it.

        Raises:
            MissingPackageError: LLVM is not installed.
        """
        if self._host is None:
            from compcache.publish.host_file import describe_host

            self._host = describe_host(self)
        return self._host

    def close(self) -> None:
        """Close the file descriptors."""
        self._pack = None
        if self._volumes is not None:
            self._volumes.close()
        self.index.close()
        self.files.forget()
