"""The plain hit: all dependencies of the function are functions, and the directory belongs to this user alone."""

# This file has everything for such a hit. It imports nothing of the package but the runtime, the type of targets and the counter of
# hits, because a fresh process pays for what it reads, not for what it executes. Its decisions never differ from those of
# `compcache.store` and `compcache.hit.loader`: in any other case (keys, layers, several realizations without a known newest one,
# globals, damage, a failed look-up) it gives no answer. The `PlainLoader` then becomes a `Loader`, which starts again.
#
# `compcache.hit.loader` explains the tables of targets and modules, and their locks. `LoadedModule` is a mapped image.

# Long texts in the files of a plain hit are comments, because a fresh process reads docstrings.
#
# Files on the path of a hit do not import `__future__`, which costs half a million instructions. So annotations are in quotes.
import os
from _thread import RLock
from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined] # importing `weakref` is slow
from sys import audit
from time import perf_counter

from compcache.hit.target import TargetContext, load_runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from compcache.directory.module_file import ModuleFile
    from compcache.files import Opened, Tree
    from compcache.hit.closures.linked import LinkedClosures
    from compcache.hit.plain_imports import PlainFunctions
    from compcache.hit.target import TypedCallTarget

    #: A linked closure that plain hits have found: its id, the names of the index's files for which it is valid, the joined ids of its
    #: parts, how many of them, from the first one, it contains whole, its open file (see `PlainLoader._open_module`) or None, and the
    #: contents of its loaded functions by the offsets of their records.
    PlainClosure: TypeAlias = tuple[bytes, bytes, bytes, int, Any, dict[int, bytes]]
    #: The module, the record and the closure of a function, the offset of its record, its content, and what it imports.
    Found: TypeAlias = tuple["LoadedModule", tuple[Any, ...], PlainClosure | None, int, bytes, PlainFunctions | None]

__all__ = [
    "CLOSURES_DIRECTORY", "CLOSURE_SUFFIX", "GONE_SUFFIX", "INDEX_DIRECTORY", "MODULES_DIRECTORY", "MODULE_SUFFIX",
    "VOLUMES_DIRECTORY", "VOLUME_SUFFIX", "Door", "LoadedModule", "PlainLoader", "open_plain",
]  # fmt: skip

#: The values of `compcache.store.PLACES`, which a plain hit does not import.
INDEX_DIRECTORY = "index-v1"
MODULES_DIRECTORY, MODULE_SUFFIX = "modules-v1", ".ccm"
CLOSURES_DIRECTORY, CLOSURE_SUFFIX = "closures-v1", ".closure"
VOLUMES_DIRECTORY, VOLUME_SUFFIX, GONE_SUFFIX = "volumes-v1", ".volume", ".gone"
#: The value of `compcache.store.Store.KNOWN_FAULTS`.
KNOWN_FAULTS = b""
_READ_WHOLE = 1 << 16  # a segment with up to this many bytes is read whole
_LARGEST_CLOSURE = 1 << 20  # bytes of a file that records whether a closure is valid
_IMAGE_SHARED, _NO_ENTRY, _LINKED, _LINK_ONLY = 1, 0xFFFFFFFF, 1 << 31, "= "  # the values of `compcache.formats.manifest`

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LIST = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_OTHERS_WRITE = 0o022

_lock: "Any" = RLock()
_mapping: "Any" = RLock()
#: The names of the index's files, which are None if they are not known, and by segment: functions, modules, places of requirements.
_NO_INDEX: "tuple[bytes | None, tuple[Any, ...], tuple[Any, ...], tuple[tuple[Any, int, int], ...]]" = None, (), (), ()
#: For how many seconds a finalizer that holds `_lock` waits for another thread's constructors.
_PATIENCE = 10.0


