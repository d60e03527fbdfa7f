"""Whether a linked closure holds: its image has code of several modules, its parts, and stands for what an ordinary load would bind.

It holds where all parts are there, are such as this cache uses (whole, signed where keys are asked for, not of a maker or an LLVM that is
passed over), and where each plain name that was bound when it was linked would be bound to the same module now. What is not so any more is
passed over, as if it were not there. That is found out once for each state of the index, and kept beside the planned closures.

Modules that are *in* a closure, whole, have their variables there. So a loader has such a module or the closure, never both: who comes
second is bound to what is there, even where the closure does not hold any more, or its file is gone.
"""

from __future__ import annotations

from _weakref import ref

from compcache.digest import DIGEST_SIZE, digest, key_suffix, mac
from compcache.errors import CompcacheError, FormatError, LinkError, ReentrantLoadError
from compcache.files import reraise_interrupt
from compcache.formats.index import MODULE
from compcache.formats.manifest import FRAME, LINKED, decode_function
from compcache.hit.closures import HEAD, MAGIC, SEAL_SIZE, seal
from compcache.store import CLOSURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.formats.entry import EntryRecord
    from compcache.hit.loader import Choice, LoadedModule, Loader, Source, Sources
    from compcache.hit.needs import Listed
    from compcache.hit.target import TypedCallTarget
    from compcache.store import ModuleFile, Store

__all__ = ["LinkedClosures", "is_valid", "linked_entry"]

#: How many files of this kind and of planned closures a directory keeps.
_MOST_KEPT = 512
#: After how many look-ups that meet a loaded closure all of its functions are listed.
_LISTED_FROM = 8
#: How many bytes of records a loader keeps of a closure.
_MOST_RECORDS = 1 << 22


class _Set:
    """A linked closure of which several functions were loaded: its records, and where those of its functions are."""

    __slots__ = ("file", "listed", "module_id", "offsets")

    def __init__(self, file: ModuleFile, listed: Listed, offsets: dict[str, tuple[bytes, int]]) -> None:
        self.module_id = file.module_id
        self.file = file
        self.listed = listed
        self.offsets = offsets


