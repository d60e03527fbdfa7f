"""The hit path: from a function's name to a callable, loading only what that function needs.

A load is a transaction in three steps. *Plan* (`compcache.hit.plan`): choose a realization for the function and for everything that
its import slots name, reading one record each. A realization that cannot be satisfied is passed over, and cycles are ordinary (a
greatest fixed point, computed by elimination). *Prepare*: map the images, decode the globals of the closure (`compcache.hit.needs`).
*Commit*: fill slots and tables in one native call. A failure before the commit leaves nothing behind.

A load maps a module once, however many functions it uses of it, and a `Loader` has each module once: a thread claims a module before it
maps it, so constructors run once, whatever other threads and cycles of imports do.

Ownership points one way: target -> context -> module -> image, and module -> what its filled slots refer to (decoded globals, modules of
other functions). All tables hold weak references. Modules and targets belong to one `Loader`, that is to one `Cache` object, so no `Loader`
sees, changes or unloads anything of another. The dynamic linker maps a file once per process: a second loader, or the same one after an
unload while the old mapping is still in use, maps a private copy.

Locking: `_lock` guards the tables. It is reentrant (a garbage collection may run anything while it is held). It is
never held while files are read, images mapped, globals decoded or modules imported: unloading waits for nothing.
`_mapping` is held while a module is mapped and its constructors run, as the dynamic linker holds a lock of its own. It is taken before
`_lock`; a thread that already has `_lock` (a finalizer in a garbage collection) does not wait for it without a bound.
"""

from __future__ import annotations

import errno
import os
from _weakref import ref
from itertools import chain

from compcache import hit
from compcache.errors import CompcacheError, FormatError, LinkError, ReentrantLoadError, StorageError, UndefinedSymbolError
from compcache.formats.manifest import LINK_ONLY, LINKED, MAPPED_IN_PLACE, NO_ENTRY, FunctionRecord, decode_function
from compcache.hit import LoadedModule, PlainLoader, _weak
from compcache.hit.target import TargetContext, load_runtime
from compcache.interrupts import reraise_interrupt
from compcache.settings import is_on, setting
from compcache.store import is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from compcache.directory.module_file import ModuleFile
    from compcache.formats.manifest import Use
    from compcache.formats.records import GlobalRecord
    from compcache.hit.needs import ModuleRecords, SlotContent
    from compcache.hit.plan import Listing, Plan
    from compcache.hit.target import TypedCallTarget
    from compcache.store import IsNear, Store

    Accept = Callable[[ModuleFile], object]
    Import = Use

__all__ = ["Choice", "LoadedModule", "Loader", "Source", "Sources"]

#: The most module files that a load keeps open. Beyond that, it closes them, and opens a file again when it maps the module.
_MOST_FILES = 64
#: The errors of the system for which another attempt can succeed without another compilation.
_SHORTAGES = (errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE)

#: 1: images are mapped from their files everywhere; 0: nowhere; otherwise it depends on the file system (`native/places.c`).
MAP_VARIABLE = "COMPCACHE_MAP_FILES"
_BY_FILE_SYSTEM = 2


class Source:
    """A module as one load sees it.

    Attributes:
        file: the module file.
        loaded: the mapped module, or None.
        suspended: whether the file was closed to save a descriptor. The next read opens it again.
        listed: the known records of the module, in a load of several modules.
    """

    __slots__ = ("file", "listed", "loaded", "suspended")

    def __init__(self, file: ModuleFile, loaded: LoadedModule | None) -> None:
        self.file = file
        self.loaded = loaded
        self.suspended = False
        self.listed: ModuleRecords | None = None

    def read_record(self, store: Store, offset: int) -> bytes:
        """Return the payload of a record. Raise the errors of `ModuleFile.read_record` and `Store.open_module`."""
        if self.listed is not None and self.listed.records:
            return self.listed.read_record(offset)
        return self.open_file(store).read_record(offset)

    def suspend(self) -> None:
        """Close the file until it is needed again."""
        self.file.close()
        self.suspended = True

    def open_file(self, store: Store) -> ModuleFile:
        """Return the file, opened if it was suspended. Raise the errors of `Store.open_module`."""
        if self.suspended:
            self.file = store.open_module(self.file.module_id)
            self.suspended = False
        return self.file

    def release(self) -> None:
        """Close the file, and drop the reference to the mapped module."""
        self.file.close()
        self.loaded = None