class LoadedModule:
    """A mapped image and the objects that its filled slots refer to."""

    __slots__ = ("__weakref__", "committed", "file", "given_up", "image", "module_id", "size", "slots", "started", "starter")

    def __init__(self, module_id: bytes, size: int) -> None:
        self.module_id = module_id
        self.size = size
        self.image: Any = None  # None while the module is only claimed
        self.committed = False  # whether a load that uses the module has succeeded
        self.given_up = False  # whether mapping failed: such a module claims nothing, whatever keeps it alive
        self.started = False  # whether constructors that wait for imports have run
        self.starter: Any = None  # runs the constructors that waited for imports, and when the module is gone the destructors
        #: By the number of a filled slot, or the name of an import without a slot, the object that must live as long as the image:
        #: the defining module, or the decoded value of a global.
        self.slots: dict[int | str, object] = {}
        self.file: ModuleFile | None = None  # kept for linked closures


class Door:
    """Reads a directory: the part of `compcache.files.Tree` that a hit needs."""

    __slots__ = ("_entered", "_prefix", "_runtime", "_tree", "owner", "root")

    fstat = staticmethod(os.fstat)
    pread = staticmethod(os.pread)
    write = staticmethod(os.write)

    def __init__(self, root: str, runtime: "Any") -> None:
        self.root = root
        self.owner = os.geteuid()  # the required owner of the directory and of its files
        self._runtime = runtime
        self._entered: tuple[Opened, int, tuple[int, int]] | None = None  # the root, its descriptor, and its (device, inode)
        self._prefix = root if root.endswith("/") else root + "/"
        self._tree: Tree | None = None

    def enter(self) -> "tuple[Opened, int, tuple[int, int]]":
        """Open and return the root.

        Raise `PermissionError` if the root belongs to another user or other users can write to it, or `OSError` if it cannot be opened or
        its path leads through a link.
        """
        audit("open", self.root, None, _ENTER)
        opened = self._runtime.open_beneath(-1, self.root, _ENTER, 0)
        status = os.fstat(opened.number)
        if status.st_uid != self.owner or status.st_mode & _OTHERS_WRITE:
            raise PermissionError(f"users other than {self.owner} can write to {self.root}")  # the complete look-up says why
        self._entered = entered = opened, opened.number, (status.st_dev, status.st_ino)
        return entered

    def renew(self) -> "tuple[Opened, int, tuple[int, int]]":
        """Return the open root. See `enter` for the exceptions."""
        # Open it again if it was closed or its path leads elsewhere.
        entered = self._entered
        if entered is None or not self._runtime.is_at(entered[1], self.root):
            self.leave()
            entered = self.enter()
        return entered

    def leave(self) -> None:
        """Close the root. The next use opens it again."""
        # If the program has closed the descriptor, its number may be in use and is not closed again.
        entered, self._entered, self._tree = self._entered, None, None
        if entered is not None and not _is_still_open(entered):
            entered[0].number = -1

    def open_owned(self, path: str, flags: int, mode: int = 0, may_lack: bool = False) -> "Any":
        """Open a file below the root. With `may_lack`, return None for a missing file."""
        # `Tree.open_owned` opens other files. A handler for the error of a missing file would import much.
        if not path.startswith(self._prefix):
            return self._full_tree().open_owned(path, flags, mode)
        entered = None if flags & os.O_CREAT else self._entered
        if entered is None:
            entered = self.renew()
        audit("open", path, None, flags)
        return self._runtime.open_beneath(entered[1], path[len(self._prefix) :], flags, mode, may_lack)

    def __getattr__(self, name: str) -> "Any":
        """Return an attribute of `Tree`, which is imported at the first request."""
        return getattr(self._full_tree(), name)

    def _full_tree(self) -> "Tree":
        """Return the `Tree` for this directory, created at the first request."""
        if self._tree is None:
            from compcache.files import Files, Tree

            self._tree = Tree(Files(), self.root, self._runtime.open_beneath)
        return self._tree


