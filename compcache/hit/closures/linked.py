"""Whether a linked closure holds: its image has code of several modules, its parts, and stands for what an ordinary load would bind.

It holds where all parts are there, are such as this cache uses (whole, signed where keys are asked for, not of a maker or an LLVM that is
passed over), and where each plain name that was bound when it was linked would be bound to the same module now. What is not so any more is
passed over, as if it were not there. That is found out once for each state of the index, and kept beside the planned closures.

Modules that are *in* a closure, whole, have their variables there. So a loader has such a module or the closure, never both: who comes
second is bound to what is there, even where the closure does not hold any more, or its file is gone.

Of other functions a closure has copies, with addresses of their own. So a name that was bound stays bound to the same code for as long as
its module lives and look-ups find nothing of another content: a copy, also where its closure does not hold any more or its file is gone, or
a module that has the function by itself, whatever closures come later.
"""

from __future__ import annotations

from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined] # what `weakref` itself is made of

from compcache.digest import DIGEST_SIZE, digest, key_suffix, mac, name_key
from compcache.errors import CompcacheError, FormatError, LinkError
from compcache.files import reraise_interrupt
from compcache.formats.index import MODULE
from compcache.formats.manifest import FRAME, LINKED, MERGED, VARIABLE, FunctionRecord
from compcache.hit.closures import HEAD, MAGIC, SEAL_SIZE, seal
from compcache.store import CLOSURES, ModuleFile, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.formats.entry import EntryRecord
    from compcache.hit.closures.sets import ListedFunction
    from compcache.hit.loader import Choice, LoadedModule, Loader, Source, Sources
    from compcache.hit.plain_closures import PlainClosure
    from compcache.hit.target import TypedCallTarget
    from compcache.store import Store

__all__ = ["LinkedClosures", "is_valid", "linked_entry"]

#: How many files of this kind and of planned closures a directory keeps.
_MOST_KEPT = 512
#: After how many look-ups that meet a loaded closure all of its functions are listed.
_LISTED_FROM = 8
#: How many bytes of what records have of a link type are its digest.
_DIGEST = 8
#: What a name of content is of, whichever realization look-ups find.
_SAME = b"="


class _Place(ref):  # type: ignore[type-arg] # no subscript at run time
    """The module that a name is bound to.

    Of what is in a closure the record, what was known of its file, the content that the name had, and the modules that have it; it is found
    without a look-up. `number` is that of the load.
    """

    __slots__ = ("content", "file", "known", "modules", "number", "record")
    content: bytes
    file: ModuleFile
    known: _Known
    modules: set[bytes]
    number: int
    record: FunctionRecord | None


class _Known:
    """Of the records of a module that of one link type, where nothing else is read of them any more."""

    __slots__ = ("is_in_listing", "offset", "payload", "records")

    def __init__(self, offset: int, payload: bytes) -> None:
        self.records = self.is_in_listing = True
        self.offset = offset
        self.payload = payload

    def read_record(self, offset: int) -> bytes:
        """See `compcache.hit.needs.Listed`."""
        if offset != self.offset:
            raise FormatError(f"no record at offset {offset}")
        return self.payload