class LinkedClosures:
    """The linked closures that a loader has met, which it lives as long as.

    Whether each holds is known for one state of the index. Where several functions of a closure were loaded, the list of all comes into
    memory: others are loaded without a look-up, for as long as the index does not change and the image is mapped. `types` are those that
    a load is made of.
    """

    __slots__ = ("_homes", "_houses", "_loader", "_segments", "_sets", "_state", "_told", "_types", "_used")

    def __init__(self, loader: Loader, types: tuple[type[Choice], type[Source], type[Sources]]) -> None:
        self._loader = ref(loader)
        self._types = types
        self._segments: object = None
        self._state = b""
        self._told: dict[bytes, bool] = {}
        self._used: dict[bytes, int] = {}  # how often they were met
        self._sets: dict[str, _Set] = {}
        self._homes: dict[bytes, tuple[bytes, ...]] = {}  # by closure the modules that are in it,
        self._houses: dict[bytes, list[bytes]] = {}  # and the other way round

    # ---------------------------------------------------------------- modules that are in closures

    def admitted(self, func_name: str, module_id: bytes, offset: int) -> tuple[bytes, int] | None:
        """Return where a load takes this realization from (with `LINKED` in the offset for a closure); None if it cannot be used."""
        if offset >= LINKED:
            is_usable = self.holds(module_id) and not self._is_elsewhere(module_id)
            return (module_id, offset & ~LINKED) if is_usable else None
        house = self.house_of(module_id)
        if house is None:
            return module_id, offset
        found = self._offset_in(house, func_name)
        return (house.module_id, found) if found is not None else None

    def house_of(self, module_id: bytes) -> LoadedModule | None:
        """The loaded closure that a module is in."""
        loader = self._loader()
        assert loader is not None
        return next((house for key in self._houses.get(module_id, ()) if (house := loader._loaded(key)) is not None), None)

    def homes_of(self, module_id: bytes) -> tuple[bytes, ...]:
        """The modules that are in this one."""
        return self._homes.get(module_id, ())

    def _is_elsewhere(self, module_id: bytes) -> bool:
        """Return whether part of a closure is loaded from elsewhere."""
        loader = self._loader()
        assert loader is not None
        homes = self._homes.get(module_id)
        if not homes or not loader._mine:
            return False
        houses = (self.house_of(home) for home in homes)
        return any(house is not None and house.module_id != module_id for house in houses) or any(map(loader._loaded, homes))

    def second_home(self, chosen: dict[str, Choice]) -> tuple[str, LinkError] | None:
        """A choice in a closure of which the load has something by itself, and why it cannot be."""
        owners: dict[bytes, tuple[bytes, str]] = {}
        for name, choice in chosen.items():
            module_id = choice.module_id
            for home in (module_id, *self._homes.get(module_id, ())):
                owner, first = owners.setdefault(home, (module_id, name))
                if owner != module_id:
                    return (name if module_id in self._homes else first), LinkError(
                        f"module {home.hex()} is in a linked closure, and is used without it", module_id=home.hex()
                    )
        return None

    def agree(self, chosen: dict[str, Choice]) -> bool:
        """Return whether no chosen module has meanwhile been committed by another load. The loader's lock is held."""
        loader = self._loader()
        assert loader is not None
        for module_id in {choice.module_id for choice in chosen.values()}:
            others = [loader._loaded(home) for home in self._homes.get(module_id, ())]
            others += [house for home in (module_id, *self._homes.get(module_id, ())) if (house := self.house_of(home))]
            if any(other is not None and other.committed and other.module_id != module_id for other in others):
                return False
        return True

    def keep_files(self, chosen: dict[str, Choice]) -> None:
        """Keep the files of closures open that have modules in them: what these have is found there, whatever becomes of the file."""
        loader = self._loader()
        assert loader is not None
        for choice in chosen.values():
            if choice.module_id in self._homes and choice.loaded.file is None:
                try:
                    choice.loaded.file = _shared(choice.source.open_file(loader.store))
                except (CompcacheError, OSError) as error:  # its file is gone already
                    reraise_interrupt(error)

    def is_closure(self, module_id: bytes) -> bool:
        """Whether a module is a linked closure that a load of this loader has met."""
        return module_id in self._told

    def kept_file(self, module_id: bytes) -> ModuleFile | None:
        """The file of a loaded closure that has modules in it."""
        loader = self._loader()
        assert loader is not None
        house = loader._loaded(module_id) if module_id in self._homes else None
        return _shared(house.file) if house is not None and house.file is not None else None

    def may_be_planned(self, root: Choice, chosen: dict[str, Choice]) -> bool:
        """Return whether a planned closure may name these. The validity of linked closures is checked only for functions that are looked
        up.
        """
        return not any(choice.module_id in self._homes for choice in chosen.values() if choice is not root)

    def is_whole(self, module_id: bytes) -> bool:
        """Whether all modules are there that have code in a loaded closure."""
        loader = self._loader()
        assert loader is not None
        house = loader._loaded(module_id)
        try:
            return house is not None and house.file is not None and all(map(loader.store.exists, linked_entry(house.file).requires))
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            return False

    def _offset_in(self, house: LoadedModule, func_name: str) -> int | None:
        """Return where the record of a function is in a loaded closure."""
        loader = self._loader()
        assert loader is not None
        for module_id, offset in loader.store.find_here(func_name, linked=True):
            if module_id == house.module_id:
                return offset & ~LINKED
        file: ModuleFile | None = house.file
        if file is None:
            return None
        offsets: dict[str, tuple[bytes, int]] = {}
        loader.runtime().list_functions(file.read(file.image, file.records), house.module_id, offsets, set())
        return offsets[func_name][1] if func_name in offsets else None

    # ---------------------------------------------------------------- validity

    def holds(self, module_id: bytes) -> bool:
        """Whether the linked closure that this module is holds now."""
        loader = self._loader()
        assert loader is not None
        self._look_at(loader.store)
        known = self._told.get(module_id)
        if known is None:
            homes = is_valid(loader, module_id, self._state)
            known = self._told[module_id] = homes is not None
            if homes and module_id not in self._homes:
                self._homes[module_id] = homes
                for home in homes:
                    self._houses.setdefault(home, []).append(module_id)
        elif known and loader._loaded(module_id) is not None:
            used = self._used[module_id] = self._used.get(module_id, 0) + 1
            if used == _LISTED_FROM:
                self._list(loader, module_id)
        return known

    def _look_at(self, store: Store) -> None:
        """Forget what was known about another state of the index."""
        if store.index.segments is not self._segments:
            self._segments, self._state = store.index.segments, store.index.state()
            self._told.clear()
            self._used.clear()
            self._sets.clear()

    def _list(self, loader: Loader, module_id: bytes) -> None:
        """Have all records of a closure in memory, unless they are many."""
        try:
            file = loader.store.open_module(module_id)
        except (CompcacheError, OSError) as error:  # who loads a function of it meets it again
            reraise_interrupt(error)
            return
        from compcache.hit.needs import Listed

        with file:
            if file.records > _MOST_RECORDS:
                return
            listed = Listed(file.key, file.read(file.image, file.records))
        offsets: dict[str, tuple[bytes, int]] = {}
        loader.runtime().list_functions(listed.records, module_id, offsets, set())
        self._sets |= dict.fromkeys(offsets, _Set(file, listed, offsets))

    def take(self, func_name: str, owner: object) -> TypedCallTarget | None:
        """The call target of a function of a closure that is mapped, where it needs nothing else; None where it is to be looked up."""
        loader, found = self._loader(), self._sets.get(func_name)
        if loader is None or found is None or loader.builds or loader.store._in_memory:
            return None
        loaded = loader._loaded(found.module_id)
        if loaded is None or loader.store.index.refresh() or loader.store.index.segments is not self._segments:
            return None
        offset = found.offsets[func_name][1]
        choice_of, source_of, sources_of = self._types
        source = source_of(found.file, loaded)
        source.listed = found.listed
        sources = sources_of(func_name, None)
        sources[found.module_id] = source
        try:
            record = decode_function(found.listed.read_record(offset))
            choice = choice_of(source, record, offset)
            loader.require_features(found.file, record)
            if record.name != func_name or not loader._prepare_alone(choice, sources):
                return None
        except ReentrantLoadError:
            raise
        except (CompcacheError, OSError) as error:  # who looks it up meets it again
            reraise_interrupt(error)
            return None
        return loader._commit(func_name, {func_name: choice}, owner, chosen_by=None)