class Sources(dict[bytes, Source]):
    """The modules that one load has opened, by module_id.

    Attributes:
        root: the function to load.
        accept: rules out realizations of the root. See `Loader.load`.
        since: the number of loads that had bound a name when this load began, if there are linked closures.
        listing: the lists of records of several modules, or None.
        opened: the modules whose files have not been closed since they were opened.
        bound: for each function that is bound to its copy in a closure, a source of the closure.
        is_present: whether the index was read again during the load.
        excluded: the linked closures without which the load is repeated.
    """

    __slots__ = ("accept", "bound", "excluded", "is_present", "listing", "opened", "root", "since")

    def __init__(self, root: str, accept: Accept | None, since: int, excluded: set[bytes]) -> None:
        self.root = root
        self.excluded = excluded
        self.accept = accept
        self.since = since
        self.listing: Listing | None = None
        self.opened: list[Source] = []
        self.bound: list[Source] = []
        self.is_present = False


class Choice:
    """One realization that a plan has chosen, and its remaining needs.

    Attributes:
        source: the module.
        module_id: the id of the module.
        record: the function's record.
        offset: the offset of the record, or 0 for a stub, which has no record.
        imports: the imports to bind.
        together: imports that were looked up together: their module, the imports, and the numbers of the functions in the module.
        globals: the global variables to decode.
        start: the number of the function that runs the module's constructors, if they wait for imports.
        has_needs: whether the needs of the function were read.
        fills: the decoded globals, or None before decoding.
    """

    __slots__ = ("fills", "globals", "has_needs", "imports", "module_id", "offset", "record", "source", "start", "together")

    def __init__(self, source: Source, record: FunctionRecord, offset: int = 0) -> None:
        self.source = source
        self.module_id = source.file.module_id
        self.record = record
        self.offset = offset
        self.imports: list[Import] = []
        self.together: list[tuple[Source, list[Import], list[int]]] = []
        self.globals: list[GlobalRecord] = []
        self.start: int | None = None
        self.has_needs = False
        self.fills: list[tuple[GlobalRecord, bytes, SlotContent]] | None = None

    @property
    def loaded(self) -> LoadedModule:
        """The mapped module of the realization, which must be mapped."""
        loaded = self.source.loaded
        assert loaded is not None
        return loaded