class PlainLoader:
    """Loads the plain functions of one directory. Its tables are those of the `Loader` that it can become."""

    __slots__ = (
        "__weakref__", "_accepted", "_by_name", "_closure", "_current", "_ended", "_files", "_host", "_index", "_index_path", "_listed",
        "_modules", "_owner", "_recorder", "_root", "allow_pickle", "builds", "changed", "closed", "decoded",
        "linked", "links", "maps_files", "merged", "opened", "providers", "store", "targets",
    )  # fmt: skip

    def __init__(self, root: str, files: "Door | Tree | None") -> None:
        """Load from this directory through `files`. With None, no hit is plain."""
        self._root = root
        self._files: Any = files
        self._index_path = f"{root}/{INDEX_DIRECTORY}"
        self._index = _NO_INDEX
        self._listed: tuple[bytes | None, bytes] = b"", b""  # names, and the state of their directory
        self._accepted: set[bytes] = set()
        self._host: tuple[str, dict[str, int], str] | None = None  # see `_read_host`
        self._recorder: Any = None
        self._owner = -1
        self._closure: PlainClosure | None = None
        self.allow_pickle = False
        self.maps_files = 2  # decided by the kind of the file system
        #: The table from which look-ups answer at once: `_by_name`, or an empty one while functions are built.
        self.targets: dict[str, ref[TypedCallTarget]] = {}
        self._by_name: dict[str, ref[TypedCallTarget]] = {}
        self._current: dict[object, ref[TypedCallTarget]] = {}  # valid targets that look-ups return, by any unique object
        self._ended: dict[object, ref[TypedCallTarget]] = {}  # valid targets that look-ups no longer return
        self.builds: set[object] = set()  # the running builds
        self.changed: object = None  # replaced whenever the tables change
        self._modules: dict[bytes, ref[LoadedModule]] = {}
        self.merged: dict[str, ref[LoadedModule]] = {}  # by variable: the module that provides it, if several define it
        self.providers: dict[str, ref[LoadedModule]] = {}  # by variable: the module from which other modules import it
        self.linked: LinkedClosures | None = None  # the linked closures that look-ups have found
        self.links = False  # whether functions that reach several modules are not plain, because the `Loader` has them linked
        self.closed = False
        self.decoded = 0  # the number of globals decoded by loads that succeeded
        self.opened = 0  # the number of images mapped by loads that succeeded

    def count_with(self, get_recorder: "Callable[[Any, str], Any]") -> None:
        """Count hits with the recorder of the directory."""
        self._recorder = get_recorder(self._files, self._root)
        self._recorder.watch(self)

    def close_plain(self) -> None:
        """Write the counters, invalidate all targets, and close the files that were opened without a store."""
        try:
            if self._recorder is not None:
                self._recorder.flush()
        finally:  # after an interrupt
            self.close()
            self.leave_plain()
            self._closure = None

    def leave_plain(self) -> None:
        """Close the files. No hit is plain any more."""
        files, self._files = self._files, None
        self._index = _NO_INDEX
        if files is not None:
            files.leave()

    # ------------------------------------------------------------------- look-up

    def load_plain(self, func_name: str, owner: object) -> "TypedCallTarget | None":
        """Return the call target of a function, and count the hit; None if the hit is not plain, and after errors."""
        if self._files is None or self.builds or self.closed or self.providers or self.merged or self.linked is not None:
            return None
        started = perf_counter()
        try:
            runtime = load_runtime()
            found = self._look_up_in_closure(runtime, func_name) or self._look_up(runtime, func_name)
            if found is None:
                return None
            target = self._commit_plain(runtime, found, owner)
        except Exception as error:  # noqa: BLE001 - whatever the error is, `Loader` meets it again and reports it
            from compcache.interrupts import reraise_interrupt

            reraise_interrupt(error)
            self._index = _NO_INDEX
            return None
        if target is not None and self._recorder is not None:
            self._recorder.hit(func_name, found[0].module_id, perf_counter() - started)
        return target

    def _look_up_in_closure(self, runtime: "Any", func_name: str) -> "Found | None":
        """Return what `_look_up` returns for a function of the loaded closure; None if it has imports, or more must be checked."""
        closure = self._closure
        if closure is None:
            return None
        closure_id, listed, _, _, file, _ = closure
        if file is None or listed is not self._index[0]:
            return None
        if not (self._is_unchanged(runtime) or self._refresh_index(runtime)):
            return None
        names, functions, _, _ = self._index
        opened, _, _, in_index = file
        found = runtime.find_in_closure(functions, closure_id, opened.number, in_index, func_name, runtime.is_ordered(func_name))
        module = self._loaded(closure_id)
        if found is None or module is None or listed is not names:
            return None
        record, offset, content = found
        _, _, signature, features_id, _, entry, needs, _ = record
        if entry == _NO_ENTRY or needs or signature.startswith(_LINK_ONLY) or features_id not in self._accepted:
            return None
        return module, record, closure, offset, content, None

    # Rows of `_find`: segment, module_id, offset, number, content. Records: name, symbol, signature, features_id, function, entry, needs,
    # link_type. Opened modules: file, path, size, index entry. Closures: module_id, names, parts, homes, opened module, contents.
    def _look_up(self, runtime: "Any", func_name: str) -> "Found | None":
        """Map a function's module, and return data for `_commit_plain`; None if it is not plain. Errors: see `_open_module`."""
        searched = self._find(runtime, func_name)
        if searched is None:
            return None
        found, closure = searched
        module_id = found[1]
        file = closure[4] if closure is not None and closure[4] else self._open_module(runtime, found[0], module_id)
        record = self._read_function(runtime, func_name, found, file)
        if record is None or record[5] == _NO_ENTRY or record[2].startswith(_LINK_ONLY):
            return None
        imported = None
        if record[6]:
            from compcache.hit.plain_imports import collect_imports

            imported = collect_imports(self, runtime, module_id, file, record)
            if imported is None or (imported and self.links and closure is None):
                return None
        if closure is not None and closure[4] is None:
            closure = *closure[:4], file, closure[5]
        module = self._provide(runtime, module_id, file)
        if imported:
            imported.provide(self, runtime)
        return module, record, closure, found[2] & ~_LINKED, found[4], imported

    def _read_function(self, runtime: "Any", func_name: str, row: "Any", file: "Any") -> "Any":
        """Return the record of a function; None if it is for another name, or its module is unverified, not ELF, or cannot run here."""
        segment, _, offset, number, _ = row
        opened, _, _, entry = file
        if entry is None:
            return None
        target_id, flags = entry[2:4]
        if flags != _IMAGE_SHARED:
            return None
        record = runtime.read_function(opened.number, entry, offset & ~_LINKED, func_name)
        if record is None:
            return None
        accepted = self._accepted
        if not (target_id in accepted and record[3] in accepted) and not self._accept_if_usable(
            runtime, segment, number, target_id, record[3]
        ):
            return None
        return record

    def _provide(self, runtime: "Any", module_id: bytes, file: "Any") -> "LoadedModule":
        """Return a module, mapped now if it is not loaded. `file` is the result of `_open_module`. See `_map` for the exceptions."""
        module = self._loaded(module_id)
        if module is None:
            opened, path, total, (image_size, _, _, _, _, key, _) = file
            with self.mapping():
                module = self._loaded(module_id) or self._map(
                    module_id, image_size, _map_image, runtime, opened.number, path, key, total, self.maps_files
                )
        return module

    def _open_module(self, runtime: "Any", segment: int, module_id: bytes) -> "Any":
        """Return a module's open file (None if no volume has it), its path, its size and its index entry (None if it must be verified).

        Raise `OSError` if the file cannot be opened, or `FormatError` if it is damaged in a volume.
        """
        name = module_id.hex()
        path = f"{self._root}/{MODULES_DIRECTORY}/{name[:2]}/{name}{MODULE_SUFFIX}"
        opened = self._files.open_owned(path, _READ, may_lack=True)
        if opened is None:
            return self._open_in_volume(runtime, path, segment, module_id)
        return opened, path, *self._verify(runtime, opened, segment, module_id)

    def _verify(self, runtime: "Any", opened: "Opened", segment: int, module_id: bytes) -> "tuple[int, Any]":
        """Return the size of an open file (0 if others can write to it), and the module's index entry with the file's stamp, or None."""
        stamp = runtime.stamp_of(opened.number, self._owner)
        if stamp is None:
            return 0, None
        mac_key = runtime.digest(KNOWN_FAULTS, 32, b"compcache-mac-v1") if KNOWN_FAULTS else b""
        return stamp[1], runtime.stamped(self._index[2], segment, module_id, stamp, mac_key)

    def _open_in_volume(self, runtime: "Any", path: str, segment: int, module_id: bytes) -> "Any":
        """Return what `_open_module` returns, for a module in a volume."""
        # The index entry has the stamp of the volume in which the module was verified. The list of this volume has each removal
        # of the module while the volume exists, whether or not another volume replaces it.
        files, directory = self._files, f"{self._root}/{VOLUMES_DIRECTORY}"
        audit("open", directory, None, _LIST)
        for name in runtime.names_beneath(files.renew()[1], VOLUMES_DIRECTORY)[0].decode().split("/"):
            stem, is_volume, _ = name.partition(VOLUME_SUFFIX)
            if not is_volume:
                continue
            volume = files.open_owned(f"{directory}/{name}", _READ)
            size, entry = self._verify(runtime, volume, segment, module_id)
            if entry is not None:
                table, _, dictionary, replaced = runtime.open_volume(volume.number, size, True)
                gone = files.open_owned(f"{directory}/{stem}{GONE_SUFFIX}", _READ, may_lack=True)
                listed = files.fstat(gone.number).st_size if gone else 0
                removed = files.pread(gone.number, listed, 0) if listed < _READ_WHOLE and gone else b""
                if listed < _READ_WHOLE and module_id not in removed and (gone or bytes.fromhex(stem) not in replaced):
                    content, _ = runtime.unpack_member(volume.number, dictionary, table.find(module_id)[0])
                    opened = runtime.memory_file("compcache")
                    if files.write(opened.number, content) == len(content):
                        return opened, path, len(content), entry
        return None, path, 0, None

    def _find(self, runtime: "Any", func_name: str) -> "Any":
        """Look a function up in the index.

        Return the row from `runtime.newest` and the linked closure, if any; None if the function is not plain.
        """
        if not self._refresh_index(runtime):
            return None
        names, functions, _, _ = self._index
        row = runtime.newest(functions, func_name, runtime.is_ordered(func_name))
        if row is None:
            return None
        closure = None
        if row[2] >= _LINKED:
            closure = self._closure
            if closure is None or closure[0] != row[1] or closure[1] is not names:
                closure = self._find_closure(runtime, row[1], names)
            if closure is None:
                return None
        return (row, closure) if self._is_compatible(closure) else None

    def _find_closure(self, runtime: "Any", module_id: bytes, names: "bytes | None") -> "PlainClosure | None":
        """Return a linked closure that is recorded as valid for an index with these names and for this processor, or None.

        Raise `OSError` if its file is missing or cannot be read.
        """
        _, words, identity = self._read_host(runtime)
        if not words or KNOWN_FAULTS:
            return None
        file_name = runtime.digest(module_id + b"linked" + identity.encode(), 16).hex() + CLOSURE_SUFFIX
        opened = self._files.open_owned(f"{self._root}/{CLOSURES_DIRECTORY}/{file_name}", _READ)
        stamp = runtime.stamp_of(opened.number, self._owner)
        if stamp is None or stamp[1] > _LARGEST_CLOSURE:
            return None
        found = runtime.valid_closure(self._files.pread(opened.number, stamp[1], 0), file_name.encode(), names)
        return None if found is None else (module_id, names, *found, None, {})

    def _is_compatible(self, closure: "PlainClosure | None") -> bool:
        """Return whether a closure (None: a module outside of closures) may be loaded beside the loaded modules."""
        own = self._closure
        if own is not None and self._loaded(own[0]) is not None:
            return closure is not None and closure[0] == own[0]
        return closure is None or not any(module.committed for module in self.loaded_modules())

    def _refresh_index(self, runtime: "Any") -> bool:
        """Read the index if it has changed. Return False if a file is unknown, others can write to a segment, or names keep changing."""
        files, directory, known = self._files, self._index_path, self._index
        root = files.renew()
        if self._is_unchanged(runtime):
            return True
        tables: Any = {}
        for _ in range(8):  # until all segments that are listed can be opened
            audit("open", directory, None, _LIST)
            names, state = runtime.names_beneath(root[1], INDEX_DIRECTORY)
            if names == known[0]:
                self._listed = known[0], state
                return True
            segments = runtime.segment_names(names)
            if segments is None:
                return False
            tables = tables or dict(zip(runtime.segment_names(known[0] or b""), zip(*known[1:], strict=True), strict=True))
            for name in [name for name in segments if name not in tables]:
                file = files.open_owned(f"{directory}/{name}", _READ, may_lack=True)
                if file is None:  # merged into another one since it was listed
                    break
                stamp = runtime.stamp_of(file.number, self._owner)
                if stamp is None:
                    return False
                size = stamp[1]
                source = files.pread(file.number, size, 0) if size <= _READ_WHOLE else lambda at, n, f=file: files.pread(f.number, n, at)
                functions, modules, start, length, _ = runtime.open_segment(source, size, name)
                tables[name] = functions, modules, (source, start, length)
            else:  # at once: handlers and threads refresh it, too
                self._index = names, *(zip(*map(tables.get, segments), strict=True) if segments else _NO_INDEX[1:])
                self._listed = names, state
                return True
        return False

    def _is_unchanged(self, runtime: "Any") -> bool:
        """Return whether the index is known to have the segments that were read last."""
        names, state = self._listed
        return names is self._index[0] and runtime.is_unchanged(self._index_path, state)

    def _accept_if_usable(self, runtime: "Any", segment: int, number: bytes, target_id: bytes, features_id: bytes) -> bool:
        """Accept the ids of a numbered requirement if this host meets it. Return whether both given ids are accepted."""
        text = runtime.requirements(*self._index[3][segment]).get(number)
        if text is None:
            return False
        platform, words, identity = self._read_host(runtime)
        if not words or not runtime.platform_serves(text, platform, os.confstr("CS_GNU_LIBC_VERSION") or ""):
            return False
        if not runtime.processor_meets(text.rpartition("\0")[2], words, identity, runtime.processor_word):
            return False
        without_features = text.rpartition("\0")[0] + "\0"
        self._accepted |= {runtime.digest(form.encode("utf-8", "surrogatepass"), 8) for form in (text, without_features)}
        return target_id in self._accepted and features_id in self._accepted

    def _read_host(self, runtime: "Any") -> "tuple[str, dict[str, int], str]":
        """Return the platform of this process, and the words (none if unknown) and the identity of its processor."""
        if self._host is None:  # each question to the processor of a virtual machine stops the machine
            content = runtime.processor()
            platform = f"{os.uname().machine}-linux-elf"  # the only platform of plain hits
            self._host = platform, runtime.processor_words(content), runtime.digest(platform.encode() + content, 12).hex()
        return self._host

    # ----------------------------------------------------------------- mapping

    def _loaded(self, module_id: bytes) -> "LoadedModule | None":
        """Return a mapped module of this loader, or None."""
        weak = self._modules.get(module_id)
        module = weak() if weak is not None else None
        return module if module is not None and module.image is not None else None

    def mapping(self) -> "Any":
        """Return the lock that a thread holds while it maps images and runs constructors."""
        return _BoundedMappingLock() if _lock._is_owned() else _mapping

    def _map(self, module_id: bytes, size: int, map_image: "Callable[..., Any]", *arguments: "Any") -> "LoadedModule":
        """Claim a module, map it by calling `map_image` with the arguments, and return it.

        Raise `LinkError` if one of the module's own constructors requests it, or `ReentrantLoadError` if this look-up interrupts its
        mapping.
        """
        module = LoadedModule(module_id, size)
        try:
            if not _claim(self._modules, module_id, module):
                committed = self._loaded(module_id)  # a thread has mapped it meanwhile
                if committed is not None:
                    return committed
                from compcache.hit.interrupts import half_mapped_error, in_constructor_error

                raise in_constructor_error(module_id) if load_runtime().is_linking() else half_mapped_error(module_id)
            module.image = map_image(*arguments)
        finally:
            if module.image is None:  # the traceback may keep the module alive
                module.given_up = True  # no call here: a signal handler that raises would leave the claim in place
        return module

    # ------------------------------------------------------------------ commit

    def held(self, func_name: str) -> "TypedCallTarget | None":
        """Return the call target of a function in memory, else None."""
        weak = self._by_name.get(func_name)
        return weak() if weak is not None else None

    def _commit_plain(self, runtime: "Any", found: "Found", owner: object) -> "TypedCallTarget | None":
        """Bind a function to its imports, and return its target; None if another thread's load conflicts, or the loader was closed."""
        module, record, closure, offset, content, imported = found
        name, symbol, signature, _, function, entry, _, _ = record
        context = TargetContext(name, symbol, module, signature, self._root, False, owner)
        target: TypedCallTarget = runtime.make_target(module.image, function, entry, name, context)
        modules = imported.modules() if imported else {module.module_id: module}
        with _lock:
            is_committed = False
            while not is_committed:  # try again if an interrupt of this thread has changed the tables
                change = self.changed = object()
                is_loaded = not imported and self._loaded(module.module_id) is module
                is_further = is_loaded and closure is self._closure
                if self.closed or self._files is None or not (is_further or self._is_compatible(closure)):
                    return None
                held = self._by_name.get(name)
                existing = held() if held is not None else None
                if existing is not None:
                    return existing
                writes, tables = b"", self._table_updates(runtime, name, target, change)
                if not is_loaded:
                    new_modules = self._new_rows(modules)
                    if new_modules is None or (imported and (self.providers or self.merged)):
                        return None  # another thread has loaded the module, or modules that provide variables
                    writes, updates = imported.bindings(runtime) if imported else (b"", [])
                    updates += imported.provider_updates(self) if imported else []
                    tables = *updates, *tables, self._modules, new_modules
                commit = runtime.commit
                is_committed = self.changed is change and commit(writes, tables) is None  # handlers run between lines
            if closure is not None:
                (closure if is_further else self._keep_closure(closure))[5][offset] = content
            for loaded in modules.values():
                self.opened += not loaded.committed
                loaded.committed = True
        return target

    def _keep_closure(self, closure: "PlainClosure") -> "PlainClosure":
        """Keep a closure, with what was loaded from it before, and return it."""
        own = self._closure
        if own is not closure:
            self._closure = closure if own is None or own[0] != closure[0] else (*closure[:4], *own[4:])
        return self._closure or closure

    def _new_rows(self, modules: "dict[bytes, LoadedModule]") -> "dict[bytes, Any] | None":
        """Return the new rows for the table of modules, or None if another mapping has replaced one of the modules."""
        new = {}
        for key, module in modules.items():
            loaded = self._loaded(key)
            if loaded is None:
                new[key] = _weak(self._modules, key, module)
            elif loaded is not module:
                return None
        return new

    def _table_updates(self, runtime: "Any", func_name: str, target: "TypedCallTarget", token: object) -> "tuple[dict[Any, Any], ...]":
        """Return the updates of the tables of targets: each table, followed by its new rows. The token is the key in `_current`."""
        targets, by_name, current = self.targets, self._by_name, self._current
        weak = runtime.weak_row(target, _remove_dead_weakref, targets, func_name, by_name, func_name, current, token)
        row, by_token = {func_name: weak}, {token: weak}
        return (by_name, row, current, by_token) if self.builds else (by_name, row, current, by_token, targets, row)

    def loaded_modules(self) -> "list[LoadedModule]":
        """Return the modules that this loader has loaded and that are still referenced."""
        modules = [self._loaded(module_id) for module_id in list(self._modules)]
        return [module for module in modules if module is not None]

    def close(self) -> None:
        """Invalidate every call target that this loader returned, and refuse further loads."""
        with _lock:
            self.closed = True
            self._modules.clear()
            invalidated = self.invalidate(lambda _: True)
        del invalidated  # outside of the lock, because destructors may run anything

    def invalidate(self, concerns: "Callable[[TargetContext], bool]") -> "list[TypedCallTarget]":
        """Invalidate the call targets whose context fulfils `concerns`, and remove them from the tables. The caller holds `_lock`.

        Return those that were valid. The caller must drop them after releasing the lock.
        """
        self.changed = None
        invalidated = []
        for key, weak in [*self._current.items(), *self._ended.items()]:
            target = weak()
            context = target._context if target is not None else None
            if target is None or context is None or not concerns(context):
                continue
            load_runtime().invalidate(target)
            invalidated.append(target)
            name = context.func_name
            tables: tuple[tuple[dict[Any, Any], object], ...] = (
                (self._current, key), (self._ended, key), (self.targets, name), (self._by_name, name),
            )  # fmt: skip
            for table, row_key in tables:
                if table.get(row_key) is weak:
                    del table[row_key]
        return invalidated


