"""Bindings of names. A name keeps its code while the code's module lives and look-ups find no other content for the name.

A linked closure has copies of functions, with addresses of their own. So a binding to a copy is kept, even if the closure is not
valid any more or its file is gone. A binding to a module that has the function by itself is kept too, whatever closures come later.
"""

from __future__ import annotations

from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined] # importing `weakref` is slow

from compcache.errors import CompcacheError, FormatError
from compcache.formats.manifest import LINKED, MERGED, VARIABLE, FunctionRecord, decode_function
from compcache.interrupts import reraise_interrupt, suppress
from compcache.store import is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from compcache.directory.module_file import ModuleFile
    from compcache.hit.loader import Choice, LoadedModule, Loader, Source, Sources
    from compcache.store import Store

__all__ = ["BoundNames", "Place", "newest_of", "share_open_file"]

#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
#: The content that stands for all realizations of a content name.
_SAME = b"="


class Place(ref):  # type: ignore[type-arg] # no subscript at run time
    """The module to which a name is bound.

    For a copy in a closure, a load finds the function without a look-up.

    Attributes:
        content: the content of the name when it was bound.
        file: a description of the closure's file.
        listed: the record of the function's link type.
        modules: the modules that have the function by themselves.
        number: the number of the load that bound it.
        record: the function's record in the closure, or None for a binding to a module.
    """

    __slots__ = ("content", "file", "listed", "modules", "number", "record")
    content: bytes
    file: ModuleFile
    listed: _TypeRecord
    modules: set[bytes]
    number: int
    record: FunctionRecord | None


class _TypeRecord:
    """The record of one link type of a module, with the interface of `compcache.hit.needs.Listed`."""

    __slots__ = ("is_in_listing", "offset", "payload", "records")

    def __init__(self, offset: int, payload: bytes) -> None:
        self.records = self.is_in_listing = True
        self.offset = offset
        self.payload = payload

    def read_record(self, offset: int) -> bytes:
        """Return the payload of the record. Raise `FormatError` if another record is requested."""
        if offset != self.offset:
            raise FormatError(f"the module has no record at offset {offset}")
        return self.payload


class BoundNames:
    """The bindings by the loads of a loader since it has met a closure, by name. The loader lives as long.

    `changes` is the number of loads that have bound something.
    """

    __slots__ = ("_copied", "_places", "_types", "_weak_loader", "changes")

    def __init__(self, loader: Loader, types: tuple[type[Choice], type[Source]]) -> None:
        """Begin without bindings. `types` are the classes of choices and sources."""
        self._weak_loader = ref(loader)
        self._types = types
        self._places: dict[str, Place] = {}
        self._copied: dict[bytes, set[bytes]] = {}  # the closures in which a function of a module was bound, by module
        self.changes = 0

    @property
    def _loader(self) -> Loader:
        loader = self._weak_loader()
        assert loader is not None
        return loader

    def inherit(self, file: ModuleFile, module: LoadedModule, functions: dict[int, bytes]) -> None:
        """Add the bindings that plain hits have made to copies in a loaded closure.

        `file` and `module` are the file and the mapped image of the closure. `functions` contains the content of each bound function, by
        the offset of the function's record. A binding whose records cannot be read is not added.
        """
        source, store = self._types[1](file, module), self._loader.store
        for offset, content in functions.items():
            with suppress(CompcacheError, OSError):
                record = decode_function(source.read_record(store, offset))
                place = Place(module, _make_remover(self._places, record.name))
                if _describe(store, place, source, record):
                    place.number, place.content = 0, content if is_ordered(record.name) else _SAME
                    self._places[record.name] = place
                    self._note_copy(place)

    def place_of(self, func_name: str) -> bytes | None:
        """Return the module_id to which a function is bound, or None if it is not bound, or if look-ups find other content for the name."""
        place = self._places.get(func_name)
        if place is None:
            return None
        loader = self._loader
        module: LoadedModule | None = place()
        if module is None or loader._loaded(module.module_id) is not module:
            return None
        content, modules = newest_of(loader.store, func_name)
        is_newest = content == place.content if place.record is not None else module.module_id in modules
        return module.module_id if is_newest else None

    def choose_copy(self, func_name: str, module_id: bytes, sources: Sources) -> Choice | None:
        """Add to `sources.bound` a source for a function that is bound to its copy in the closure `module_id`. Return the choice.

        The choice has no further needs. Return None, and add nothing, for any other function.
        """
        place = self._places.get(func_name)
        module = place() if place is not None else None
        if place is None or place.record is None or module is None or module.module_id != module_id:
            return None
        choice_of, source_of = self._types
        source = source_of(_copy_unopened(place.file), module)
        source.suspended = True
        source.listed = place.listed  # type: ignore[assignment] # it has all records that a load reads
        sources.bound.append(source)
        choice = choice_of(source, place.record)
        choice.has_needs = True
        return choice

    def bind(self, chosen: dict[str, Choice], closures: Container[bytes]) -> dict[str, Place]:
        """Return the bindings that a load adds, by name. `closures` has the module_ids of linked closures."""
        added: dict[str, Place] = {}
        for name, choice in chosen.items():
            bound_place, record = self._places.get(name), choice.record
            is_known = bound_place is not None and bound_place() is choice.loaded
            if not is_known and record.name == name and not record.signature.startswith((VARIABLE, MERGED)):
                place = Place(choice.loaded, _make_remover(self._places, name))
                place.record = None
                if choice.module_id not in closures or _describe(self._loader.store, place, choice.source, record):
                    added[name] = place
        return added

    def updates(self, added: dict[str, Place]) -> tuple[dict[str, Place], dict[str, Place]]:
        """Count a load that commits bindings in `changes`, and give the bindings this number.

        Return the table of bindings, and the new rows, which the caller adds to the table while it holds the loader's lock.
        """
        self.changes += 1
        for place in added.values():
            place.number = self.changes
            if place.record is not None:
                self._note_copy(place)
        return self._places, added

    def _note_copy(self, place: Place) -> None:
        """Record that functions of these modules are bound in a closure."""
        for module_id in place.modules:
            self._copied.setdefault(module_id, set()).add(place.file.module_id)

    def are_rebound(self, chosen: dict[str, Choice], since: int) -> bool:
        """Return whether a load after the number `since` has bound a chosen function to another module.

        The caller holds the loader's lock.
        """
        if since != self.changes:
            for name, choice in chosen.items():
                place = self._places.get(name)
                if place is not None and place.number > since and self.place_of(name) not in (None, choice.module_id):
                    return True
        return False

    def copies_of(self, homes: Iterable[bytes], module_id: bytes) -> list[LoadedModule]:
        """Return the loaded closures in which a function of these modules is bound, other than the closure `module_id`."""
        keys = {key for home in homes for key in self._copied.get(home, ())} - {module_id} if self._copied else ()
        return [closure for key in keys if (closure := self._loader._loaded(key)) is not None]


