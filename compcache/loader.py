"""The hit path: from a function's name to a callable, loading only what that function needs.

A load is a transaction in three steps. *Plan* (`compcache.planning`): choose a realization for the function and for everything that its
import slots name, reading one record each; a realization that cannot be satisfied is passed over, and cycles are
ordinary (a greatest fixed point, computed by elimination). *Prepare*: map the images, decode the globals of the
closure (`compcache.decoding`). *Commit*: fill slots and tables in one native call. Whatever fails before the commit leaves nothing behind.

Ownership points one way: target -> context -> module -> image, and module -> what its filled slots refer to (decoded
globals, modules of other functions). All tables hold weak references. Modules and targets belong to one `Loader`,
that is to one `Cache` object, so that nothing of one is ever seen, changed or unloaded through another. Because the
dynamic linker maps a file once per process, `_mapped` says which files are mapped; whoever comes second, or again
after an unload while the old mapping is still in use, maps a private copy.

Locking: `_lock` guards the tables. It is reentrant (a garbage collection may run anything while it is held) and is
never held while files are read, images mapped, globals decoded or modules imported: unloading waits for nothing.
"""

from __future__ import annotations

import os
from _thread import RLock
from _weakref import ref

from compcache.errors import CompcacheError, FormatError, LinkError, StorageError
from compcache.manifest import IMAGE_OBJECT, NO_ENTRY, FunctionRecord, GlobalRecord, decode_function
from compcache.runtime import load_runtime
from compcache.target import TargetContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.decoding import Kept
    from compcache.planning import Plan
    from compcache.store import ModuleFile, Store
    from compcache.target import TypedCallTarget

__all__ = ["Choice", "LoadedModule", "Loader"]

_WORD = 8

_lock = RLock()
#: The files that are mapped in this process, {path: weak reference to the module that maps it}: the one intern table.
#: Process-wide because glibc hands out one mapping per file, weak because only users keep code alive.
_mapped: dict[str, ref[LoadedModule]] = {}


def _renew_lock() -> None:
    """A forked child has only the thread that forked: nobody would release a lock held by another."""
    global _lock  # noqa: PLW0603 - see above
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class LoadedModule:
    """A mapped image and what its filled slots refer to.

    `slots` maps the number of each filled slot to what must live as long as the image: the module that a function
    slot points into, or the decoded value of a global.
    """

    __slots__ = ("__weakref__", "image", "module_id", "size", "slots")

    def __init__(self, module_id: bytes, size: int) -> None:
        self.module_id = module_id
        self.size = size
        self.image: Any = None
        self.slots: dict[int, object] = {}


class Choice:
    """One realization that a plan has chosen, and what it still has to provide for it."""

    __slots__ = ("file", "fills", "globals", "imports", "loaded", "module_id", "record")

    def __init__(self, file: ModuleFile, record: FunctionRecord, loaded: LoadedModule | None) -> None:
        self.file = file
        self.module_id = file.module_id
        self.record = record
        self.loaded = loaded
        self.imports: list[tuple[int, str]] = []
        self.globals: list[GlobalRecord] = []
        self.fills: list[tuple[GlobalRecord, bytes, Kept]] | None = None

    def release(self) -> None:
        """Let go of everything that the choice holds open."""
        self.file.close()
        self.loaded = None
        self.fills = None


