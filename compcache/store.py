"""The cache directory: the place of every file, publishing, and verification.

`PLACES` names every kind of file in it; nothing else in the package spells such a name.

The store knows no LLVM and no symbols: it hands out verified bytes. A file is verified against its digest once;
its stamp (inode, size, times) in the index then vouches for it until any of them changes. What is damaged goes
to `quarantine/`, with one warning, and is a miss from then on.
"""

from __future__ import annotations

import os
from errno import ELOOP, ENOENT, ENOTDIR

from compcache import files as file_ops
from compcache.digest import DIGEST_SIZE, key_suffix, mac, name_key
from compcache.errors import CompcacheError, FormatError, IntegrityError, MissingPackageError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.index import Index, ModuleEntry, Stamp, in_order
from compcache.formats.manifest import LINKED, SUSPECT, read_frame
from compcache.native import runtime
from compcache.record import Record, set_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from compcache.formats.entry import EntryRecord
    from compcache.formats.footer import Footer
    from compcache.formats.host import Processor
    from compcache.formats.host_file import HostFile
    from compcache.formats.index import Numbered, Segment
    from compcache.formats.volumes import Volumes
    from compcache.hit.loader import Loader
    from compcache.hit.recorder import Recorder
    from compcache.signing.keys import PublicKey, SecretKey
    from compcache.targets.host_probe import Host

    #: Whether a realization is preferred to others of the same content, by its module_id.
    IsNear = Callable[[bytes], bool]
    #: Image, records, graph, bitcode and notes of a module.
    Sections = tuple[bytes, bytes, bytes, bytes, bytes]

__all__ = [
    "BUNDLES",
    "CLOSURES",
    "FORMER_DIRECTORIES",
    "GONE",
    "HOSTS",
    "INDEX",
    "JOURNALS",
    "LAYERS",
    "LOCKS",
    "MERGED_LAYERS",
    "MODULES",
    "MODULE_FILES",
    "MODULE_LISTS",
    "PARTS",
    "PINS",
    "PLACES",
    "QUARANTINE",
    "SIGNATURES",
    "SIZE",
    "STATISTICS",
    "TAG",
    "TEMPORARY",
    "UNCACHED",
    "VOLUMES",
    "ModuleFile",
    "NullRecorder",
    "Place",
    "Store",
    "is_ordered",
    "module_id_of",
]


class Place(Record):
    """One kind of file in a cache directory.

    `form` is its path below the root, with what varies in angle brackets; the version of the format is the number at
    the end of the directory's or the file's name. `derived` files can be made again from the modules or by asking the
    system; `cleared` ones go when a cache is cleared. `name` is empty where files have many names, `suffix` where these
    do not end alike.
    """

    __slots__ = ("form", "directory", "name", "suffix", "derived", "cleared")
    form: str
    directory: str
    name: str
    suffix: str
    derived: bool
    cleared: bool

    def __init__(self, form: str, *, derived: bool = False, cleared: bool = False) -> None:
        directory, _, file = form.rpartition("/")
        _, varies, suffix = file.rpartition(">")
        set_field(self, "form", form)
        set_field(self, "directory", directory.partition("/")[0])
        set_field(self, "name", "" if varies else file)
        set_field(self, "suffix", suffix if varies else "")
        set_field(self, "derived", derived)
        set_field(self, "cleared", cleared)

    def file_name(self, stem: str) -> str:
        """Return the name of a file of this kind."""
        return stem + self.suffix

    def includes(self, file_name: str) -> bool:
        """Return whether a file of this name is of this kind."""
        return file_name == self.name if self.name else file_name.endswith(self.suffix)