def newest_of(store: Store, func_name: str) -> tuple[bytes, set[bytes]]:
    """Return the content of a name and the module_ids with it, as look-ups find them, without copies in closures."""
    held = [*store._memory_names.get(func_name, ())] if store.has_in_memory() else []
    if held:
        return held[0][0], {module_id for module_id, _ in held}
    rows = [row for row in store.find_numbered(func_name) if row[3] < LINKED]
    if not rows:
        return b"", set()
    if not is_ordered(func_name):
        return _SAME, {module_id for _, _, module_id, _, _ in rows}
    _, _, newest, _, content = max(rows)
    if not any(content):  # unknown, so no other module is known to have it
        return newest, {newest}
    return content, {module_id for _, _, module_id, _, other in rows if other == content}


def _describe(store: Store, place: Place, source: Source, record: FunctionRecord) -> bool:
    """Fill a binding to a copy in a closure with everything that later loads need. Return False if a record cannot be read."""
    place.record = record
    offset = int.from_bytes(record.link_type[_DIGEST:], "little")
    try:
        place.listed = _TypeRecord(offset, source.read_record(store, offset) if offset else b"")
        place.content, place.modules = newest_of(store, record.name)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return False
    place.file = _copy_unopened(source.file)
    return True


def _make_remover(table: dict[str, Place], name: str) -> Callable[[ref[LoadedModule]], None]:
    """Return a weakref callback that removes a name from the table."""

    def forget(_: ref[LoadedModule], remove: Callable[..., None] = _remove_dead_weakref) -> None:
        remove(table, name)

    return forget


def share_open_file(file: ModuleFile) -> ModuleFile:
    """Return another object for the same open file, which keeps the file open."""
    copy = _copy_unopened(file)
    copy.adopt(file.opened)
    return copy


def _copy_unopened(file: ModuleFile) -> ModuleFile:
    """Return another object for the same file, without opening it."""
    copy = type(file)(file._files, file.path, file.module_id)
    copy.describe(file.image, file.records, file.target_id, file.flags, file.key)
    copy.size, copy.elsewhere, copy.copied, copy.volume = file.size, file.elsewhere, file.copied, file.volume
    return copy
