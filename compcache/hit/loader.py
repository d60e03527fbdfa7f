"""The hit path: from a function's name to a callable, loading only what that function needs.

A load is a transaction in three steps. *Plan* (`compcache.hit.plan`): choose a realization for the function and for everything that its
import slots name, reading one record each; a realization that cannot be satisfied is passed over, and cycles are
ordinary (a greatest fixed point, computed by elimination). *Prepare*: map the images, decode the globals of the
closure (`compcache.hit.needs`). *Commit*: fill slots and tables in one native call. A failure before the commit leaves nothing behind.

A load maps a module once, however many functions it takes from it, and a `Loader` has each module once: a thread claims a module before it
maps it, so constructors run once, whatever other threads and cycles of imports do.

Ownership points one way: target -> context -> module -> image, and module -> what its filled slots refer to (decoded
globals, modules of other functions). All tables hold weak references. Modules and targets belong to one `Loader`,
that is to one `Cache` object, so that no `Loader` sees, changes or unloads anything of another. The dynamic
linker maps a file once per process: a second loader, or the same one after an unload while the old mapping is still in
use, maps a private copy.

Locking: `_lock` guards the tables. It is reentrant (a garbage collection may run anything while it is held) and is
never held while files are read, images mapped, globals decoded or modules imported: unloading waits for nothing.
`_mapping` is held while a module is mapped and its constructors run, as the dynamic linker holds a lock of its own. It is taken before
`_lock`; a thread that already has `_lock` (a finalizer in a garbage collection) does not wait for it.
"""

from __future__ import annotations

import os
from _weakref import ref
from itertools import chain

from compcache import hit
from compcache.errors import CompcacheError, FormatError, LinkError, ReentrantLoadError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import LINK_ONLY, LINKED, MAPPED_IN_PLACE, NO_ENTRY, FunctionRecord, decode_function
from compcache.hit import LoadedModule, PlainLoader, _weak
from compcache.hit.target import TargetContext, load_runtime
from compcache.settings import is_on, setting
from compcache.store import is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.directory.module_file import ModuleFile
    from compcache.formats.records import GlobalRecord
    from compcache.hit.needs import Kept, Listed
    from compcache.hit.plan import Listing, Plan
    from compcache.hit.settle import Settled
    from compcache.hit.target import TypedCallTarget
    from compcache.store import IsNear, Store

    Accept = Callable[[ModuleFile], object]
    #: Key in `LoadedModule.slots`, name, places, link type.
    Import = tuple[int | str, str, bytes, bytes]

__all__ = ["Choice", "LoadedModule", "Loader", "Source", "Sources"]

#: The most module files that a load keeps open. It closes them then, and opens those again that it maps later.
_MOST_FILES = 64

#: 1: images are mapped from their files everywhere; 0: nowhere; otherwise it depends on the file system (`native/places.c`).
MAP_VARIABLE = "COMPCACHE_MAP_FILES"
_BY_FILE_SYSTEM = 2


class Source:
    """A module as one load sees it: its open file, and the mapped module once there is one.

    `suspended` says that the file was closed to save a descriptor; the next read opens it again. `listed` is the knowledge of its records
    in a load of several modules.
    """

    __slots__ = ("file", "listed", "loaded", "suspended")

    def __init__(self, file: ModuleFile, loaded: LoadedModule | None) -> None:
        self.file = file
        self.loaded = loaded
        self.suspended = False
        self.listed: Listed | None = None

    def read_record(self, store: Store, offset: int) -> bytes:
        """Return the payload of a record. Raises what `ModuleFile.read_record` and `Store.open_module` do."""
        if self.listed is not None and self.listed.records:
            return self.listed.read_record(offset)
        return self.open_file(store).read_record(offset)

    def suspend(self) -> None:
        """Close the descriptor for now."""
        self.file.close()
        self.suspended = True

    def open_file(self, store: Store) -> ModuleFile:
        """Return the file, open. Raises what `Store.open_module` does."""
        if self.suspended:
            self.file = store.open_module(self.file.module_id)
            self.suspended = False
        return self.file

    def release(self) -> None:
        """Release everything that the load holds for the module."""
        self.file.close()
        self.loaded = None