class Loader:
    """Loads functions of one store; what it handed out is in its tables as long as somebody holds it."""

    __slots__ = ("__weakref__", "_by_link", "_mine", "allow_pickle", "closed", "decoded", "opened", "store", "targets")

    def __init__(self, store: Store, *, allow_pickle: bool) -> None:
        self.store = store
        self.allow_pickle = allow_pickle
        self.targets: dict[str, ref[TypedCallTarget]] = {}
        self._by_link: dict[str, ref[TypedCallTarget]] = {}
        self._mine: dict[bytes, ref[LoadedModule]] = {}
        self.closed = False
        self.decoded = 0  # how many globals were decoded,
        self.opened = 0  # and images mapped, by loads that succeeded

    # ------------------------------------------------------------------- plan

    def load(self, func_name: str, owner: object = None) -> TypedCallTarget:
        """The target of a function, loading it if need be. `owner` is kept alive by the target.

        Raises:
            NotCachedError: there is no realization that this host can use.
            CompcacheError: there are realizations, but none can be loaded; the reason against the first one.
        """
        index = self.store.index
        known = index.segments
        try:
            return self._load(func_name, owner)
        except CompcacheError:
            index.refresh()
            if index.segments is known:
                raise
        return self._load(func_name, owner)  # somebody has added something meanwhile

    def _load(self, func_name: str, owner: object) -> TypedCallTarget:
        target, error = self._load_plain(func_name, owner)
        if target is not None:
            return target
        from compcache.planning import Plan

        plan = Plan(self, func_name, error)
        try:
            while target is None:
                chosen = plan.choose()
                if self._prepare(plan, chosen):
                    target = self._commit(func_name, chosen, owner)
            return target
        finally:
            plan.release()

    def _load_plain(self, func_name: str, owner: object) -> tuple[TypedCallTarget | None, Exception | None]:
        """The usual case without a plan: the first realization is usable and needs nothing but its own module.

        Returns:
            The target; or None, and what is wrong with that realization if anything is.
        """
        choice = None
        try:
            for module_id, offset in self.candidates(func_name):
                choice = self.open_candidate(func_name, module_id, offset)
                if choice.record.needs or choice.record.entry == NO_ENTRY:
                    break
                if choice.loaded is None:
                    choice.loaded = self._map(choice.file)
                return self._commit(func_name, {func_name: choice}, owner), None
        except FileNotFoundError:
            return None, None  # pruned since the index was read
        except (CompcacheError, OSError) as error:
            return None, error
        finally:
            if choice is not None:
                choice.release()
        return None, None

    def candidates(self, func_name: str) -> Iterator[tuple[bytes, int]]:
        """The realizations of a function, those in modules that are loaded first."""
        later = []
        for candidate in self.store.find(func_name):
            if not self._mine or self._loaded(candidate[0]) is not None:
                yield candidate
            else:
                later.append(candidate)
        yield from later

    def _loaded(self, module_id: bytes) -> LoadedModule | None:
        known = self._mine.get(module_id)
        return known() if known is not None else None

    def open_candidate(self, func_name: str, module_id: bytes, offset: int) -> Choice:
        """Read the record of a realization. Raises one of the errors that make it no candidate."""
        file = self.store.open_module(module_id)
        try:
            if file.target_id != self.store.native_target:
                self.require_usable(file)
            record = decode_function(file.read_record(offset))
            if record.name != func_name:
                raise FormatError(f"the record at offset {offset} is of another function")
            choice = Choice(file, record, self._loaded(module_id))
        except FormatError as error:
            raise self.store.condemn(file, error) from error
        except BaseException:
            file.close()
            raise
        return choice

    def require_usable(self, file: ModuleFile) -> None:
        """Check that this host can run the code of a module.

        Raises:
            IncompatibleTargetError: it cannot; the message says why.
        """
        from compcache.planning import require_usable

        require_usable(self.store, file)

    def runtime(self) -> Any:
        """The native runtime of this process."""
        return load_runtime(self.store)

    # ---------------------------------------------------------------- prepare

    def _prepare(self, plan: Plan, chosen: dict[str, Choice]) -> bool:
        """Map images and decode globals; False where a choice turned out to be none."""
        for name, choice in chosen.items():
            try:
                if choice.loaded is None:
                    choice.loaded = self._map(choice.file)
                if choice.fills is None:
                    choice.fills = self._decode(choice) if choice.globals else []
            except (CompcacheError, OSError) as error:
                plan.reject(name, error)
                return False
        return True

    def _map(self, file: ModuleFile) -> LoadedModule:
        module = LoadedModule(file.module_id, file.image)
        try:
            if file.flags == IMAGE_OBJECT:
                module.image = self._map_object(file)
            elif not file.copied and _claim(file.path, module):
                module.image = self._map_shared(file)
            else:
                module.image = self._map_copy(file)
        except (OSError, ValueError) as error:
            if isinstance(error, CompcacheError):
                raise
            name = file.module_id.hex()
            raise LinkError(f"module {name} cannot be mapped: {error}", module_id=name) from error
        return module

    def _map_shared(self, file: ModuleFile) -> Any:
        try:
            return self.runtime().open_image(os.fsencode(file.path), file.key, file if file.in_memory else None)
        except OSError:
            return self._map_copy(file)  # a noexec mount: the same bytes in memory

    def _map_copy(self, file: ModuleFile) -> Any:
        from compcache.memory import anonymous_image

        with anonymous_image(file.read(0, file.image)) as path:
            return self.runtime().open_image(os.fsencode(path), file.key, None)

    def _map_object(self, file: ModuleFile) -> Any:
        from compcache.entrypoints import TABLE_SYMBOL
        from compcache.orc import link_object

        linked = link_object(file.read(0, file.image), TABLE_SYMBOL)
        return self.runtime().adopt_image(linked.address, file.key, linked)

    def _decode(self, choice: Choice) -> list[tuple[GlobalRecord, bytes, Kept]]:
        from compcache.decoding import decode_globals

        return decode_globals(self, choice)

    # ----------------------------------------------------------------- commit

    def _commit(self, func_name: str, chosen: dict[str, Choice], owner: object) -> TypedCallTarget | None:
        """Fill slots and tables; None where another thread loaded one of the modules meanwhile."""
        runtime = self.runtime()
        target = self._make_target(runtime, chosen[func_name], owner)
        with _lock:
            if self.closed:
                raise StorageError(f"the cache {self.store.root} was closed while {func_name!r} was loaded")
            known = self.targets.get(func_name)
            existing = known() if known is not None else None
            if existing is not None:
                return existing
            if not self._agree(chosen):
                return None
            writes, updates = self._writes(runtime, chosen)
            new = [c.loaded for c in chosen.values() if self._loaded(c.module_id) is None]
            mine = {c.module_id: ref(c.loaded) for c in chosen.values() if c.loaded is not None}
            updates += [*self._table_updates(func_name, target), self._mine, mine]
            runtime.commit(b"".join(writes), tuple(updates))
            self.opened += len({id(module) for module in new})
            self.decoded += sum(len(c.fills or ()) for c in chosen.values())
        return target

    def _agree(self, chosen: dict[str, Choice]) -> bool:
        """Whether every choice uses the module that this loader has; those that do not are corrected."""
        agreed = True
        modules: dict[bytes, LoadedModule | None] = {}
        for choice in chosen.values():
            module = modules.setdefault(choice.module_id, self._loaded(choice.module_id) or choice.loaded)
            if choice.loaded is not module:
                choice.loaded = module
                choice.fills = None
                agreed = False
        return agreed

    def _make_target(self, runtime: Any, root: Choice, owner: object) -> TypedCallTarget:
        record = root.record
        assert root.loaded is not None
        context = TargetContext(record.name, record.symbol, root.loaded, record.signature, self.store.root, owner)
        target: TypedCallTarget = runtime.make_target(
            root.loaded.image, record.function, record.entry, record.name, context
        )
        return target

    def _table_updates(self, func_name: str, target: TypedCallTarget) -> list[dict[Any, Any]]:
        key = f"{target.link_name}\0{func_name}"
        by_name, by_link = self.targets, self._by_link

        def forget(dead: ref[TypedCallTarget]) -> None:
            if by_name.get(func_name) is dead:
                del by_name[func_name]
            if by_link.get(key) is dead:
                del by_link[key]

        weak = ref(target, forget)
        return [by_name, {func_name: weak}, by_link, {key: weak}]

    def _writes(self, runtime: Any, chosen: dict[str, Choice]) -> tuple[list[bytes], list[dict[Any, Any]]]:
        writes: list[bytes] = []
        updates: list[dict[Any, Any]] = []
        for choice in chosen.values():
            module = choice.loaded
            assert module is not None
            filled: dict[int, object] = {}
            for slot, name in choice.imports:
                provider = chosen[name]
                assert provider.loaded is not None
                if slot not in module.slots:
                    address = runtime.address(provider.loaded.image, provider.record.function)
                    writes.append(_write(runtime.address(module.image, slot), address.to_bytes(_WORD, "little")))
                    filled[slot] = provider.loaded
            for record, data, keep in choice.fills or ():
                if module.slots.get(record.slot) is keep.before:
                    writes.append(_write(runtime.address(module.image, record.slot), data))
                    filled[record.slot] = keep
            if filled:
                updates += [module.slots, filled]
        return writes, updates

    # ----------------------------------------------------------------- unload

    def unload(self, func_name: str) -> int:
        """Invalidate every target of the modules in which this loader found the function; how many those were."""
        modules = {module_id for module_id, _ in self.store.find(func_name)}
        known = self.targets.get(func_name)
        target = known() if known is not None else None
        if target is not None and target._context is not None:
            modules.add(target._context.module.module_id)
        with _lock:
            for module_id in modules:
                self._mine.pop(module_id, None)
            return self._invalidate(lambda context: context.module.module_id in modules)

    def close(self) -> None:
        """Invalidate every target that this loader handed out, and hand out no more."""
        with _lock:
            self.closed = True
            self._mine.clear()
            self._invalidate(lambda _: True)

    def _invalidate(self, concerns: Callable[[TargetContext], bool]) -> int:
        count = 0
        for key, weak in list(self._by_link.items()):
            target = weak()
            context = target._context if target is not None else None
            if target is None or context is None or not concerns(context):
                continue
            self.runtime().invalidate(target)
            count += 1
            if self._by_link.get(key) is weak:
                del self._by_link[key]
            if self.targets.get(context.func_name) is weak:
                del self.targets[context.func_name]
        return count

    def loaded_modules(self) -> list[LoadedModule]:
        """The modules that this loader has loaded and somebody still uses."""
        with _lock:
            modules = {module_id: weak() for module_id, weak in list(self._mine.items())}
            for module_id, module in modules.items():
                if module is None:
                    del self._mine[module_id]
        return [module for module in modules.values() if module is not None]

    def loaded_targets(self) -> list[TypedCallTarget]:
        """The valid targets that this loader handed out and somebody still holds."""
        found = [weak() for weak in list(self._by_link.values())]
        return [target for target in found if target is not None]


def _write(address: int, data: bytes) -> bytes:
    return b"".join([
        address.to_bytes(_WORD, "little"), len(data).to_bytes(_WORD, "little"), data, bytes(-len(data) % _WORD),
    ])  # fmt: skip


def _claim(path: str, module: LoadedModule) -> bool:
    """Make `module` the one that maps this file, unless another one does."""

    def forget(dead: ref[LoadedModule]) -> None:
        if _mapped.get(path) is dead:
            del _mapped[path]

    weak = ref(module, forget)
    with _lock:
        known = _mapped.get(path)
        if known is not None and known() is not None:
            return False
        _mapped[path] = weak
    return True
