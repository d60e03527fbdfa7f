"""The store: look-ups in the index of a cache directory, and verified files.

The store returns verified bytes. It knows neither LLVM nor symbols. A file is verified once with its digest. Its stamp in the index (inode,
size, times) then proves that it was verified, until the stamp changes. A damaged file is moved to `quarantine/` with a warning.
"""

from __future__ import annotations

from errno import ELOOP, ENOENT, ENOTDIR

from compcache.digest import mac, name_key
from compcache.directory import Directory
from compcache.directory.module_file import ModuleFile
from compcache.directory.places import PLACES
from compcache.errors import CompcacheError, FormatError, IntegrityError, MissingPackageError, StorageError
from compcache.formats.index import ModuleEntry, Stamp, sort_by_preference
from compcache.formats.manifest import LINKED, SUSPECT
from compcache.interrupts import reraise_interrupt, suppress
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

    #: Returns whether the realization in a module is preferred to realizations with the same content in other modules.
    IsNear = Callable[[bytes], bool]

__all__ = ["PLACES", "Store", "is_ordered"]


def is_ordered(name: str) -> bool:
    """Return whether a look-up of a name prefers its newest realization. This holds for plain names, not for content names and entries."""
    answer: bool = runtime.is_ordered(name)
    return answer


class Store(Directory):
    """A cache directory. The directory need not exist when it is opened; the first write creates it.

    Args:
        root: the path of the directory.
        files: the operations of the operating system; for a directory inside another store, the tree of that store.
        open_beneath: see `compcache.files.Tree`.
        readonly: whether never to write. Operations that need writing are misses, or are done in memory.
        verify: whether to check the digests of files without a known stamp. A signing key implies this.
        signing_key: the key that signs published modules. Only modules with its signature are accepted.
        trust: whether to open the directory even if other users can write to it.
        trusted_keys: public keys. Only modules signed by one of them, and modules that this store publishes, are accepted.
        publish_key: the secret key that signs published modules for readers with its public key.
        min_llvm: the oldest version of LLVM whose code is used; empty for no limit.
        user: the id of the only user who can write to the directory, if the caller has checked this; None checks it.
        recorder: creates the recorder of statistics from the tree, the root and `readonly`; None records nothing.

    Raises:
        UntrustedDirectoryError: the directory belongs to another user, or other users can write to it.
        StorageError: the owner of the directory cannot be determined.
    """

    __slots__ = (
        "_host", "_in_memory", "_memory_names", "_pack", "listener", "mac_key", "met_missing_import", "min_llvm", "publish_key",
        "readonly", "stats", "trusted_keys", "verify",
    )  # fmt: skip
    #: The read-only caches that are searched after this directory (`compcache.layers`).
    layers: tuple[Store, ...] = ()
    #: The state of the table `compcache.formats.known_faults`, on which stamps depend.
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
        # With trusted keys, only stamps of checks with the same keys are valid. Public keys distinguish stamps; they do not authenticate.
        keys = "\n".join(sorted({*map(str, trusted_keys)})).encode()
        stamp_key = (mac(b"stamps" + keys, signing_key) if signing_key else mac(b"stamps", keys)) if keys else signing_key
        super().__init__(root, files, open_beneath, trust=trust, signing_key=signing_key, stamp_key=stamp_key)
        self.readonly = readonly
        self.verify = verify
        self.trusted_keys = trusted_keys
        self.publish_key = publish_key
        self.mac_key = mac(self.known_faults, stamp_key or b"") if self.known_faults else stamp_key
        self.min_llvm = min_llvm
        self._host: Host | None = None
        self._in_memory: dict[bytes, ModuleFile] = {}
        self._pack: ModuleFile | None = None  # the pack from which the last entry was read
        self._memory_names: dict[str, dict[tuple[bytes, int], None]] = {}
        self.met_missing_import = False  # whether a load has met a realization with an import that the directory lacks
        self.listener: Callable[[], Loader | None] | None = None  # returns the loader with modules in memory, while it exists
        if user is None:
            self.check_root()
        else:
            self.keep_root(user)
        self.stats: Recorder | NullRecorder
        if recorder is not None:
            self.stats = recorder(self.files, root, readonly=readonly or self.exposed)
        else:
            from compcache.directory.null_recorder import NullRecorder

            self.stats = NullRecorder()

    # --------------------------------------------------------------- look-ups

    def find(self, func_name: str, is_near: IsNear | None = None, *, linked: bool = False) -> Iterator[tuple[bytes, int]]:
        """Yield the (module_id, record offset) of every realization of a function, first those that only this object has.

        The others of a content name follow in the order in which they fit this host, the best first. For a plain name, the newest addition
        is first, and within an addition the realization that fits best.

        If the index that this process has read lacks the name, the index is read again, and rebuilt if it is damaged or missing.

        Args:
            func_name: the name of the function.
            is_near: for a plain name, returns whether a module is preferred. Its realizations precede realizations with the same content.
            linked: whether to also yield realizations in linked closures, whose offsets contain `LINKED`.

        Raises:
            StorageError: the index cannot be read.
        """
        is_found = False
        if self._memory_names:
            yield from list(self._memory_names.get(func_name, ()))
        was_listed = self.index.is_listed
        for candidate in self.find_here(func_name, is_near, linked=linked):
            is_found = True
            yield candidate
        if not is_found and self._renew_index(look=was_listed):
            yield from self.find_here(func_name, is_near, linked=linked)

    def find_here(self, func_name: str, is_near: IsNear | None = None, *, linked: bool = False) -> Iterable[tuple[bytes, int]]:
        """Return the realizations of a function, in the order of `find`, from the index that this process has read.

        With `linked`, realizations in linked closures are included.
        """
        key = name_key(func_name)
        rows = sort_by_preference(self.index.find_numbered(key), is_near) if is_ordered(func_name) else self.index.find(key, linked=linked)
        return rows if linked else (row for row in rows if row[1] < LINKED)

    def find_numbered(self, func_name: str) -> list[Numbered]:
        """Return all rows for a name in the index that this process has read, unordered, with the rows of linked closures."""
        return self.index.find_numbered(name_key(func_name))

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments of the index that look-ups use. They change with every addition and removal."""
        return self.index.segments

    def state(self) -> bytes:
        """Return a value that changes with every addition and removal."""
        return self.index.state()

    def find_all(self, func_name: str) -> list[tuple[bytes, int]]:
        """Read the index again (`renew_index`), and return all realizations of a function as (module_id, record offset)."""
        self.renew_index()
        return self.find_known(func_name)

    def find_known(self, func_name: str) -> list[tuple[bytes, int]]:
        """Return all realizations of a function in memory and in the index that this process has read."""
        return [*self._memory_names.get(func_name, ()), *self.find_here(func_name)]

    def exists(self, module_id: bytes) -> bool:
        """Return whether the file of a module exists. See `present_names` for the exception; a layer has no modules that it cannot read."""
        try:
            self.status_of(module_id)
        except OSError as error:
            reraise_interrupt(error)
            if error.errno not in (ENOENT, ENOTDIR, ELOOP):
                self.report_unreadable(self.module_path(module_id), error)
            return False
        return True

    def holds_in_memory(self, module_id: bytes) -> bool:
        """Return whether only this object has a module, because the module could not be published."""
        return module_id in self._in_memory

    def has_in_memory(self) -> bool:
        """Return whether this object has modules that could not be published."""
        return bool(self._in_memory)

    def hold_in_memory(self, module: ModuleFile, functions: Iterable[tuple[str, int, str]]) -> None:
        """Keep a module that could not be published in this object. `functions` has (func_name, record offset, requirement)."""
        self._in_memory[module.module_id] = module
        for name, offset, _ in functions:
            self._memory_names.setdefault(name, {})[module.module_id, offset] = None

    def refresh(self) -> None:
        """Read the index of this directory again if it was read before, to find what other processes have added. Layers are not read again.

        A damaged or missing index is rebuilt. Raise `StorageError` if the index cannot be read.
        """
        if self.index.is_listed:
            self._renew_index()

    def renew_index(self) -> bool:
        """Read the indexes of the directory and its layers again; return whether an index has changed.

        A damaged or missing index is rebuilt. Raise `StorageError` if an index cannot be read.
        """
        return self._renew_index()

    def _renew_index(self, *, look: bool = True) -> bool:
        """Read the index again if `look` is true, and rebuild a damaged or missing index; return whether it has changed.

        Raise `StorageError` if the index cannot be read.
        """
        try:
            changed = look and self.index.refresh()
            is_empty = (self.index.unfinished or not self.index.segments) and not self.index.problem and not self.index.checked
        except OSError as error:
            reraise_interrupt(error)
            raise StorageError(f"the index of the cache {self.root} cannot be read ({error}): make it readable", path=self.root) from error
        if is_empty or self.index.damaged:
            self.index.checked = True
            if not self._may_be_incomplete():
                return changed
            try:
                from compcache.publish.verify import recover_index
            except MissingPackageError:
                return changed  # compcache-runtime does not rebuild indexes
            segments, damaged = self.index.segments, self.index.damaged.copy()
            recover_index(self)
            changed = changed or self.index.segments is not segments or self.index.damaged != damaged
        return changed

    def _may_be_incomplete(self) -> bool:
        """Return whether the index may be incomplete.

        The empty index of a directory without modules is complete. Most directories on top of layers have no modules.
        """
        with suppress(OSError):  # the recovery reports the reason
            return bool(self.index.damaged) or self.index.unfinished or bool(self.fans())
        return True

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """Open a module's file and verify it. With `leave_stamp`, the index records that the file was verified.

        Raises:
            FileNotFoundError: the file does not exist.
            IntegrityError: the file is damaged and was moved to quarantine, has no valid signature, or belongs to another user.
            IncompatibleTargetError: another version of this package has written the file.
            StorageError: the file cannot be read.
            MissingPackageError: a signature must be checked, and PyNaCl is not installed.
        """
        if module_id in self._in_memory:
            return self._in_memory[module_id]
        module = ModuleFile(self.files, self.module_path(module_id), module_id)
        try:
            self.files.look_again()
            status = module.open(self)
            foreign = self.exposed or self.is_foreign(status)
            if foreign or not self._set_if_verified(module, status):
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
            from compcache.publish.verify import condemn_unreadable

            raise condemn_unreadable(self, module, error) from error
        return module

    def _set_if_verified(self, module: ModuleFile, status: os.stat_result, index: Index | None = None) -> bool:
        """Set the fields of a module from an index (None: this store's) that has a stamp for the current state of the file.

        Return whether the index has such a stamp. Entries without a valid MAC are skipped.
        """
        for image, records, target, flags, functions, key, entry_mac in (index or self.index).verified(module.module_id, status):
            if self.mac_key:
                fields = (module.module_id, Stamp.of(status), image, records, target, flags, functions, key)
                if self._entry_mac(*fields) != entry_mac:
                    continue
            module.describe(image, records, target, flags, key)
            return True
        return False

    def _entry_mac(self, *fields: object) -> bytes:
        """Return the authentication code of a module's entry in the index, or zeros for a store without a key."""
        if not self.mac_key:
            return bytes(16)
        return mac(ModuleEntry(*fields, bytes(16)).encode()[:-16], self.mac_key)[:16]

    def entry_of(self, module: ModuleFile, status: os.stat_result | Stamp, functions: int = 0) -> ModuleEntry:
        """Return the index entry for a verified module file. `functions` is the number of its functions."""
        stamp = status if isinstance(status, Stamp) else Stamp.of(status)
        sizes = (module.image, module.records, module.target_id, module.flags)
        fields = (module.module_id, stamp, *sizes, functions, module.key)
        return ModuleEntry(*fields, self._entry_mac(*fields))

    def record_verified(self, entry: ModuleEntry) -> None:
        """Record in the index that a file was verified in the state of the entry's stamp. Do nothing for a read-only cache."""
        if not self.readonly:
            from compcache.publish.verify import record_verified

            record_verified(self, self.index, entry)

    def read_entry(self, kind: str, name: str, *, alone: bool = True) -> EntryRecord | None:
        """Return the latest entry of data with a kind and name, or the record of its removal; None if there is no readable entry.

        Args:
            kind: the kind of the entry.
            name: the name of the entry.
            alone: whether an entry is returned only if all modules that it requires exist. False if a remote store may have them.
        """
        records, vanished = self._read_entries(kind, name)
        is_repeated = False
        while vanished and (self.renew_index() or not is_repeated):  # until no other process has merged the file in the meantime
            records, vanished = self._read_entries(kind, name)
            is_repeated = True
        latest = max(records, key=lambda record: record.order, default=None)
        if latest is None or (alone and not all(map(self.exists, latest.requires))):
            return None
        return latest

    def _read_entries(self, kind: str, name: str) -> tuple[list[EntryRecord], bool]:
        """Return the readable entries with a kind and name, and whether a file was pruned or merged meanwhile. Exception: see `find`."""
        from compcache.formats.entry import index_name

        records = []
        vanished = False
        for module_id, offset in self.find(index_name(kind, name)):
            try:
                record = self._read_entry(module_id, offset, kind)
            except FileNotFoundError as error:
                reraise_interrupt(error)
                vanished = True
            except CompcacheError:
                continue
            else:
                records += [record] if record is not None and (record.kind, record.name) == (kind, name) else []
        return records, vanished

    def _read_entry(self, module_id: bytes, offset: int, kind: str) -> EntryRecord | None:
        """Return the entry at an offset of a module's file; None if entries of the kind must not be read from this file.

        A pack stays open for the next entries, while its file exists. See `open_module` for the exceptions.
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
        """Return the pack that is kept open if it is this module and its file still exists; None otherwise."""
        pack = self._pack
        if pack is None or pack.module_id != module_id:
            return None
        with suppress(OSError):
            return pack if self.files.fstat(pack.opened.number).st_nlink else None
        return None

    # ---------------------------------------------------------------- removal

    def tell_gone(self, module_id: bytes) -> None:
        """Make the loader forget a module that was removed, so that look-ups in memory do not find it."""
        loader = self.listener() if self.listener is not None else None
        if loader is not None:
            loader.forget(module_id)

    def require_writable(self, path: str = "") -> None:
        """Check that the cache may be changed. Raise `StorageError` if the cache was opened with readonly=True."""
        if self.readonly:
            message = f"the cache {self.root} was opened with readonly=True and cannot be changed: open it without readonly=True"
            raise StorageError(message, path=path or self.root)

    def condemn(self, module: ModuleFile, error: FormatError) -> CompcacheError:
        """Close a module file that cannot be decoded; return the exception with the reason.

        A damaged file is moved to quarantine. An intact file was written by another version of the package.
        """
        from compcache.publish.verify import condemn

        return condemn(self, module, error)

    def quarantine(self, path: str, reason: str) -> IntegrityError:
        """Move a damaged file to quarantine, warn, and return the exception with the reason."""
        from compcache.publish.quarantine import quarantine

        return quarantine(self, path, reason)

    # ----------------------------------------------------------- linked closures

    def has_closures(self) -> bool:
        """Return whether loads may use and store linked closures. Linked closures must depend only on the stored files."""
        return not (self.exposed or self.min_llvm or self._in_memory)

    def host(self) -> Host:
        """Return the description of this host by LLVM. Raise `MissingPackageError` if LLVM is not installed."""
        if self._host is None:
            from compcache.publish.host_file import describe_and_store_host

            self._host = describe_and_store_host(self)
        return self._host

    def close(self) -> None:
        """Close all file descriptors of the store."""
        self._pack = None
        if self._volumes is not None:
            self._volumes.close()
        self.index.close()
        self.files.forget()