class Sources(dict[bytes, Source]):
    """The modules that one load has opened, the decision function for realizations, and what is known about several modules."""

    __slots__ = ("accept", "bound", "listing", "opened", "root", "since")

    def __init__(self, root: str, accept: Accept | None, since: int) -> None:
        self.root = root
        self.accept = accept
        self.since = since  # the number of loads that had bound something, if there are linked closures
        self.listing: Listing | None = None
        self.opened: list[Source] = []  # those whose files have not been closed since
        self.bound: list[Source] = []  # the modules of earlier bindings


class Choice:
    """One realization that a plan has chosen, and its remaining needs.

    `offset` is the place of the record, 0 for a stub, which has none. `settled` are imports without alternatives (`compcache.hit.settle`);
    only one of each module is in `imports`. `start` numbers the function that runs the constructors of its module, if these wait for
    imports. `has_needs` says that the needs of the function were read.
    """

    __slots__ = ("fills", "globals", "has_needs", "imports", "module_id", "offset", "record", "settled", "source", "start")

    def __init__(self, source: Source, record: FunctionRecord, offset: int = 0) -> None:
        self.source = source
        self.module_id = source.file.module_id
        self.record = record
        self.offset = offset
        self.imports: list[Import] = []
        self.settled: list[Settled] = []
        self.globals: list[GlobalRecord] = []
        self.start: int | None = None
        self.has_needs = False
        self.fills: list[tuple[GlobalRecord, bytes, Kept]] | None = None

    @property
    def loaded(self) -> LoadedModule:
        """The mapped module of the realization."""
        loaded = self.source.loaded
        assert loaded is not None
        return loaded