TAG = Place("CACHEDIR.TAG")
MODULES = Place("modules-v1/<aa>/<module_id>.ccm", cleared=True)
INDEX = Place("index-v1/<LL>-<digest>.idx", derived=True, cleared=True)
PARTS = Place("index-v1/<directories and time>.idx-part", derived=True, cleared=True)
HOSTS = Place("hosts-v4/<boot and processor>.host", derived=True)
LAYERS = Place("layers-v1/<LL>-<digest>.idx", derived=True, cleared=True)
MERGED_LAYERS = Place("layers-v1/<digest>.all", derived=True, cleared=True)
BUNDLES = Place("bundles-v1/<bundle and its state>.unpacked", derived=True, cleared=True)
CLOSURES = Place("closures-v1/<key of the closure>.closure", derived=True, cleared=True)
SIGNATURES = Place("signatures-v1/<module_id>.ed25519", cleared=True)
MODULE_LISTS = Place("module-lists-v5/<LL>-<digest>.list", derived=True, cleared=True)
MODULE_FILES = Place("module-lists-v5/files", derived=True, cleared=True)
JOURNALS = Place("stats/<host>.journal1")
STATISTICS = Place("stats/<unique>.stats1")
SIZE = Place("stats/size-v2", derived=True, cleared=True)
PINS = Place("pins-v1/<key of the name>.pin")
UNCACHED = Place("uncached-v2/<key of the name>.uncached", cleared=True)
VOLUMES = Place("volumes-v1/<digest>.volume", cleared=True)
GONE = Place("volumes-v1/<digest>.gone", cleared=True)
LOCKS = Place("locks/<key of the name>.lock")
TEMPORARY = Place("tmp/<unique>")
QUARANTINE = Place("quarantine/<name>.<unique>", cleared=True)
#: Every kind of file that the package writes into a cache directory.
PLACES = (
    TAG, MODULES, INDEX, PARTS, HOSTS, LAYERS, MERGED_LAYERS, BUNDLES, CLOSURES, SIGNATURES, MODULE_LISTS, MODULE_FILES, JOURNALS,
    STATISTICS, SIZE, PINS, UNCACHED, VOLUMES, GONE, LOCKS, TEMPORARY, QUARANTINE,
)  # fmt: skip
#: What earlier versions of the package wrote to, less the version of the format.
FORMER_DIRECTORIES = ("runtime-v", "catalog-v", "roster-v", "refusals-v", "notes-v")

_MAX_SMALL_FILE = 1 << 24
_FAN = 2  # hexadecimal digits


def is_ordered(name: str) -> bool:
    """Return whether, of several realizations of a name, the newest is meant: for plain names, but not for content or entries of data."""
    answer: bool = runtime.is_ordered(name)
    return answer


