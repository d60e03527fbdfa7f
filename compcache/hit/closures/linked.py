"""Whether a linked closure holds: its image has code of several modules, its parts, and stands for what an ordinary load would bind.

It holds where all parts are there, are such as this cache uses (whole, signed where keys are asked for, not of a maker or an LLVM that is
passed over), and where each plain name that was bound when it was linked would be bound to the same module now. What is not so any more is
passed over, as if it were not there. That is found out once for each state of the index, and kept beside the planned closures.
"""

from __future__ import annotations

from _weakref import ref

from compcache.digest import digest, key_suffix, mac
from compcache.errors import CompcacheError, FormatError, ReentrantLoadError
from compcache.files import reraise_interrupt
from compcache.formats.entry import ENTRY, decode_entry
from compcache.formats.index import MODULE
from compcache.formats.linked import KIND, decode_closure
from compcache.formats.manifest import FRAME, decode_function
from compcache.hit.closures.planned import HEAD, MAGIC, seal
from compcache.hit.needs import Listed
from compcache.store import CLOSURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.formats.entry import EntryRecord
    from compcache.hit.loader import Choice, Loader, Source, Sources
    from compcache.hit.target import TypedCallTarget
    from compcache.store import ModuleFile, Store

__all__ = ["LinkedClosures", "is_valid", "linked_entry"]

#: How many files of this kind and of planned closures a directory keeps.
_MOST_KEPT = 512
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

    Whether each holds is known for one state of the index. The second function of a closure brings the list of all its functions into
    memory: others are loaded without a look-up, for as long as the index does not change and the image is mapped. `types` are those that
    a load is made of.
    """

    __slots__ = ("_loader", "_segments", "_sets", "_state", "_told", "_types", "_used")

    def __init__(self, loader: Loader, types: tuple[type[Choice], type[Source], type[Sources]]) -> None:
        self._loader = ref(loader)
        self._types = types
        self._segments: object = None
        self._state = b""
        self._told: dict[bytes, bool] = {}
        self._used: set[bytes] = set()
        self._sets: dict[str, _Set] = {}

    def holds(self, module_id: bytes) -> bool:
        """Whether the linked closure that this module is holds now."""
        loader = self._loader()
        assert loader is not None
        self._look_at(loader.store)
        known = self._told.get(module_id)
        if known is None:
            known = self._told[module_id] = is_valid(loader, module_id, self._state)
        elif known and module_id not in self._used and loader.is_loaded(module_id):
            self._used.add(module_id)
            self._list(loader, module_id)
        return known

    def _look_at(self, store: Store) -> None:
        """Forget what was known of another state of the index."""
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


def is_valid(loader: Loader, module_id: bytes, state: bytes) -> bool:
    """Whether the linked closure that this module is holds in this state of the index."""
    store = loader.store
    name = _file_name(store, module_id)
    told = _told(store, name, state) if store.has_closures() else None
    if told is None:
        told = _holds(loader, module_id)
        _keep(store, name, module_id, state, told)
    return told


def _file_name(store: Store, module_id: bytes) -> str:
    """The file that says whether a closure holds for this processor, these keys and these known faults."""
    rules = mac(b"linked", store.mac_key) if store.mac_key else b""
    identity = [module_id, b"linked", rules, store.processor().identity.encode()]
    return CLOSURES.file_name(digest(identity).hex() + key_suffix(store.stamp_key))


def _told(store: Store, name: str, state: bytes) -> bool | None:
    """What is kept for this state of the index; None where nothing is."""
    data = store.read_file(CLOSURES, name) or b""
    sealed, content = data[: -HEAD.size - MODULE.size], data[-HEAD.size - MODULE.size :]
    if sealed != MAGIC + seal(content, name, store.stamp_key) or len(content) != HEAD.size + MODULE.size:
        return None
    known, _, holds, _ = HEAD.unpack_from(content)
    return bool(holds) if known == state else None


def _keep(store: Store, name: str, module_id: bytes, state: bytes, holds: bool) -> None:
    """Keep it for the next process; a failure is harmless."""
    if store.readonly or not store.has_closures():
        return
    from compcache.publish.atomic_file import keep_file

    content = HEAD.pack(state, 1, holds, 0) + module_id.ljust(MODULE.size, b"\0")
    try:
        keep_file(store, CLOSURES, name, MAGIC + seal(content, name, store.stamp_key) + content, _MOST_KEPT)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)


def linked_entry(file: ModuleFile) -> EntryRecord:
    """The entry that says what a linked closure is made of.

    Raises:
        FormatError: the module is none, or is damaged.
        StorageError: it cannot be read.
    """
    at = 0
    while at + FRAME.size <= file.records:
        payload = file.read_record(at)
        if payload[:1] == ENTRY:
            entry = decode_entry(payload)
            if entry.kind == KIND:
                return entry
        at += FRAME.size + len(payload)
    raise FormatError("the module is not a linked closure")


def _holds(loader: Loader, module_id: bytes) -> bool:
    store = loader.store
    try:
        with store.open_module(module_id) as file:
            loader.require_usable(file)
            entry = linked_entry(file)
        for part in entry.requires:
            with store.open_module(part) as file:
                loader.require_usable(file)
        bound = decode_closure(entry.data).bindings
        return all(next(iter(store.find(name)), (b"", 0))[0] == entry.requires[number] for name, number in bound.items())
    except (CompcacheError, OSError, IndexError) as error:
        reraise_interrupt(error)
        return False
