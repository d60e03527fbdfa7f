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

__all__ = ["Binding", "BoundNames", "newest_of", "share_open_file"]

#: The number of bytes of the digest in a record's link type.
_DIGEST = 8
#: The content that stands for all realizations of a content name.
_SAME = b"="


class Binding(ref):  # type: ignore[type-arg] # no subscript at run time
    """A weak reference to the module to which a name is bound.

    A binding to a copy in a closure has everything that a load needs to find the function without a look-up. A binding to a module has only
    `number` and `record`.

    Attributes:
        content: the content of the name when the name was bound.
        file: a description of the closure's file.
        listed: the record of the function's link type.
        modules: the modules that have the function by themselves.
        number: the number of the load that bound the name.
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
    """The record of one link type of a module, with the interface of `compcache.hit.needs.ModuleRecords`."""

    __slots__ = ("is_in_listing", "offset", "payload", "records")

    def __init__(self, offset: int, payload: bytes) -> None:
        self.records = True  # `Source.read_record` then calls `read_record`
        self.is_in_listing = True
        self.offset = offset
        self.payload = payload

    def read_record(self, offset: int) -> bytes:
        """Return the payload of the record. Raise `FormatError` if another record is requested."""
        if offset != self.offset:
            raise FormatError(f"the module has no record at offset {offset}")
        return self.payload


class BoundNames:
    """The bindings of names by the loads of one loader since the loader met a linked closure. They live as long as the loader.

    `changes` is the number of loads that have bound a name.
    """

    __slots__ = ("_copied", "_bindings", "_types", "_weak_loader", "changes")

    def __init__(self, loader: Loader, types: tuple[type[Choice], type[Source]]) -> None:
        """Begin without bindings. `types` are the classes of choices and sources."""
        self._weak_loader = ref(loader)
        self._types = types
        self._bindings: dict[str, Binding] = {}
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
                binding = Binding(module, _make_remover(self._bindings, record.name))
                if _fill_binding(store, binding, source, record):
                    binding.number, binding.content = 0, content if is_ordered(record.name) else _SAME
                    self._bindings[record.name] = binding
                    self._note_copy(binding)

    def module_of(self, func_name: str) -> bytes | None:
        """Return the module_id to which a function is bound.

        Return None if the function is not bound, its module is no longer loaded, or look-ups find other content for the name.
        """
        binding = self._bindings.get(func_name)
        if binding is None:
            return None
        loader = self._loader
        module: LoadedModule | None = binding()
        if module is None or loader._loaded(module.module_id) is not module:
            return None
        content, modules = newest_of(loader.store, func_name)
        is_newest = content == binding.content if binding.record is not None else module.module_id in modules
        return module.module_id if is_newest else None

    def choose_copy(self, func_name: str, module_id: bytes, sources: Sources) -> Choice | None:
        """Add to `sources.bound` a source for a function that is bound to its copy in the closure `module_id`. Return the choice.

        The choice has no further needs. Return None, and add nothing, for any other function.
        """
        binding = self._bindings.get(func_name)
        module = binding() if binding is not None else None
        if binding is None or binding.record is None or module is None or module.module_id != module_id:
            return None
        choice_of, source_of = self._types
        source = source_of(_copy_unopened(binding.file), module)
        source.suspended = True
        source.listed = binding.listed  # type: ignore[assignment] # the list has all records that a load reads
        sources.bound.append(source)
        choice = choice_of(source, binding.record)
        choice.has_needs = True
        return choice

    def bind(self, chosen: dict[str, Choice], closures: Container[bytes]) -> dict[str, Binding]:
        """Return the bindings that a load adds, by name. `closures` has the module_ids of linked closures.

        Variables and the further nodes of a plan get no bindings, and names that are bound to the chosen modules already get no further
        ones. A copy in a closure gets no binding if its records cannot be read.
        """
        added: dict[str, Binding] = {}
        for name, choice in chosen.items():
            present, record = self._bindings.get(name), choice.record
            is_known = present is not None and present() is choice.loaded
            if not is_known and record.name == name and not record.signature.startswith((VARIABLE, MERGED)):
                binding = Binding(choice.loaded, _make_remover(self._bindings, name))
                binding.record = None
                if choice.module_id not in closures or _fill_binding(self._loader.store, binding, choice.source, record):
                    added[name] = binding
        return added

    def updates(self, added: dict[str, Binding]) -> tuple[dict[str, Binding], dict[str, Binding]]:
        """Increase `changes`, the number of loads that commit bindings, and give the added bindings this number.

        Return the table of bindings, and the new rows, which the caller adds to the table while it holds the loader's lock.
        """
        self.changes += 1
        for binding in added.values():
            binding.number = self.changes
            if binding.record is not None:
                self._note_copy(binding)
        return self._bindings, added

    def _note_copy(self, binding: Binding) -> None:
        """Record that a function of the binding's modules is bound to its copy in a closure."""
        for module_id in binding.modules:
            self._copied.setdefault(module_id, set()).add(binding.file.module_id)

    def are_rebound(self, chosen: dict[str, Choice], since: int) -> bool:
        """Return whether a load after the number `since` bound a chosen function to another module. The caller holds the loader's lock."""
        if since != self.changes:
            for name, choice in chosen.items():
                binding = self._bindings.get(name)
                if binding is not None and binding.number > since and self.module_of(name) not in (None, choice.module_id):
                    return True
        return False

    def copies_of(self, homes: Iterable[bytes], module_id: bytes) -> list[LoadedModule]:
        """Return the loaded closures in which a function of these modules is bound, other than the closure `module_id`."""
        keys = {key for home in homes for key in self._copied.get(home, ())} - {module_id} if self._copied else ()
        return [closure for key in keys if (closure := self._loader._loaded(key)) is not None]


def newest_of(store: Store, func_name: str) -> tuple[bytes, set[bytes]]:
    """Return the newest content of a name and the modules with this content, other than closures; both are empty if there is none."""
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


def _fill_binding(store: Store, binding: Binding, source: Source, record: FunctionRecord) -> bool:
    """Fill a binding to a copy in a closure with everything that later loads need. Return False if a record cannot be read."""
    binding.record = record
    offset = int.from_bytes(record.link_type[_DIGEST:], "little")
    try:
        binding.listed = _TypeRecord(offset, source.read_record(store, offset) if offset else b"")
        binding.content, binding.modules = newest_of(store, record.name)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)
        return False
    binding.file = _copy_unopened(source.file)
    return True


def _make_remover(table: dict[str, Binding], name: str) -> Callable[[ref[LoadedModule]], None]:
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