class Loader(PlainLoader):
    """Loads functions of one store. Its tables contain modules and call targets for as long as other objects refer to them."""

    __slots__ = ()

    def __init__(self, store: Store, *, allow_pickle: bool) -> None:
        super().__init__(store.root, None)
        self.allow_pickle = allow_pickle
        self.maps_files = is_on(MAP_VARIABLE) if setting(MAP_VARIABLE) else _BY_FILE_SYSTEM
        self.adopt(store)

    def adopt(self, store: Store) -> None:
        """Load functions of this store from now on. A linked closure that plain hits have loaded stays in use."""
        self.store = store
        store.listener = ref(self)
        store.stats.watch(self)
        with hit._lock:  # no plain hit is committed any more
            closure = self._closure
            module = self._loaded(closure[0]) if closure is not None else None
        if closure is not None and module is not None:
            from compcache.hit.closures.linked import LinkedClosures

            with hit._lock:
                linked = LinkedClosures(self, (Choice, Source))
            linked.inherit(store, closure, module)
            self.linked = self.linked or linked

    # ------------------------------------------------------------------- plan

    def load(self, func_name: str, owner: object = None, accept: Accept | None = None) -> TypedCallTarget:
        """Return the call target of a function, loaded if necessary.

        Args:
            func_name: the function.
            owner: an object that the target keeps alive.
            accept: called with the file of each candidate; raises an error to rule the candidate out. Then only an accepted
                realization is returned.

        Raises:
            NotCachedError: there is no realization that this host can use.
            ReentrantLoadError: this look-up interrupts a load or an import of the package by this thread.
            CompcacheError: there are realizations, but none can be loaded. This is the error of the first one.
        """
        try:
            return self._load_by_present_index(func_name, owner, accept)
        except (ImportError, NameError, AttributeError, ReentrantLoadError) as error:
            reraise_interrupt(error)
            from compcache.hit.interrupts import add_name

            raise add_name(error, func_name) from error.__cause__

    def _load_by_present_index(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        """Load a function as the present index binds it. If that fails and the index has changed, repeat. See `load` for `accept`."""
        store = self.store
        segments = store.index.segments if store.index.is_listed else None
        while True:
            try:
                return self._load(func_name, owner, accept)
            except CompcacheError:
                # If this directory has no realization, the look-up has just read the disk.
                if not any(store.find_here(func_name)) or not (store.renew_index() or segments not in (None, store.index.segments)):
                    raise
                segments = store.index.segments  # the index has changed meanwhile

    def _load(self, func_name: str, owner: object, accept: Accept | None) -> TypedCallTarget:
        """Load a function, from a linked closure if possible.

        The load is repeated if another thread has loaded or unloaded a module, or to exclude closures. Exceptions: see `load`.
        """
        excluded: set[bytes] = set()
        while True:
            target = self._load_once(func_name, owner, accept, excluded)
            if target is not None:
                return target

    def _load_once(self, func_name: str, owner: object, accept: Accept | None, excluded: set[bytes]) -> TypedCallTarget | None:
        """Load a function. Return None if the load must be repeated (`_load`). See `load` for the exceptions."""
        sources = Sources(func_name, accept, self.linked.bound.changes if self.linked is not None else 0, excluded)
        if self.linked is not None or is_ordered(func_name):  # what a closure contains depends on the functions that its parts import
            self.use_present_index(sources)
        candidates = self.candidates(func_name, sources=sources if accept is None else None)
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
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            if isinstance(error, ReentrantLoadError) or self.linked is None or not self.linked.exclude(sources):
                raise
            return None
        finally:
            for source in [*sources.values(), *sources.bound]:
                source.release()

    def use_present_index(self, sources: Sources) -> None:
        """Read the index again, unless the load with these sources has done so. Raise `StorageError` if it cannot be read."""
        if not sources.is_present:
            sources.is_present = True
            self.store.refresh()

    def _open_first(
        self, func_name: str, candidates: Iterator[tuple[bytes, int]], sources: Sources
    ) -> tuple[Choice | None, Exception | None]:
        """Open the first realization of a function. Return the choice and None, or None and the reason why the realization is unusable.

        Return None twice if there is no realization, or if the module of the first was removed.
        """
        for module_id, offset in candidates:
            try:
                return self.open_candidate(func_name, module_id, offset, sources), None
            except FileNotFoundError as error:
                reraise_interrupt(error)
                break  # the module was removed since the index was read
            except (CompcacheError, OSError) as error:
                reraise_interrupt(error)
                return None, error
        return None, None

    def _prepare_alone(self, choice: Choice, sources: Sources) -> bool:
        """Prepare a realization without a plan. Return False if it needs a plan, which most realizations do not.

        Raise `CompcacheError` or `OSError` if the realization is ruled out.
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

    def candidates(self, func_name: str, is_near: IsNear | None = None, *, sources: Sources | None = None) -> Iterator[tuple[bytes, int]]:
        """Yield (module_id, offset) for the realizations of a function; with the `sources` of a load, also for those in linked closures.

        Among realizations with the same content, those in preferred modules come first: for a plain name, in modules that `is_near` accepts
        (None: loaded modules); for a content name, in loaded modules.
        """
        linked = sources is not None
        if is_ordered(func_name):
            realizations = self.store.find(func_name, is_near or (self.is_loaded if self._modules else None), linked=linked)
            yield from self._admitted(func_name, realizations, sources)
            return
        # All realizations of a content name have the same content.
        unloaded = []
        for candidate in self._admitted(func_name, self.store.find(func_name, linked=linked), sources):
            if not self._modules or self._loaded(candidate[0]) is not None:
                yield candidate
            else:
                unloaded.append(candidate)
        yield from unloaded

    def _admitted(self, func_name: str, realizations: Iterator[tuple[bytes, int]], sources: Sources | None) -> Iterator[tuple[bytes, int]]:
        """Yield the candidates that may be used (`LinkedClosures.admitted`).

        A closure to which the function is bound comes first, with offset 0. The first candidate in a closure creates `self.linked`.
        """
        best = next(realizations, None)  # the look-up renews the index, which affects the bindings
        bound_to = self.linked.bound.module_of(func_name) if self.linked is not None and sources is not None else None
        if bound_to is not None and sources is not None and bound_to not in sources.excluded and self.linked and bound_to in self.linked:
            yield bound_to, 0
        if best is not None:
            for module_id, offset in chain((best,), realizations):
                if self.linked is None:
                    if offset < LINKED:
                        yield module_id, offset
                        continue
                    from compcache.hit.closures.linked import LinkedClosures

                    self.store.refresh()  # the present index decides whether the closure is valid
                    with hit._lock:
                        self.linked = self.linked or LinkedClosures(self, (Choice, Source))
                if offset < LINKED or (sources is not None and module_id not in sources.excluded):
                    admitted = self.linked.admitted(func_name, module_id, offset, is_bound=bound_to is not None)
                    if admitted is not None:
                        yield admitted

    def is_loaded(self, module_id: bytes) -> bool:
        """Return whether a module, or a closure that contains it whole, is loaded and in use."""
        return self._loaded(module_id) is not None or (self.linked and self.linked.closure_with(module_id)) is not None

    def open_candidate(self, func_name: str, module_id: bytes, offset: int, sources: Sources) -> Choice:
        """Return the choice of a realization. `sources` receives the module that is opened, and the caller releases the module.

        With offset 0, the function is bound to its copy in a closure. Raise `CompcacheError` or `OSError` if the realization is ruled out.
        """
        bound = self.linked.bound.choose_copy(func_name, module_id, sources) if self.linked is not None and not offset else None
        if bound is not None:
            return bound
        source = self.open_source(module_id, sources)
        try:
            if self.providers and not self.is_loaded(module_id):
                from compcache.hit.closures.providers import refuse_second_provider

                refuse_second_provider(self, source)
            record = decode_function(source.read_record(self.store, offset))
            if record.name != func_name:
                raise FormatError(f"the record at offset {offset} belongs to function {record.name!r}, not to {func_name!r}")
            self.require_features(source.file, record)
            if sources.accept is not None and func_name == sources.root:
                sources.accept(source.open_file(self.store))
        except FormatError as error:
            raise self.condemn(sources, module_id, error) from error
        return Choice(source, record, offset)

    def _open_source(self, module_id: bytes, sources: Sources) -> Source:
        """Open a module and add it to `sources`. If too many files are open, close them first. See `open_source` for the exceptions."""
        has_others = len(sources)
        if len(sources.opened) == _MOST_FILES:
            for source in sources.opened:
                source.suspend()
            sources.opened.clear()
        file = (self.linked and self.linked.kept_file(module_id)) or self.store.open_module(module_id)
        try:
            self.require_usable(file)
            source = Source(file, self._loaded(module_id))
            if has_others:
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
        """Return the stub for importers of a function that this processor cannot run, or None if the cache has no stub."""
        from compcache.hit.stubs import find_stub

        stub = find_stub(self, func_name, sources)
        return Choice(*stub) if stub is not None else None

    def open_source(self, module_id: bytes, sources: Sources) -> Source:
        """Return an open module for this load. Raise the errors of `Store.open_module` and `require_usable`."""
        return sources.get(module_id) or self._open_source(module_id, sources)

    def condemn(self, sources: Sources, module_id: bytes, error: FormatError) -> CompcacheError:
        """Remove a malformed module from this load, and return the exception to raise. See `Store.condemn`."""
        source = sources.pop(module_id)
        source.loaded = None
        return self.store.condemn(source.file, error)

    def holds(self, name: str, *, to_import: bool = False) -> bool:
        """Return whether this host can use a realization of a function. With `to_import`, variables, hidden functions and stubs count, too.

        Unreadable and damaged realizations do not count. If no realization counts and the index has changed, the look-up is repeated.
        """
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
        # Another process may have added a realization meanwhile.
        return self.store.index.refresh() and self.holds(name, to_import=to_import)

    def lacks_import(self, func_name: str) -> bool:
        """Return whether a load of a stored function would fail because the directory lacks an import."""
        from compcache.hit.plan import Plan

        sources = Sources(func_name, None, 0, set())
        try:
            Plan(self, func_name, self.candidates(func_name), sources, None, None, is_called=False).choose()
        except UndefinedSymbolError:
            return True
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
        finally:
            for source in [*sources.values(), *sources.bound]:
                source.release()
        return False

    def require_usable(self, file: ModuleFile) -> None:
        """Check that this host can run the code of a module, and that the cache's options allow it.

        See `compcache.hit.plan.require_usable` for the exceptions.
        """
        if file.target_id not in self.store.processor().accepted or self.store.min_llvm or file.flags not in MAPPED_IN_PLACE:
            from compcache.hit.plan import require_usable

            require_usable(self.store, file)

    def require_features(self, file: ModuleFile, record: FunctionRecord) -> None:
        """Check that this host has the features that a function requires. See `compcache.hit.plan.require_features` for the exceptions."""
        if record.target_id not in self.store.processor().accepted:
            from compcache.hit.plan import require_features

            require_features(self.store, file, record)

    def runtime(self) -> Any:
        """Return the native runtime of this process."""
        return load_runtime()

    # ---------------------------------------------------------------- prepare

    def _prepare(self, plan: Plan, chosen: dict[str, Choice]) -> bool:
        """Map images, decode globals and run constructors. Return False if a realization cannot be used, which the plan then rejects.

        Raise `ReentrantLoadError` if this load interrupts another one, or `IntegrityError` if the records of a module do not fit its image.
        """
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
        """Run the constructors that have waited for their imports. See `_prepare` for the exceptions."""
        if any(choice.start is not None and not choice.loaded.started for choice in chosen.values()):
            from compcache.hit.plain_imports import start_modules

            functions = {
                name: (choice.loaded, choice.start, [imported for _, imported, _, _ in choice.imports]) for name, choice in chosen.items()
            }
            with self.mapping():
                writes, updates = self.bindings(chosen)
                start_modules(self.runtime(), (b"".join(writes), updates), functions)

    def provide(self, source: Source) -> None:
        """Map a module, unless another function or thread has mapped it. Wait for a thread that is mapping a module.

        See `_map` and `_map_image` for the exceptions.
        """
        if source.loaded is None:
            suspended = source.suspended
            file = source.open_file(self.store)
            with self.mapping():
                source.loaded = self._loaded(file.module_id) or self._map(file.module_id, file.image, self._map_image, file)
            if suspended:
                source.suspend()

    def _map_image(self, file: ModuleFile) -> Any:
        """Map the image of a module, from its file if possible. Raise `LinkError` if the image cannot be mapped."""
        try:
            return self._map_file(file) or self._load_image(file)
        except (OSError, ValueError) as error:
            reraise_interrupt(error)
            if isinstance(error, CompcacheError):
                raise
            name = file.module_id.hex()
            advice = "free memory, disk space or file descriptors" if getattr(error, "errno", None) in _SHORTAGES else "compile it again"
            raise LinkError(f"module {name} cannot be mapped into this process ({error}): {advice}", module_id=name) from error

    def _map_file(self, file: ModuleFile) -> Any:
        """Return the image, mapped from the open file.

        Return None if images of this kind are not mapped this way, if this process has mapped the file already, or if mapping fails
        or is not safe.
        """
        if file.flags not in MAPPED_IN_PLACE:
            return None
        opened = file.opened  # stays open while it is mapped
        try:
            return self.runtime().map_image(opened.number, os.fsencode(file.path), file.key, file.size, self.maps_files)
        except OSError as error:
            reraise_interrupt(error)
            return None  # for example a noexec mount

    def _load_image(self, file: ModuleFile) -> Any:
        """Return the loaded image of a module. See `load_image` for the exceptions."""
        from compcache.images.kinds import load_image

        return load_image(self.runtime(), file)

    def _decode(self, choice: Choice) -> list[tuple[GlobalRecord, bytes, SlotContent]]:
        """Decode the globals of a choice. See `compcache.hit.needs.decode_globals`."""
        from compcache.hit.needs import decode_globals

        return decode_globals(self, choice)

    # ----------------------------------------------------------------- commit

    def _commit(self, func_name: str, chosen: dict[str, Choice], owner: object, sources: Sources) -> TypedCallTarget | None:
        """Fill slots and tables, and return the target. Return None if another load has contradicted this one, which is then repeated.

        An existing target is returned, unless `sources.accept` requires another realization. Raise `StorageError` if the cache was closed
        while the function was loaded, or `IntegrityError` if the records of a module do not fit its image.
        """
        runtime = self.runtime()
        target = self._make_target(runtime, chosen[func_name], owner)
        modules = {choice.module_id: choice.loaded for choice in chosen.values()}
        linked = self.linked
        bound = linked.bound.bind(chosen, linked) if linked is not None else {}
        if linked is not None:
            linked.keep_files(chosen)
        with hit._lock:
            is_committed = False
            while not is_committed:  # repeated if an interrupt of this thread has changed the tables
                change = self.changed = object()
                if self.closed:
                    raise StorageError(f"the cache {self.store.root} was closed while {func_name!r} was loaded: open it again")
                existing = self.held(func_name)
                if existing is not None and (sources.accept is None or _belongs_to(existing, chosen[func_name])):
                    return existing
                new_modules = self._new_rows(modules)
                if self.linked is not linked or new_modules is None or not self._is_consistent(chosen, bound, sources.since):
                    return None
                writes, updates = self.bindings(chosen)
                updates += [*self._table_updates(runtime, func_name, target, change), self._modules, new_modules]
                if len(chosen) > 1 and any(choice.record.signature.startswith(LINK_ONLY) for choice in chosen.values()):
                    from compcache.hit.closures.providers import provider_updates

                    updates += provider_updates(self, chosen, _weak)
                if linked is not None and bound:
                    updates += linked.bound.updates(bound)
                stores, tables, commit = b"".join(writes), tuple(updates), runtime.commit
                is_committed = self.changed is change and commit(stores, tables) is None  # handlers run between lines
            for module in modules.values():
                self.opened += not module.committed
                module.committed = True
            self.decoded += sum(len(choice.fills or ()) for choice in chosen.values())
        return target

    def _is_consistent(self, chosen: dict[str, Choice], bound: dict[str, Any], since: int) -> bool:
        """Return whether no other load has bound the chosen functions and variables to other modules meanwhile.

        `since` is the value of `BoundNames.changes` when the load began.
        """
        if self.providers or self.merged:
            from compcache.hit.closures.providers import agree_with_providers

            if not agree_with_providers(self, chosen):
                return False
        return not self.linked or self.linked.agree(chosen, bound, since)

    def _make_target(self, runtime: Any, root: Choice, owner: object) -> TypedCallTarget:
        """Return a new call target for a realization. Raise `IntegrityError` if the record does not fit the image."""
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
            from compcache.hit.needs import quarantine_misfit

            raise quarantine_misfit(self, root, error) from None
        return target

    def bindings(self, chosen: dict[str, Choice]) -> tuple[list[bytes], list[dict[Any, Any]]]:
        """Return the stores into images, and the table updates that record them, which bind the chosen realizations to what they use."""
        if not any(choice.imports or choice.fills for choice in chosen.values()):
            return [], []
        from compcache.hit.needs import collect_stores

        return collect_stores(self, chosen)

    # ---------------------------------------------------- memory, for `compcache.hit.memory`

    def lock(self) -> Any:
        """Return the lock of the tables. A forked child has another one."""
        return hit._lock

    def forget(self, module_id: bytes) -> None:
        """Hide a module, and all modules that are bound to it, from later look-ups (`compcache.hit.memory.forget`)."""
        if module_id in self._modules or self.linked is not None:  # a linked closure may contain the module
            from compcache.hit.memory import forget

            forget(self, module_id)

    def forget_names(self, func_names: Iterable[str], module_id: bytes) -> None:
        """Let the next look-ups read the directory, unless the loaded functions belong to this module. Call targets in use stay valid."""
        held = [target for target in map(self.held, func_names) if target is not None]
        targets = [target for target in held if target._context is None or target._context.module.module_id != module_id]
        if targets:
            from compcache.hit.memory import forget_targets

            forget_targets(self, targets)

    def unload(self, func_name: str) -> int:
        """Invalidate every call target of the modules that realize the function, and return the number of targets."""
        from compcache.hit.memory import unload

        return unload(self, func_name)

    def loaded_targets(self) -> list[TypedCallTarget]:
        """Return the valid call targets that this loader has returned and that are in use."""
        targets = [weak() for weak in list(self._current.values())]
        return [target for target in targets if target is not None]


def _belongs_to(target: TypedCallTarget, choice: Choice) -> bool:
    """Return whether a target belongs to the module of a choice."""
    context = target._context
    return context is not None and context.module is choice.loaded