class ModuleFile:
    """An open, verified module file. `read_record` gives the payload of one record; close it after use."""

    __slots__ = (
        "_files", "_opened", "copied", "descriptor", "elsewhere", "flags", "image", "key", "module_id", "path", "records", "size",
        "stored", "target_id", "volume",
    )  # fmt: skip

    def __init__(self, files: file_ops.Files, path: str, module_id: bytes) -> None:
        self._files = files
        self._opened: file_ops.Opened | None = None
        self.path = path
        self.descriptor = -1
        self.module_id = module_id
        self.size = 0
        self.elsewhere = False  # in a layer, and nothing says that somebody who is trusted has made it
        self.copied = False  # a verified copy, because others could change the file itself
        self.volume: os.stat_result | None = None  # the status of the volume that it was read of
        self.stored = 0  # how many bytes it takes on disk
        self.describe(0, 0, bytes(8), 0, bytes(16))

    def open(self, store: Store) -> os.stat_result:
        """Open the file, or its volume, until `close` or the end of this object; return the status of the file or volume.

        Raises:
            FormatError: a volume has it, and it is damaged there.
            OSError: it cannot be read.
        """
        try:
            self.adopt(self._files.open_owned(self.path, file_ops.READ_FLAGS))
        except FileNotFoundError as error:
            reraise_interrupt(error)
            found = store.volumes.read(self.module_id)
            if found is None:
                raise
            from compcache.images.anonymous_file import anonymous_file

            content, self.stored, self.volume = found
            self.adopt(anonymous_file(content))
            self.size = len(content)
            return self.volume
        status = self._files.fstat(self.descriptor)
        self.size = self.stored = status.st_size
        return status

    def status(self) -> os.stat_result:
        """Return the status of the open file, or of the volume that it was read of."""
        return self.volume or self._files.fstat(self.descriptor)

    def adopt(self, opened: file_ops.Opened) -> None:
        """Read from this file, which belongs to this object from now on."""
        self._opened = opened
        self.descriptor = opened.number

    def describe(self, image: int, records: int, target_id: bytes, flags: int, key: bytes) -> None:
        """Set the fields that describe the verified content; see `compcache.formats.index.ModuleEntry`."""
        self.image = image
        self.records = records
        self.target_id = target_id
        self.flags = flags
        self.key = key

    def read_record(self, offset: int) -> bytes:
        """Return the payload of the record at this offset of the records section.

        Raises:
            FormatError: the record does not exist or is damaged.
            StorageError: the file cannot be read.
        """
        base, descriptor, files, read = self.image, self.descriptor, self._files, file_ops.read_at
        try:
            return read_frame(lambda at, size: read(files, descriptor, base + at, size), offset, self.records, self.key)
        except OSError as error:
            reraise_interrupt(error)
            raise self._unreadable(error) from error

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes of the file, or fewer at its end."""
        try:
            return file_ops.read_at(self._files, self.descriptor, offset, size)
        except OSError as error:
            reraise_interrupt(error)
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StorageError:
        message = f"cannot read {self.path}: {error.strerror or error}"
        return StorageError(message, path=self.path, errno=error.errno)

    def footer(self) -> Footer:
        """Return the footer, which tells where the sections are."""
        from compcache.formats.footer import FOOTER_SIZE, decode_footer

        if self.size < FOOTER_SIZE:
            raise FormatError(f"it has {self.size} bytes, fewer than a module footer")
        return decode_footer(self.read(self.size - FOOTER_SIZE, FOOTER_SIZE), self.size)

    def close(self) -> None:
        """Close the file descriptor."""
        self.descriptor = -1
        self._opened = None

    def __enter__(self) -> ModuleFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NullRecorder:
    """Counts nothing: for a store without statistics. See `compcache.hit.recorder.Recorder`."""

    __slots__ = ("unaccounted",)

    def __init__(self) -> None:
        self.unaccounted = 0

    def hit(self, func_name: str, module_id: bytes, seconds: float = 0.0) -> None:
        """Record that a function was loaded."""

    def missed(self, error: Exception) -> None:
        """Record that a function was missing."""

    def refused(self, name: str, reason: str) -> None:
        """Record that a file is not used, or a function was not cached."""

    def asked(self, name: str, answer: str) -> None:
        """Record that the remote store answered about a function."""

    def waited(self, what: str, seconds: float, *, owned: bool | None) -> None:
        """Record that another process was waited for."""

    def compiled(self, seconds: float, names: Sequence[str] = ()) -> None:
        """Record that a module was compiled."""

    def added(self, size: int) -> None:
        """Record that a module was published."""

    def count(self, counter: str, amount: float = 1, func_name: str = "", module_id: bytes = b"") -> None:
        """Count something that happened."""

    def write_by(self, files: file_ops.Tree) -> None:
        """Do nothing: nothing is written."""

    def watch(self, loader: Loader) -> None:
        """Note that a loader holds modules from now on."""

    def flush(self, *, now_held: bool = False) -> None:
        """Do nothing: nothing is pending."""

    def reset(self) -> None:
        """Do nothing: there are no counts."""


class Store:
    """A cache directory. The first write creates it; opening one that does not exist succeeds.

    Args:
        root: the directory.
        files: the operating system; the tree of another store, for a directory in its directory.
        open_beneath: see `compcache.files.Tree`.
        readonly: never write; what cannot be had without writing is a miss or is done in memory.
        verify: check the digests of files whose stamp is not known; with a signing key they always are.
        signing_key: accept only modules that carry its signature, and sign what is published.
        trust: open the directory even if other users can write to it.
        trusted_keys: accept only modules that one of these has signed, and what this store publishes itself.
        publish_key: sign what is published for readers with its public key.
        min_llvm: pass over code that an older version of LLVM has compiled; empty for none.
        user: to whom the directory was found to belong alone, when it was opened; it is not checked again.
        recorder: makes what counts events, from the tree, the root and whether nothing may be written there; None counts nothing.

    Raises:
        UntrustedDirectoryError: the directory belongs to another user, or others can write to it.
        StorageError: its owner cannot be found out.
    """

    __slots__ = (
        "_checked_index",
        "_host",
        "_in_memory",
        "_memory_names",
        "_pack",
        "_owners",
        "_processor",
        "_volumes",
        "_warned",
        "exposed",
        "files",
        "index",
        "listener",
        "mac_key",
        "min_llvm",
        "readonly",
        "publish_key",
        "root",
        "signing_key",
        "stamp_key",
        "stats",
        "trust",
        "trusted_keys",
        "verify",
    )
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
        self.root = root
        if isinstance(files, file_ops.Tree):
            self.files = files.part(root)
        else:
            self.files = file_ops.Tree(files or file_ops.Files(), root, open_beneath)
        self.readonly = readonly
        self.verify = verify
        self.signing_key = signing_key
        self.trusted_keys = trusted_keys
        self.publish_key = publish_key
        # With trusted keys, stamps are those of checks for the same keys. Keys are public: they tell stamps apart, and prove nothing.
        keys = "\n".join(sorted(map(str, trusted_keys)))
        self.stamp_key = signing_key or (mac(b"stamps", keys.encode()) if keys else None)
        self.mac_key = mac(self.known_faults, self.stamp_key or b"") if self.known_faults else self.stamp_key
        self.index = Index(self.files, self.directory(INDEX), self.temporary, INDEX.suffix, self.processor)
        self._volumes: Volumes | None = None
        self._host: Host | None = None
        self._processor: Processor | None = None
        self.min_llvm = min_llvm
        self._in_memory: dict[bytes, ModuleFile] = {}
        self._pack: ModuleFile | None = None  # the last one that an entry was read of
        self._memory_names: dict[str, dict[tuple[bytes, int], None]] = {}
        self._checked_index = False
        self._warned: set[str] = set()  # the paths that a warning was given about
        self.listener: Callable[[], Loader | None] | None = None  # gives who has modules in memory, while it lives
        self.trust = trust
        self._owners: frozenset[int] | None = None  # the users whose files are used; None: of all
        self.exposed = False  # others can write here, and nothing but signatures tells what to believe
        if user is None:
            self.check_root()
        else:
            self._use_files_of(user)
        self.stats = NullRecorder() if recorder is None else recorder(self.files, root, readonly=readonly or self.exposed)

    def check_root(self) -> bool:
        """Check who owns the directory and who can write to it; return whether there is one.

        Raises:
            UntrustedDirectoryError: others can write there, and there is neither trust nor a key.
            StorageError: its owner cannot be found out.
        """
        user = os.geteuid()
        self._use_files_of(user)
        try:
            status, link = self.files.status()
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return False  # where none can be made, because this or a parent is a file, the first addition reports that
        except OSError as error:
            reraise_interrupt(error)
            message = f"cannot open the cache directory {self.root}: {error.strerror or error}"
            raise StorageError(message, path=self.root, errno=error.errno) from error
        if self.trust:
            return True
        # The superuser can change what runs here in any case, as in a package that was installed for all users.
        if status.st_uid not in (user, 0) or status.st_mode & file_ops.WRITABLE_BY_OTHERS or link.st_uid not in (user, 0):
            if not self.stamp_key:
                from compcache.publish.verify import distrust

                raise distrust(self.root, status, link, user)
            self.exposed = True
        else:
            self._use_files_of(user, status.st_uid)
        return True

    def _use_files_of(self, *users: int) -> None:
        """Accept the files of these users, and signed files of others; accept derived data only from these users."""
        if not self.trust:
            self._owners = self.index.vouching = frozenset(users)
            self.index.owners = None if self.stamp_key else self._owners

    def is_foreign(self, status: os.stat_result) -> bool:
        """Return whether this is the status of a file that users can write to whose files are not used."""
        return self._owners is not None and file_ops.writer(status) not in self._owners

    # ------------------------------------------------------------------ paths

    @property
    def source(self) -> str:
        """Return what the user named: the bundle, if this is the directory in which it was unpacked."""
        return self.root

    @property
    def temporary(self) -> str:
        """Return the directory in which files are written before they are renamed."""
        return self.directory(TEMPORARY)

    def module_path(self, module_id: bytes) -> str:
        """Return the path of a module, for example ``<root>/modules-v1/3f/3f9c...e1.ccm``."""
        name = module_id.hex()
        return f"{self.root}/{MODULES.directory}/{name[:2]}/{name}{MODULES.suffix}"

    def directory(self, place: Place) -> str:
        """Return the directory of files of this kind."""
        return f"{self.root}/{place.directory}"

    def path(self, place: Place, file_name: str = "") -> str:
        """Return the path of a file; a kind with a single file needs no `file_name`."""
        directory = self.directory(place) if place.directory else self.root
        return f"{directory}/{file_name or place.name}"

    def names(self, place: Place) -> list[str]:
        """Return the names of the files of this kind, sorted; empty where the directory cannot be read. For tools."""
        return [name for name in self.names_in(self.directory(place)) if place.includes(name)]

    def names_in(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; empty where it does not exist or cannot be read."""
        try:
            return sorted(self.files.listdir(directory))
        except OSError as error:
            reraise_interrupt(error)
            return []

    def is_cache(self) -> bool:
        """Return whether the directory has been used as a cache: an empty one has its places, too."""
        return any(self.present_names(self.directory(place)) for place in (MODULES, VOLUMES, INDEX, HOSTS, UNCACHED, BUNDLES))

    def module_ids(self, *fans: str) -> Iterator[bytes]:
        """Yield the ids of all modules on disk, or in these directories, in no order; for tools, never for look-ups."""
        base = self.directory(MODULES)
        present = self.directories()
        for fan in fans or self.fans():
            found = set(self.volumes.of_directory(fan))
            for name in self.present_names(f"{base}/{fan}") if fan in present else ():
                module_id = module_id_of(name)
                if module_id is not None and name[:2] == fan:
                    found.add(module_id)
            yield from found

    def fans(self) -> list[str]:
        """Return the first two digits of modules: those that have a directory, or all where there are volumes."""
        return [f"{number:02x}" for number in range(256)] if self.volumes.are_there() else self.directories()

    def directories(self) -> list[str]:
        """Return the names of the directories of module files, sorted."""
        names = self.present_names(self.directory(MODULES))
        return sorted(name for name in names if len(name) == _FAN and not name.strip("0123456789abcdef"))

    @property
    def volumes(self) -> Volumes:
        """The files that hold several modules: asked where a module has none of its own."""
        if self._volumes is None:
            from compcache.formats.volumes import Volumes

            suffixes = VOLUMES.suffix, GONE.suffix
            self._volumes = Volumes(self.files, self.directory(VOLUMES), suffixes, self._tell_damaged, self.tell_unreadable)
            self._volumes.owners, self._volumes.vouching = self.index.owners, self._owners
        return self._volumes

    def signatures_of(self, module_id: bytes) -> bytes:
        """Return the signatures of a module; empty where it has none that can be read."""
        known = self.read_file(SIGNATURES, SIGNATURES.file_name(module_id.hex()), authenticated=True)
        if known is not None:
            return known
        return self.volumes.signatures(module_id)

    def status_of(self, module_id: bytes) -> tuple[int, float]:
        """Return what a module takes on disk in bytes, and when its file was written, in seconds since the epoch.

        Raises:
            FileNotFoundError: it is not there.
            OSError: that cannot be found out.
        """
        try:
            status = self.files.stat(self.module_path(module_id))
        except FileNotFoundError as error:
            reraise_interrupt(error)
            found = self.volumes.status_of(module_id)
            if found is None:
                raise
            return found
        return status.st_size, status.st_mtime

    def _tell_damaged(self, name: str, reason: str) -> None:
        """Warn once of a volume that is damaged: what was in it is made again."""
        path = self.path(VOLUMES, name)
        if self.is_first_warning(path):
            from compcache.publish.quarantine import warn

            warn(f"{path} is not used as a whole: {reason}; what is missing is compiled again, 'compcache check --repair' mends it")

    def present_names(self, directory: str) -> list[str]:
        """Return the names in a directory, in no order; empty where it does not exist.

        Raises:
            StorageError: it cannot be read, which is not the same as that there is nothing; see `tell_unreadable`.
        """
        try:
            return self.files.listdir(directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            reraise_interrupt(error)
            return []
        except OSError as error:
            reraise_interrupt(error)
            self.tell_unreadable(directory, error)
            return []

    def tell_unreadable(self, path: str, error: OSError) -> None:
        """Say that a part of the directory cannot be read, and what it holds is not known: an error, in a layer a warning."""
        raise self.unreadable(path, error) from error

    @staticmethod
    def unreadable(path: str, error: OSError) -> StorageError:
        """Return the error to raise for something in the directory that cannot be read."""
        return StorageError(f"cannot read {path}: {error.strerror or error}", path=path, errno=error.errno)

    # --------------------------------------------------------------- look-ups

    def find(
        self, func_name: str, is_near: IsNear | None = None, *, again: bool = False, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the (module_id, record offset) of every realization of a function.

        Those of a name of content are found lazily, what fits this host best first. Of a plain name the newest addition comes first, of
        one addition what fits best; before it come those of the same content whose modules are near, if it is said which are.
        What the index of this process does not know is looked for on disk once more; `again` says the same of newer realizations.
        Those of `linked` closures have `LINKED` in their offsets.
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
        """Find the same in the index that this process has read."""
        key = name_key(func_name)
        found = in_order(self.index.find_numbered(key), is_near) if is_ordered(func_name) else self.index.find(key)
        return found if linked else (row for row in found if row[1] < LINKED)

    def find_numbered(self, func_name: str) -> list[Numbered]:
        """Return what the index that this process has read says of a name, also of linked closures, in no order."""
        return self.index.find_numbered(name_key(func_name))

    def segments(self) -> tuple[Segment, ...]:
        """Return the parts of the index that look-ups use: others when anything was added or removed."""
        return self.index.segments

    def state(self) -> bytes:
        """Return a value that changes when anything is added or removed."""
        return self.index.state()

    def find_all(self, func_name: str) -> list[tuple[bytes, int]]:
        """Return every realization in the index at this moment."""
        self.renew_index()
        return self.find_known(func_name)

    def find_known(self, func_name: str) -> list[tuple[bytes, int]]:
        """Return every realization in the index as this process knows it."""
        return [*self._memory_names.get(func_name, ()), *self.find_here(func_name)]

    def exists(self, module_id: bytes) -> bool:
        """Return whether the file of a module exists.

        Raises:
            StorageError: that cannot be found out.
        """
        try:
            self.status_of(module_id)
        except OSError as error:
            reraise_interrupt(error)
            if error.errno not in (ENOENT, ENOTDIR, ELOOP):
                self.tell_unreadable(self.module_path(module_id), error)
            return False
        return True

    def holds_in_memory(self, module_id: bytes) -> bool:
        """Return whether this object alone has the module, which could not be published."""
        return module_id in self._in_memory

    def has_in_memory(self) -> bool:
        """Return whether this object alone has any module."""
        return bool(self._in_memory)

    def hold_in_memory(self, module: ModuleFile, functions: Iterable[tuple[str, int, str]]) -> None:
        """Keep a module that could not be published, with its functions, in this object alone."""
        self._in_memory[module.module_id] = module
        for name, offset, _ in functions:
            self._memory_names.setdefault(name, {})[module.module_id, offset] = None

    def renew_index(self) -> bool:
        """Look at the index on disk again, and at those of layers; return whether one has changed."""
        return self._renew_index()

    def _renew_index(self, *, look: bool = True) -> bool:
        """Read the index again, rebuilding it where it is damaged or missing; return whether it has changed."""
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
        """Return whether an index without segments can be that of anything: above layers a directory without modules is the usual case."""
        try:
            return bool(self.index.damaged) or self.index.unfinished or bool(self.fans())
        except OSError as error:  # the recovery says what cannot be read
            reraise_interrupt(error)
            return True

    def open_module(self, module_id: bytes, *, leave_stamp: bool = True) -> ModuleFile:
        """Open and verify a module; with `leave_stamp` the index learns that it was verified.

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
        """Return whether the index, or this one, has a stamp of the file in its present state."""
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

    def read_file(self, place: Place, file_name: str = "", *, most: int = _MAX_SMALL_FILE, authenticated: bool = False) -> bytes | None:
        """Return the content of a file of at most this size; None where it does not exist or cannot be read.

        Also None where another user may have written it, unless the reader has its content `authenticated`.
        """
        if self.exposed and not authenticated:
            return None
        try:
            return file_ops.read_file(self.files, self.path(place, file_name), most, owners=None if authenticated else self._owners)
        except OSError as error:
            reraise_interrupt(error)
            return None

    def read_entry(self, kind: str, name: str, *, alone: bool = True, again: bool = True) -> EntryRecord | None:
        """Return the entry of data in force under this name, or the record of its removal; None if there is neither, or it cannot be read.

        One whose modules are not all there is none, unless they may be elsewhere: in a remote store, where this one is not `alone`. It is
        looked for `again` where a file is gone since the index was read.
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
        """Return the entry at this place of a file, if entries of the kind may be read of it.

        A pack stays open, since others of its entries are often asked for next, for as long as its file is there.
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
        """Let no look-up find a module in memory any more."""
        loader = self.listener() if self.listener is not None else None
        if loader is not None:
            loader.forget(module_id)

    def require_writable(self, path: str = "") -> None:
        """Refuse to change a cache that was opened with readonly=True.

        Raises:
            StorageError: it was.
        """
        if self.readonly:
            message = f"the cache {self.root} was opened with readonly=True: it cannot be changed through this object"
            raise StorageError(message, path=path or self.root)

    def condemn(self, module: ModuleFile, error: FormatError) -> CompcacheError:
        """Close a module file that does not decode; return the exception that says why.

        A damaged one goes to quarantine; one that is as it was published was made by another version.
        """
        from compcache.publish.verify import condemn

        return condemn(self, module, error)

    def is_first_warning(self, path: str) -> bool:
        """Return whether this is the first warning about a path; each is issued once."""
        if path in self._warned:
            return False
        self._warned.add(path)
        return True

    def quarantine(self, path: str, reason: str) -> IntegrityError:
        """Quarantine a damaged file, warn, and return the exception."""
        from compcache.publish.quarantine import quarantine

        return quarantine(self, path, reason)

    # ------------------------------------------------------------------- host

    def processor(self) -> Processor:
        """Return this machine's processor, described by its own words."""
        if self._processor is None:
            from compcache.hit.target import load_runtime

            self._processor = host.read_processor(load_runtime(), self._until_boot, self._name_of_cpu)
        return self._processor

    def has_closures(self) -> bool:
        """Return whether what is found out about linked closures is kept for others: nothing but what is stored decides it."""
        return not (self.exposed or self.min_llvm or self._in_memory)

    def host(self) -> Host:
        """Return this machine, as LLVM describes it.

        Raises:
            MissingPackageError: there is no LLVM.
        """
        if self._host is None:
            from compcache.publish.host_file import describe_host

            self._host = describe_host(self)
        return self._host

    def host_file(self) -> tuple[str, HostFile | None]:
        """Return the name of this machine's file (empty if the machine cannot be identified), and its trusted content."""
        from compcache.formats.host_file import decode_host
        from compcache.hit.target import load_runtime

        key = self._until_boot(load_runtime().processor())
        if key is None:
            return "", None
        name = HOSTS.file_name(key + key_suffix(self.signing_key))
        data = self.read_file(HOSTS, name, authenticated=self.signing_key is not None)
        return name, decode_host(data, name, self.signing_key) if data else None

    def _until_boot(self, processor: bytes) -> str | None:
        from compcache.formats.host_file import host_key

        return host_key(self.files, processor)

    def _name_of_cpu(self) -> str:
        _, known = self.host_file()
        return known.cpu if known else ""

    def close(self) -> None:
        """Close the file descriptors."""
        self._pack = None
        if self._volumes is not None:
            self._volumes.close()
        self.index.close()
        self.files.forget()


def module_id_of(name: str) -> bytes | None:
    """Return the module_id in the name of a module file; None for other names."""
    try:
        module_id = bytes.fromhex(name[: -len(MODULES.suffix)])
    except ValueError as error:
        reraise_interrupt(error)
        return None
    return module_id if len(module_id) == DIGEST_SIZE and name == MODULES.file_name(module_id.hex()) else None