class LinkedClosures:
    """The linked closures that a loader has met, which it lives as long as.

    Whether each holds is known for one state of the index. Where several functions of a closure were loaded, the list of all comes into
    memory: others are loaded without a look-up, for as long as the index does not change and the image is mapped. `types` are those that
    a load is made of.
    """

    __slots__ = (
        "_bound", "_copied", "_early", "_homes", "_houses", "_loader", "_parts", "_segments", "_state", "_told", "_used", "changes", "sets",
        "types",
    )  # fmt: skip

    def __init__(self, loader: Loader, types: tuple[type[Choice], type[Source], type[Sources]]) -> None:
        """Of this loader, whose lock is held."""
        self._loader = ref(loader)
        self.types = types
        self._segments: object = None
        self._state = b""
        self._told: dict[bytes, bool] = {}
        self._used: dict[bytes, int] = {}  # how often they were met
        self.sets: dict[str, ListedFunction] = {}  # what was listed of closures, by function
        self._parts: dict[bytes, tuple[bytes, ...]] = {}  # by closure the modules that it is derived of,
        self._homes: dict[bytes, tuple[bytes, ...]] = {}  # of these such as are in it,
        self._houses: dict[bytes, list[bytes]] = {}  # and the other way round
        self._bound: dict[str, _Place] = {}  # what loads have bound since there are closures,
        self._copied: dict[bytes, set[bytes]] = {}  # by module the closures in which a function of it was bound,
        self._early = {*loader._mine}  # and the modules of which nobody knows what was bound before
        self.changes = 0  # how many loads have bound something

    def inherit(self, store: Store, closure: PlainClosure, module: LoadedModule) -> None:
        """Know of a closure that plain hits have loaded, and of what they have bound in it."""
        assert closure.where is not None
        opened, path, size, (image, records, target_id, flags, _, key, _) = closure.where
        file = ModuleFile(store.files, path, closure.module_id)
        file.describe(image, records, target_id, flags, key)
        file.size = size
        file.adopt(opened)
        self._meet(closure.module_id, closure.parts, closure.homes)
        module.file = file if closure.homes else None
        _, source_of, _ = self.types
        source = source_of(file, module)
        for fields, content in closure.bound:
            record = FunctionRecord(*fields)
            place = _Place(module, _forgetting(self._bound, record.name))
            if _describe(store, place, source, record):
                place.number, place.content = 0, content if is_ordered(record.name) else _SAME
                self._bound[record.name] = place
                self._note_copy(place)

    # ---------------------------------------------------------------- what was bound

    def place_of(self, func_name: str) -> bytes | None:
        """Return the module that a function is bound to, while look-ups find no other content of the name."""
        place = self._bound.get(func_name)
        if place is None:
            return None
        loader = self._loader()
        module: LoadedModule | None = place()
        if module is None or loader is None or loader._loaded(module.module_id) is not module:
            return None
        module_id = module.module_id
        content, modules = _newest(loader.store, func_name)
        return module_id if (content == place.content if place.record is not None else module_id in modules) else None

    def chosen(self, func_name: str, module_id: bytes, sources: Sources) -> Choice | None:
        """Return the choice of a copy that is bound already, which needs nothing more; None where this is none."""
        place = self._bound.get(func_name)
        module = place() if place is not None else None
        if place is None or place.record is None or module is None or module.module_id != module_id:
            return None
        choice_of, source_of, _ = self.types
        source = source_of(_described(place.file), module)
        source.suspended = True
        source.listed = place.known  # type: ignore[assignment] # what is read of it, this has
        sources.bound.append(source)
        choice = choice_of(source, place.record)
        choice.has_needs = True
        return choice

    def bind(self, chosen: dict[str, Choice]) -> dict[str, _Place]:
        """Return the bindings that a load adds."""
        loader = self._loader()
        assert loader is not None
        added: dict[str, _Place] = {}
        for name, choice in chosen.items():
            known, record = self._bound.get(name), choice.record
            is_known = known is not None and known() is choice.loaded
            if not is_known and record.name == name and not record.signature.startswith((VARIABLE, MERGED)):
                place = _Place(choice.loaded, _forgetting(self._bound, name))
                place.record = None
                if choice.module_id not in self._parts or _describe(loader.store, place, choice.source, record):
                    added[name] = place
        return added

    def updates(self, added: dict[str, _Place]) -> tuple[dict[str, _Place], dict[str, _Place]]:
        """Return the table of bindings, and the bindings that a load adds when it is committed; the caller holds the loader's lock."""
        self.changes += 1
        for place in added.values():
            place.number = self.changes
            if place.record is not None:
                self._note_copy(place)
        return self._bound, added

    def _note_copy(self, place: _Place) -> None:
        for module_id in place.modules:
            self._copied.setdefault(module_id, set()).add(place.file.module_id)

    def _is_taken(self, func_name: str, module_id: bytes) -> bool:
        """Return whether the function may have been bound in a module before this loader has met a closure, or is in another closure with
        its module.
        """
        loader = self._loader()
        assert loader is not None
        if self._early:
            self._early = {known for known in self._early if loader._loaded(known) is not None}
        if not self._early and not self._houses:
            return False
        modules = _newest(loader.store, func_name)[1]
        return not self._early.isdisjoint(modules) or self._have_other_house(modules, module_id)

    def _have_other_house(self, modules: Iterable[bytes], module_id: bytes) -> bool:
        houses = [house for key in modules if (house := self.house_of(key)) is not None]
        return any(house.module_id != module_id for house in houses)

    # ---------------------------------------------------------------- modules that are in closures

    def admitted(self, func_name: str, module_id: bytes, offset: int, *, is_bound: bool) -> tuple[bytes, int] | None:
        """Return where a load takes this realization from (with `LINKED` in the offset for a closure); None if it cannot be used."""
        if offset >= LINKED:
            if is_bound or not self.holds(module_id) or self._is_elsewhere(module_id) or self._is_taken(func_name, module_id):
                return None
            return module_id, offset & ~LINKED
        house = self.house_of(module_id)
        if house is None:
            return module_id, offset
        found = self._offset_in(house, func_name)
        return (house.module_id, found) if found is not None else None

    def house_of(self, module_id: bytes) -> LoadedModule | None:
        """Return the loaded closure that a module is in."""
        loader = self._loader()
        assert loader is not None
        return next((house for key in self._houses.get(module_id, ()) if (house := loader._loaded(key)) is not None), None)

    def homes_of(self, module_id: bytes) -> tuple[bytes, ...]:
        """Return the modules that are in this one."""
        return self._homes.get(module_id, ())

    def _is_elsewhere(self, module_id: bytes) -> bool:
        """Return whether part of a closure is loaded from elsewhere."""
        loader = self._loader()
        assert loader is not None
        homes = self._homes.get(module_id)
        if not homes or not loader._mine:
            return False
        return self._have_other_house(homes, module_id) or any(map(loader._loaded, homes)) or any(self._copies_of(homes, module_id))

    def _copies_of(self, homes: Iterable[bytes], module_id: bytes) -> list[LoadedModule]:
        """Return the other closures in which a function of these modules is bound."""
        loader = self._loader()
        assert loader is not None
        keys = {key for home in homes for key in self._copied.get(home, ())} - {module_id} if self._copied else ()
        return [closure for key in keys if (closure := loader._loaded(key)) is not None]

    def second_home(self, chosen: dict[str, Choice]) -> tuple[str, LinkError] | None:
        """Return a choice in a closure that holds code which the load also uses without it, and the error that says so."""
        owners: dict[bytes, tuple[bytes, str]] = {}
        for name, choice in chosen.items():
            module_id = choice.module_id
            for home in (module_id, *self._homes.get(module_id, ())):
                owner, first = owners.setdefault(home, (module_id, name))
                if owner != module_id:
                    return (name if module_id in self._homes else first), LinkError(
                        f"module {home.hex()} is in a linked closure, and is used without it", module_id=home.hex()
                    )
        return self._second_copy(chosen, owners) if not self._homes.keys().isdisjoint([owner for owner, _ in owners.values()]) else None

    def _second_copy(self, chosen: dict[str, Choice], owners: dict[bytes, tuple[bytes, str]]) -> tuple[str, LinkError] | None:
        """Return a choice in a closure, if another closure has a function that was chosen, and the error that says so."""
        loader = self._loader()
        assert loader is not None
        for name, choice in chosen.items():
            for home in _newest(loader.store, name)[1] if choice.module_id in self._parts else ():
                owner, other = owners.get(home, (home, name))
                if owner != choice.module_id and owner in self._homes:
                    return other, LinkError(
                        f"module {home.hex()} is in a linked closure, and {name!r} in another one", module_id=home.hex()
                    )
        return None

    def agree(self, chosen: dict[str, Choice], bound: dict[str, _Place], since: int) -> bool:
        """Return whether no chosen module has meanwhile been committed by another load, and no chosen function bound elsewhere by a load
        after the number `since`. The loader's lock is held.
        """
        loader = self._loader()
        assert loader is not None
        for name, choice in chosen.items() if since != self.changes else ():
            place = self._bound.get(name)
            if place is not None and place.number > since and self.place_of(name) not in (None, choice.module_id):
                return False
        for place in bound.values():
            if place.record is not None and self._have_other_house(place.modules, place.file.module_id):
                return False
        for module_id in {choice.module_id for choice in chosen.values()}:
            homes = self._homes.get(module_id, ())
            others = [loader._loaded(home) for home in homes] + self._copies_of(homes, module_id)
            others += [house for home in (module_id, *homes) if (house := self.house_of(home))]
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
        """Return whether a module is a linked closure that a load of this loader has met."""
        return module_id in self._parts

    def kept_file(self, module_id: bytes) -> ModuleFile | None:
        """Return the file of a loaded closure that has modules in it."""
        loader = self._loader()
        assert loader is not None
        house = loader._loaded(module_id) if module_id in self._homes else None
        return _shared(house.file) if house is not None and house.file is not None else None

    def may_be_planned(self, root: Choice, chosen: dict[str, Choice]) -> bool:
        """Return whether a planned closure may name these modules. Whether closures hold is checked only for
        functions that are looked up.
        """
        return not any(choice.module_id in self._parts for choice in chosen.values() if choice is not root)

    def closures_of(self, module_id: bytes) -> list[LoadedModule]:
        """Return the loaded closures that have code of a module."""
        loader = self._loader()
        assert loader is not None
        found = [loader._loaded(key) for key, parts in self._parts.items() if module_id in parts]
        return [closure for closure in found if closure is not None]

    def is_whole(self, module_id: bytes) -> bool:
        """Return whether all modules are there that have code in a closure that a load has met."""
        loader = self._loader()
        assert loader is not None
        try:
            return all(map(loader.store.exists, self._parts[module_id]))
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
        """Return whether the linked closure that this module is holds now."""
        loader = self._loader()
        assert loader is not None
        self._look_at(loader.store)
        known = self._told.get(module_id)
        if known is None:
            found = is_valid(loader, module_id, self._state)
            known = self._told[module_id] = found is not None
            if found is not None:
                self._meet(module_id, *found)
        elif known and loader._loaded(module_id) is not None:
            used = self._used[module_id] = self._used.get(module_id, 0) + 1
            if used == _LISTED_FROM:
                from compcache.hit.closures.sets import list_functions

                list_functions(loader, self, module_id)
        return known

    def _meet(self, module_id: bytes, parts: tuple[bytes, ...], homes: int) -> None:
        if module_id in self._parts:
            return
        self._parts[module_id] = parts
        if homes:
            self._homes[module_id] = parts[:homes]
        for home in parts[:homes]:
            self._houses.setdefault(home, []).append(module_id)

    def _look_at(self, store: Store) -> None:
        """Forget what was known about another state of the index."""
        if store.index.segments is not self._segments:
            self._segments, self._state = store.index.segments, store.index.state()
            self._told.clear()
            self._used.clear()
            self.sets.clear()

    def take(self, func_name: str, owner: object) -> TypedCallTarget | None:
        """Return the call target of a function of a closure that is mapped, where it needs nothing else; None where
        it is to be looked up.
        """
        loader, found = self._loader(), self.sets.get(func_name)
        if loader is None or found is None or loader.builds or loader.store._in_memory:
            return None
        loaded = loader._loaded(found.module_id)
        if loaded is None or loader.store.index.refresh() or loader.store.index.segments is not self._segments:
            return None
        if self.place_of(func_name) not in (None, found.module_id) or self._is_taken(func_name, found.module_id):
            return None
        from compcache.hit.closures.sets import take

        return take(loader, self, func_name, loaded, owner)