class Loader(PlainLoader):
    """Loads functions of one store. Its tables hold modules and call targets as long as others refer to them."""

    __slots__ = ()

    def __init__(self, store: Store, *, allow_pickle: bool) -> None:
        super().__init__(store.root, None)
        self.allow_pickle = allow_pickle
        self.maps_files = is_on(MAP_VARIABLE) if setting(MAP_VARIABLE) else _BY_FILE_SYSTEM
        self.adopt(store)

    def adopt(self, store: Store) -> None:
        """Load functions of this store from now on."""
        self.store = store
        store.listener = ref(self)
        store.stats.watch(self)
        with hit._lock:  # no plain hit is committed any more
            closure = self._closure
            module = self._loaded(closure.module_id) if closure is not None else None
        if closure is not None and module is not None:
            from compcache.hit.closures.linked import LinkedClosures

            linked = LinkedClosures(self, (Choice, Source, Sources))
            linked.inherit(store, closure, module)
            self.linked = self.linked or linked

    # ------------------------------------------------------------------- plan

    def load(self, func_name: str, owner: object = None, accept: Accept | None = None) -> TypedCallTarget:
        """Return the call target of a function, loaded if necessary.

        Args:
            func_name: the function.
            owner: kept alive by the target.
            accept: called with the file of each candidate; raises an error that rules it out. Only an accepted realization is returned.

        Raises:
            NotCachedError: this host can use none of the realizations.
            ReentrantLoadError: this thread was interrupted while loading the same function.
            CompcacheError: there are realizations, but none can be loaded; the reason against the first one.
        """
        try:
            return self._load_newest(func_name, owner, accept)
        except (ImportError, NameError, AttributeError, ReentrantLoadError) as error:
            reraise_interrupt(error)
            from compcache.hit.interrupts import named

            raise named(error, func_name) from error.__cause__

    def _load_newest(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        store = self.store
        again, known = store.index.is_listed, store.index.segments  # by a former look-up
        while True:
            try:
                return self._load(func_name, owner, accept, again=again)
            except CompcacheError:
                # If nothing is known, the look-up has just read the disk.
                if not any(store.find_here(func_name)) or not (store.renew_index() or store.index.segments is not known):
                    raise
                again, known = False, store.index.segments  # it has changed meanwhile

    def _load(self, func_name: str, owner: object, accept: Accept | None, *, again: bool) -> TypedCallTarget:
        target = self.linked.take(func_name, owner) if self.linked is not None and accept is None else None
        while target is None:  # try again if another thread has loaded or unloaded one of the modules
            target = self._load_once(func_name, owner, accept, again=again)
        return target

    def _load_once(self, func_name: str, owner: object, accept: Accept | None, *, again: bool) -> TypedCallTarget | None:
        sources = Sources(func_name, accept, self.linked.bound.changes if self.linked is not None else 0)
        candidates = self.candidates(func_name, again=again, linked=accept is None)
        try:
            choice, error = self._open_first(func_name, candidates, sources)
            if choice is not None:
                try:
                    if self._prepare_alone(choice, sources):
                        return self._commit(func_name, {func_name: choice}, owner, sources)
                except ReentrantLoadError:
                    raise
                except (CompcacheError, OSError) as failure:
                    reraise_interrupt(failure)
                    choice, error = None, failure
            from compcache.hit.plan import Plan

            plan = Plan(self, func_name, candidates, sources, choice, error)
            chosen = plan.choose()
            while not self._prepare(plan, chosen):
                chosen = plan.choose()
            return self._commit(func_name, chosen, owner, sources)
        finally:
            for source in [*sources.values(), *sources.bound]:
                source.release()

    def _open_first(
        self, func_name: str, candidates: Iterator[tuple[bytes, int]], sources: Sources
    ) -> tuple[Choice | None, Exception | None]:
        """Return the first realization, and the error that rules it out."""
        for module_id, offset in candidates:
            try:
                return self.open_candidate(func_name, module_id, offset, sources), None
            except FileNotFoundError as error:
                reraise_interrupt(error)
                break  # pruned since the index was read
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                return None, error
        return None, None

    def _prepare_alone(self, choice: Choice, sources: Sources) -> bool:
        """Prepare a realization that needs no other module, the usual case, without a plan; return False if it needs one.

        Raises an error that rules it out.
        """
        if choice.record.entry == NO_ENTRY:
            return False
        if choice.record.needs:
            from compcache.hit.needs import read_needs

            try:
                read_needs(self, choice)
            except FormatError as error:
                raise self.condemn(sources, choice.module_id, error) from error
            if choice.imports or choice.start is not None:
                return False
        self.provide(choice.source)
        choice.fills = self._decode(choice) if choice.globals else []
        return True

    def candidates(
        self, func_name: str, is_near: IsNear | None = None, *, again: bool = False, linked: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the realizations of a function. Of those with the same content, the ones in loaded or near modules come first.

        `linked` includes those of linked closures.
        """
        # All that have a name of content have the same. `again` is that of `Store.find`.
        if is_ordered(func_name):
            found = self.store.find(func_name, is_near or (self.is_loaded if self._mine else None), again=again, linked=linked)
            yield from self._unmarked(func_name, found, linked=linked)
            return
        later = []
        for candidate in self._unmarked(func_name, self.store.find(func_name, linked=linked), linked=linked):
            if not self._mine or self._loaded(candidate[0]) is not None:
                yield candidate
            else:
                later.append(candidate)
        yield from later

    def _unmarked(self, func_name: str, found: Iterator[tuple[bytes, int]], *, linked: bool) -> Iterator[tuple[bytes, int]]:
        first = next(found, None)  # the look-up renews the index, which affects the bindings
        place = self.linked.bound.place_of(func_name) if self.linked is not None and linked else None
        if place is not None and self.linked is not None and place in self.linked:
            yield place, 0
        for module_id, offset in chain((first,), found) if first is not None else ():
            if self.linked is None:
                if offset < LINKED:
                    yield module_id, offset
                    continue
                from compcache.hit.closures.linked import LinkedClosures

                with hit._lock:
                    self.linked = self.linked or LinkedClosures(self, (Choice, Source, Sources))
            admitted = self.linked.admitted(func_name, module_id, offset, is_bound=place is not None)
            if admitted is not None:
                yield admitted

    def is_loaded(self, module_id: bytes) -> bool:
        """Return whether this loader has mapped a module that is in use."""
        return self._loaded(module_id) is not None or (self.linked and self.linked.house_of(module_id)) is not None

    def open_candidate(self, func_name: str, module_id: bytes, offset: int, sources: Sources) -> Choice:
        """Read the record of a realization. Raises an error that rules it out.

        `sources` has the modules that this load has opened; the caller releases them.
        """
        bound = self.linked.bound.chosen(func_name, module_id, sources) if self.linked is not None and not offset else None
        if bound is not None:
            return bound
        source = self.open_source(module_id, sources)
        try:
            if self.providers and not self.is_loaded(module_id):
                from compcache.hit.closures.providers import refuse_second_provider

                refuse_second_provider(self, source)
            record = decode_function(source.read_record(self.store, offset))
            if record.name != func_name:
                raise FormatError(f"the record at offset {offset} belongs to another function")
            self.require_features(source.file, record)
            if sources.accept is not None and func_name == sources.root:
                sources.accept(source.open_file(self.store))
        except FormatError as error:
            raise self.condemn(sources, module_id, error) from error
        return Choice(source, record, offset)

    def _open_source(self, module_id: bytes, sources: Sources) -> Source:
        several = len(sources)
        if len(sources.opened) == _MOST_FILES:
            for source in sources.opened:
                source.suspend()
            sources.opened.clear()
        file = (self.linked and self.linked.kept_file(module_id)) or self.store.open_module(module_id)
        try:
            self.require_usable(file)
            source = Source(file, self._loaded(module_id))
            if several:
                from compcache.hit.plan import list_records

                list_records(self, source, sources)
            sources[module_id] = source
            sources.opened.append(source)
        except FormatError as error:
            raise self.store.condemn(file, error) from error
        except BaseException:
            file.close()
            raise
        return source

    def open_stub(self, func_name: str, sources: Sources) -> Choice | None:
        """Return the stub for importers of a function that this processor cannot run; None if there is none."""
        from compcache.hit.stubs import find_stub

        found = find_stub(self, func_name, sources)
        return Choice(*found) if found is not None else None

    def open_source(self, module_id: bytes, sources: Sources) -> Source:
        """Return an open module for this load. Raises the errors of `Store.open_module` and `require_usable`."""
        return sources.get(module_id) or self._open_source(module_id, sources)

    def condemn(self, sources: Sources, module_id: bytes, error: FormatError) -> CompcacheError:
        """Return the exception for a module that does not decode. This load stops using the module."""
        source = sources.pop(module_id)
        source.loaded = None
        return self.store.condemn(source.file, error)

    def holds(self, name: str, *, to_import: bool = False) -> bool:
        """Return whether this host can use a realization of a function; with `to_import`, variables and hidden functions count as well."""
        # It reads the index and one record at most.
        for module_id, offset in self.store.find(name):
            try:
                with self.store.open_module(module_id) as module:
                    self.require_usable(module)
                    record = decode_function(module.read_record(offset))
                    self.require_features(module, record)
                    if to_import or not record.signature.startswith(LINK_ONLY):
                        return True
            except (FileNotFoundError, CompcacheError) as error:
                reraise_interrupt(error)
                continue
        if to_import:
            from compcache.hit.stubs import has_stub

            if has_stub(self, name):
                return True
        # Another process may have added one meanwhile.
        return self.store.index.refresh() and self.holds(name, to_import=to_import)

    def require_usable(self, file: ModuleFile) -> None:
        """Raise `IncompatibleTargetError` if this host cannot run the code of a module, or the cache's options exclude it."""
        if file.target_id not in self.store.processor().accepted or self.store.min_llvm or file.flags not in MAPPED_IN_PLACE:
            from compcache.hit.plan import require_usable

            require_usable(self.store, file)

    def require_features(self, file: ModuleFile, record: FunctionRecord) -> None:
        """Raise `IncompatibleTargetError` if this host lacks what the function requires."""
        if record.target_id not in self.store.processor().accepted:
            from compcache.hit.plan import require_features

            require_features(self.store, file, record)

    def runtime(self) -> Any:
        """Return the native runtime of this process."""
        return load_runtime()

    # ---------------------------------------------------------------- prepare

    def _prepare(self, plan: Plan, chosen: dict[str, Choice]) -> bool:
        """Map images and decode globals; return False if a chosen realization turned out to be unusable."""
        for name, choice in chosen.items():
            try:
                self.provide(choice.source)
                if choice.fills is None:
                    choice.fills = self._decode(choice) if choice.globals else []
            except ReentrantLoadError:
                raise
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                plan.reject(name, error)
                return False
        self.start(chosen)
        return True

    def start(self, chosen: dict[str, Choice]) -> None:
        """Run the constructors of modules that have waited for their imports."""
        if any(choice.start is not None and not choice.loaded.started for choice in chosen.values()):
            from compcache.hit.starts import start_modules

            functions = {name: (c.loaded, c.start, [imported for _, imported, _, _ in c.imports]) for name, c in chosen.items()}
            with self.mapping():
                writes, updates = self.bindings(chosen)
                start_modules(self.runtime(), (b"".join(writes), updates), functions)

    def provide(self, source: Source) -> None:
        """Map the module, or wait for the thread that is mapping it. It is mapped once for all functions and threads."""
        if source.loaded is None:
            suspended = source.suspended
            file = source.open_file(self.store)
            with self.mapping():
                source.loaded = self._loaded(file.module_id) or self._map(file.module_id, file.image, lambda: self._map_image(file))
            if suspended:
                source.suspend()

    def _map_image(self, file: ModuleFile) -> Any:
        try:
            return self._map_file(file) or self._load_image(file)
        except (OSError, ValueError) as error:
            reraise_interrupt(error)
            if isinstance(error, CompcacheError):
                raise
            name = file.module_id.hex()
            raise LinkError(f"module {name} cannot be mapped: {error}", module_id=name) from error

    def _map_file(self, file: ModuleFile) -> Any:
        """Return the image, mapped from the open file; None if its kind is not mapped this way, this process has mapped it already, or
        mapping fails or is not safe.
        """
        if file.flags not in MAPPED_IN_PLACE:
            return None
        try:
            return self.runtime().map_image(file.descriptor, os.fsencode(file.path), file.key, file.size, self.maps_files)
        except OSError as error:
            reraise_interrupt(error)
            return None  # a noexec mount

    def _load_image(self, file: ModuleFile) -> Any:
        from compcache.images.kinds import load_image

        return load_image(self.runtime(), file)

    def _decode(self, choice: Choice) -> list[tuple[GlobalRecord, bytes, Kept]]:
        from compcache.hit.needs import decode_globals

        return decode_globals(self, choice)

    # ----------------------------------------------------------------- commit

    def _commit(self, func_name: str, chosen: dict[str, Choice], owner: object, sources: Sources) -> TypedCallTarget | None:
        """Fill slots and tables; return None if another thread has replaced one of the modules.

        An existing target is returned, unless `sources.accept` adds a condition to the name.
        """
        runtime = self.runtime()
        target = self._make_target(runtime, chosen[func_name], owner)
        modules = {c.module_id: c.loaded for c in chosen.values()}
        linked = self.linked
        bound = linked.bound.bind(chosen, linked) if linked is not None else {}
        if linked is not None:
            linked.keep_files(chosen)
        with hit._lock:
            done = False
            while not done:  # again where what interrupts this thread has changed the tables meanwhile
                change = self.changed = object()
                if self.closed:
                    raise StorageError(f"the cache {self.store.root} was closed while {func_name!r} was loaded")
                existing = self.held(func_name)
                if existing is not None and (sources.accept is None or _is_of(existing, chosen[func_name])):
                    return existing
                if self.linked is not linked or not self._are_current(modules) or not self._agree(chosen, bound, sources.since):
                    return None
                writes, updates = self.bindings(chosen)
                mine = self._new_among(modules)
                updates += [*self._table_updates(func_name, target), self._mine, mine]
                if len(chosen) > 1 and any(choice.record.signature.startswith(LINK_ONLY) for choice in chosen.values()):
                    from compcache.hit.closures.providers import provider_updates

                    updates += provider_updates(self, chosen, _weak)
                if linked is not None and bound:
                    updates += linked.bound.updates(bound)
                stores, tables, commit = b"".join(writes), tuple(updates), runtime.commit
                done = self.changed is change and commit(stores, tables) is None  # handlers run between lines
            for module in modules.values():
                self.opened += not module.committed
                module.committed = True
            self.decoded += sum(len(c.fills or ()) for c in chosen.values())
        return target

    def _agree(self, chosen: dict[str, Choice], bound: dict[str, Any], since: int) -> bool:
        """Return whether all variables are still those of the chosen modules. Another thread may have bound them elsewhere."""
        if self.providers or self.merged:
            from compcache.hit.closures.providers import have_providers

            if not have_providers(self, chosen):
                return False
        return not self.linked or self.linked.agree(chosen, bound, since)

    def _make_target(self, runtime: Any, root: Choice, owner: object) -> TypedCallTarget:
        record = root.record
        context = TargetContext(
            record.name,
            record.symbol,
            root.loaded,
            record.signature,
            self.store.root,
            bool(self.store.stamp_key),
            owner,
            tuple([layer.source for layer in self.store.layers]),
        )
        try:
            target: TypedCallTarget = runtime.make_target(root.loaded.image, record.function, record.entry, record.name, context)
        except IndexError as error:
            reraise_interrupt(error)
            from compcache.hit.needs import misfit

            raise misfit(self, root, error) from None
        return target

    def bindings(self, chosen: dict[str, Choice]) -> tuple[list[bytes], list[dict[Any, Any]]]:
        """Return the stores into images, and the records of them, that bind the chosen realizations to what they use."""
        if not any(choice.imports or choice.fills for choice in chosen.values()):
            return [], []
        from compcache.hit.needs import collect_stores

        return collect_stores(self, chosen)

    # ---------------------------------------------------- memory, for `compcache.hit.memory`

    def lock(self) -> Any:
        """Return the lock of the tables in this process; a forked child has another one."""
        return hit._lock

    def forget(self, module_id: bytes) -> None:
        """Hide a module, and everything bound to it, from later look-ups. Call targets stay valid."""
        if module_id in self._mine or self.linked is not None:  # it may be in a closure
            from compcache.hit.memory import forget

            forget(self, module_id)

    def forget_name(self, func_name: str, module_id: bytes) -> None:
        """Let the next look-up of a function read the directory, unless the function belongs to this module. Call targets in use stay
        valid.
        """
        target = self.held(func_name)
        if target is not None and (target._context is None or target._context.module.module_id != module_id):
            from compcache.hit.memory import forget_name

            forget_name(self, func_name)

    def unload(self, func_name: str) -> int:
        """Invalidate every call target of the modules in which this loader found the function; return their number."""
        from compcache.hit.memory import unload

        return unload(self, func_name)

    def loaded_targets(self) -> list[TypedCallTarget]:
        """Return the valid call targets that this loader has returned and that are in use."""
        found = [weak() for weak in list(self._by_link.values())]
        return [target for target in found if target is not None]


def _is_of(target: TypedCallTarget, choice: Choice) -> bool:
    context = target._context
    return context is not None and context.module is choice.loaded