class _BoundedMappingLock:
    """Acquires `_mapping` with a bounded wait: its holder may be waiting for `_lock`, which this thread holds."""

    __slots__ = ()

    def __enter__(self) -> None:
        if not _mapping.acquire(timeout=_PATIENCE):
            from compcache.errors import ReentrantLoadError

            raise ReentrantLoadError("a finalizer requested a function while another thread was mapping a module: request it later")

    def __exit__(self, *_: object) -> None:
        _mapping.release()


def _is_still_open(entered: "tuple[Opened, int, tuple[int, int]]") -> bool:
    """Return whether a descriptor still belongs to the directory for which it was opened."""
    try:
        status = os.fstat(entered[1])
    except OSError as error:  # the program has closed it, as daemons do with all descriptors
        from compcache.interrupts import reraise_interrupt

        reraise_interrupt(error)
        return False
    return (status.st_dev, status.st_ino) == entered[2]


def _map_image(runtime: "Any", descriptor: int, path: str, key: bytes, size: int, maps_files: int) -> "Any":
    """Map an image from its file. Raise `OSError` if this process has mapped the file already, or mapping is not safe here."""
    image = runtime.map_image(descriptor, os.fsencode(path), key, size, maps_files)
    if image is None:
        raise OSError(f"the native runtime refuses to map {path}")  # the complete look-up then copies the image
    return image


def _weak(table: "dict[Any, ref[LoadedModule]]", key: object, module: "LoadedModule") -> "ref[LoadedModule]":
    """Return a weak reference to a module. When the module is freed, the row `key` of the table is removed."""
    weak: ref[LoadedModule] = load_runtime().weak_row(module, _remove_dead_weakref, table, key)
    return weak


def _claim(table: "dict[Any, ref[LoadedModule]]", key: object, module: "LoadedModule") -> bool:
    """Enter a module in the table. Return False if another one, not given up, has the key. The caller holds `_mapping`."""
    weak = table.get(key)
    owner = weak() if weak is not None else None
    if owner is not None and not owner.given_up:
        return False
    table[key] = _weak(table, key, module)
    return True


def open_plain(root: str) -> "PlainLoader | None":
    """Return a loader for a directory, or None if the runtime is missing, or the directory cannot be opened or others can write to it."""
    try:
        door = Door(root, load_runtime())
        door.enter()
    except (ImportError, OSError) as error:
        from compcache.interrupts import reraise_interrupt

        reraise_interrupt(error)
        return None
    loader = PlainLoader(root, door)
    loader._owner = door.owner
    return loader