def _newest(store: Store, func_name: str) -> tuple[bytes, set[bytes]]:
    """Return what look-ups find of a name, copies left out: its content, and the modules that have it."""
    if store.has_in_memory() and any(known := [*store._memory_names.get(func_name, ())]):
        return known[0][0], {module_id for module_id, _ in known}
    rows = [row for row in store.index.find_numbered(name_key(func_name)) if row[3] < LINKED]
    if not rows:
        return b"", set()
    if not is_ordered(func_name):
        return _SAME, {row[2] for row in rows}
    newest = max(rows)
    content: bytes = newest[4]
    return (content, {row[2] for row in rows if row[4] == content}) if any(content) else (newest[2], {newest[2]})


def _describe(store: Store, place: _Place, source: Source, record: FunctionRecord) -> bool:
    """Note of what is bound in a closure all that later loads ask for; return False where it cannot be read any more."""
    place.record = record
    offset = int.from_bytes(record.link_type[_DIGEST:], "little")
    try:
        place.known = _Known(offset, source.read_record(store, offset) if offset else b"")
        place.content, place.modules = _newest(store, record.name)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return False
    place.file = _described(source.file)
    return True


def _forgetting(table: dict[str, _Place], name: str) -> Callable[[ref[LoadedModule]], None]:
    """Return what takes a name out of the table when its module goes."""

    def forget(_: ref[LoadedModule], remove: Callable[..., None] = _remove_dead_weakref) -> None:
        remove(table, name)

    return forget