def _shared(file: ModuleFile) -> ModuleFile:
    """Another object for the same open file, which stays open for it."""
    other = type(file)(file._files, file.path, file.module_id)
    if file._opened is not None:
        other.adopt(file._opened)
    other.describe(file.image, file.records, file.target_id, file.flags, file.key)
    other.size, other.elsewhere, other.copied, other.volume = file.size, file.elsewhere, file.copied, file.volume
    return other


def is_valid(loader: Loader, module_id: bytes, state: bytes) -> tuple[bytes, ...] | None:
    """The modules that are in the linked closure that this module is; None where it does not hold in this state of the index."""
    store = loader.store
    name = _file_name(store, module_id)
    told = _told(store, name, state) if store.has_closures() else None
    if told is None:
        homes = _homes(loader, module_id)
        _keep(store, name, module_id, state, homes)
        return homes
    return told[0]


def _file_name(store: Store, module_id: bytes) -> str:
    """The file that says whether a closure holds for this processor, these keys and these known faults."""
    rules = mac(b"linked", store.mac_key) if store.mac_key else b""
    identity = [module_id, b"linked", rules, store.processor().identity.encode()]
    return CLOSURES.file_name(digest(identity).hex() + key_suffix(store.stamp_key))


def _told(store: Store, name: str, state: bytes) -> tuple[tuple[bytes, ...] | None] | None:
    """Return what is stored for this state of the index, or None."""
    data = store.read_file(CLOSURES, name) or b""
    at = len(MAGIC) + SEAL_SIZE
    sealed, content = data[:at], data[at:]
    if len(content) < HEAD.size + MODULE.size or sealed != MAGIC + seal(content, name, store.stamp_key):
        return None
    known, _, holds, homes = HEAD.unpack_from(content)
    if known != state:
        return None
    first = HEAD.size + MODULE.size
    return (tuple([content[at : at + DIGEST_SIZE] for at in range(first, first + homes * DIGEST_SIZE, DIGEST_SIZE)]) if holds else None,)


def _keep(store: Store, name: str, module_id: bytes, state: bytes, homes: tuple[bytes, ...] | None) -> None:
    """Keep it for the next process; a failure is harmless."""
    if store.readonly or not store.has_closures():
        return
    from compcache.publish.atomic_file import keep_file

    content = HEAD.pack(state, 1, homes is not None, len(homes or ())) + module_id.ljust(MODULE.size, b"\0") + b"".join(homes or ())
    try:
        keep_file(store, CLOSURES, name, MAGIC + seal(content, name, store.stamp_key) + content, _MOST_KEPT)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)


def linked_entry(file: ModuleFile) -> EntryRecord:
    """Return the entry that describes a linked closure.

    Raises:
        FormatError: the module is none, or is damaged.
        StorageError: it cannot be read.
    """
    from compcache.formats.entry import ENTRY, decode_entry
    from compcache.formats.linked import KIND

    at = 0
    while at + FRAME.size <= file.records:
        payload = file.read_record(at)
        if payload[:1] == ENTRY:
            entry = decode_entry(payload)
            if entry.kind == KIND:
                return entry
        at += FRAME.size + len(payload)
    raise FormatError("the module is not a linked closure")


def _homes(loader: Loader, module_id: bytes) -> tuple[bytes, ...] | None:
    from compcache.formats.linked import decode_closure

    store = loader.store
    try:
        with store.open_module(module_id) as file:
            loader.require_usable(file)
            entry = linked_entry(file)
        for part in entry.requires:
            with store.open_module(part) as file:
                loader.require_usable(file)
        closure = decode_closure(entry.data)
        holds = all(next(iter(store.find(name)), (b"", 0))[0] == entry.requires[number] for name, number in closure.bindings.items())
        return entry.requires[: closure.homes] if holds else None
    except (CompcacheError, OSError, IndexError) as error:
        reraise_interrupt(error)
        return None