def _shared(file: ModuleFile) -> ModuleFile:
    """Return another object for the same file; the file stays open for it."""
    other = _described(file)
    if file._opened is not None:
        other.adopt(file._opened)
    return other


def _described(file: ModuleFile) -> ModuleFile:
    """Return another object for the same file, which is not open."""
    other = type(file)(file._files, file.path, file.module_id)
    other.describe(file.image, file.records, file.target_id, file.flags, file.key)
    other.size, other.elsewhere, other.copied, other.volume = file.size, file.elsewhere, file.copied, file.volume
    return other


def is_valid(loader: Loader, module_id: bytes, state: bytes) -> tuple[tuple[bytes, ...], int] | None:
    """Return the modules that this linked closure is derived from, and how many of them, counted from the first, are in it; None if the
    closure does not hold in this state of the index.
    """
    store = loader.store
    name = _file_name(store, module_id)
    told = _told(store, name, state) if store.has_closures() else None
    if told is None:
        parts = _parts(loader, module_id)
        _keep(store, name, module_id, state, parts)
        return parts
    return told[0]


def _file_name(store: Store, module_id: bytes) -> str:
    """Return the file that says whether a closure holds for this processor, these keys and these known faults."""
    rules = mac(b"linked", store.mac_key) if store.mac_key else b""
    identity = [module_id, b"linked", rules, store.processor().identity.encode()]
    return CLOSURES.file_name(digest(identity).hex() + key_suffix(store.stamp_key))


def _told(store: Store, name: str, state: bytes) -> tuple[tuple[tuple[bytes, ...], int] | None] | None:
    """Return what is stored for this state of the index, or None."""
    data = store.read_file(CLOSURES, name) or b""
    at = len(MAGIC) + SEAL_SIZE
    sealed, content = data[:at], data[at:]
    if len(content) < HEAD.size + MODULE.size or sealed != MAGIC + seal(content, name, store.stamp_key):
        return None
    known, _, holds, homes = HEAD.unpack_from(content)
    if known != state:
        return None
    parts = tuple([content[at : at + DIGEST_SIZE] for at in range(HEAD.size + MODULE.size, len(content), DIGEST_SIZE)])
    return ((parts, homes) if holds else None,)


def _keep(store: Store, name: str, module_id: bytes, state: bytes, found: tuple[tuple[bytes, ...], int] | None) -> None:
    """Keep it for the next process; a failure is harmless."""
    if store.readonly or not store.has_closures():
        return
    from compcache.publish.atomic_file import keep_file

    parts, homes = found or ((), 0)
    content = HEAD.pack(state, 1, found is not None, homes) + module_id.ljust(MODULE.size, b"\0") + b"".join(parts)
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


def _parts(loader: Loader, module_id: bytes) -> tuple[tuple[bytes, ...], int] | None:
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
    except (CompcacheError, OSError, IndexError) as error:
        reraise_interrupt(error)
        return None
    return (entry.requires, closure.homes) if holds else None
