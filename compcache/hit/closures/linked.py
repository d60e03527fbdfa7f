"""The linked closures that a loader has met, and the modules that they contain.

A module that a closure contains *whole* has its variables there. So a loader has either such a module or the closure, never both. The
later of them is bound to the earlier one, even if the closure is not valid any more or its file is gone.
"""

from __future__ import annotations

from _weakref import ref

from compcache.directory.module_file import ModuleFile
from compcache.errors import CompcacheError, LinkError
from compcache.formats.manifest import LINKED
from compcache.hit.closures.bound import BoundNames, newest_of, share_open_file
from compcache.hit.closures.validity import split_ids, valid_parts
from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.hit import PlainClosure
    from compcache.hit.closures.bound import Binding
    from compcache.hit.loader import Choice, LoadedModule, Loader, Source, Sources
    from compcache.store import Store

__all__ = ["LinkedClosures"]


class LinkedClosures:
    """The linked closures that a loader has met. They live as long as the loader.

    Their validity is known for one state of the index. `types` are the classes of choices and sources.
    """

    __slots__ = (
        "_early", "_homes", "_containers", "_parts", "_segments", "_state", "_valid", "_weak_loader", "bound",
    )  # fmt: skip

    def __init__(self, loader: Loader, types: tuple[type[Choice], type[Source]]) -> None:
        """Begin without closures. The caller holds the loader's lock, unless the loader commits no loads yet."""
        self._weak_loader = ref(loader)
        self._segments: object = None
        self._state = b""
        self._valid: dict[bytes, bool] = {}
        self._parts: dict[bytes, tuple[bytes, ...]] = {}  # by closure: the modules with code in it
        self._homes: dict[bytes, tuple[bytes, ...]] = {}  # by closure: the modules that it contains whole
        self._containers: dict[bytes, list[bytes]] = {}  # by module: the closures that contain it whole
        self.bound = BoundNames(loader, types)
        self._early = {*loader._modules}  # the modules whose earlier bindings are unknown

    @property
    def _loader(self) -> Loader:
        loader = self._weak_loader()
        assert loader is not None
        return loader

    def inherit(self, store: Store, closure: PlainClosure, module: LoadedModule) -> None:
        """Add a closure that plain hits have loaded, and the bindings to its functions. Bindings with unreadable records are not added.

        `module` is the mapped image of the closure. It keeps the file open if the closure contains whole modules (see `keep_files`).
        """
        module_id, _, parts, homes, plain_file, bound = closure
        opened, path, size, (image, records, target_id, flags, _, key, _) = plain_file
        file = ModuleFile(store.files, path, module_id)
        file.describe(image, records, target_id, flags, key)
        file.size = size
        file.adopt(opened)
        self._add_closure(module_id, split_ids(parts), homes)
        module.file = file if homes else None
        self.bound.inherit(file, module, bound)

    def _is_taken(self, func_name: str, module_id: bytes) -> bool:
        """Return whether a function must not be bound to its copy in this closure.

        Its module may have been bound before this loader met a closure, or may be whole in another loaded closure.
        """
        loader = self._loader
        if self._early:  # modules that are no longer loaded have no bindings
            self._early = {early_id for early_id in self._early if loader._loaded(early_id) is not None}
        if not self._early and not self._containers:
            return False
        modules = newest_of(loader.store, func_name)[1]
        return not self._early.isdisjoint(modules) or self._are_in_other_closure(modules, module_id)

    def _are_in_other_closure(self, modules: Iterable[bytes], module_id: bytes) -> bool:
        """Return whether a loaded closure other than this one contains one of these modules whole."""
        containers = [container for key in modules if (container := self.closure_with(key)) is not None]
        return any(container.module_id != module_id for container in containers)

    def admitted(self, func_name: str, module_id: bytes, offset: int, *, is_bound: bool) -> tuple[bytes, int] | None:
        """Return the (module_id, offset) from which a load takes a realization, or None if the realization cannot be used.

        An offset with `LINKED` marks a realization in a closure. A closure is used only if it is valid, no other loaded code contradicts
        it, and the function is not bound yet (`is_bound`). A realization in a module that a loaded closure contains is taken from the
        closure. See `_offset_in` for the exceptions.
        """
        if offset >= LINKED:
            if is_bound or not self.is_valid_now(module_id) or self._is_elsewhere(module_id) or self._is_taken(func_name, module_id):
                return None
            return module_id, offset & ~LINKED
        container = self.closure_with(module_id)
        if container is None:
            return module_id, offset
        container_offset = self._offset_in(container, func_name)
        return (container.module_id, container_offset) if container_offset is not None else None

    def closure_with(self, module_id: bytes) -> LoadedModule | None:
        """Return the loaded closure that contains a module whole, or None."""
        found_of = self._loader._loaded
        return next((container for key in self._containers.get(module_id, ()) if (container := found_of(key)) is not None), None)

    def _is_elsewhere(self, module_id: bytes) -> bool:
        """Return whether a module that a closure contains whole is loaded by itself or from another closure."""
        loader = self._loader
        homes = self._homes.get(module_id)
        if not homes or not loader._modules:
            return False
        return (
            self._are_in_other_closure(homes, module_id) or any(map(loader._loaded, homes)) or any(self.bound.copies_of(homes, module_id))
        )

    def find_conflict(self, chosen: dict[str, Choice]) -> tuple[str, LinkError] | None:
        """Return the name of a choice that must not be used, and the reason, or None if there is no such choice.

        Its closure contains a module that the load has by itself, or from another closure.
        """
        owners: dict[bytes, tuple[bytes, str]] = {}
        for name, choice in chosen.items():
            module_id = choice.module_id
            for home in (module_id, *self._homes.get(module_id, ())):
                owner, earlier_name = owners.setdefault(home, (module_id, name))
                if owner != module_id:
                    message = f"module {home.hex()} is in a linked closure, but the load also uses it without the closure"
                    return (name if module_id in self._homes else earlier_name), LinkError(message, module_id=home.hex())
        uses_closure = not self._homes.keys().isdisjoint([owner for owner, _ in owners.values()])
        return self._find_second_copy(chosen, owners) if uses_closure else None

    def _find_second_copy(self, chosen: dict[str, Choice], owners: dict[bytes, tuple[bytes, str]]) -> tuple[str, LinkError] | None:
        """Return the name of a choice in a closure that contains the module of a function which the load takes from another closure.

        Return also the reason why the choice must not be used. The result is None if there is no such choice. `owners` has, for each module
        that the load uses, the closure or module from which the load takes its code, and the name of a choice there.
        """
        store = self._loader.store
        for name, choice in chosen.items():
            if choice.module_id in self._parts:
                for home in newest_of(store, name)[1]:
                    owner, other_name = owners.get(home, (home, name))
                    if owner != choice.module_id and owner in self._homes:
                        return other_name, LinkError(
                            f"module {home.hex()} is in one linked closure, and {name!r} is in another", module_id=home.hex()
                        )
        return None

    def agree(self, chosen: dict[str, Choice], bound: dict[str, Binding], since: int) -> bool:
        """Return whether no other load has contradicted this load after the number `since`. The caller holds the loader's lock.

        Another load contradicts this one if it has bound a chosen function to another module, or has committed code of the same modules in
        another closure or outside of closures.
        """
        loader = self._loader
        if self.bound.are_rebound(chosen, since):
            return False
        for binding in bound.values():
            if binding.record is not None and self._are_in_other_closure(binding.modules, binding.file.module_id):
                return False
        for module_id in {choice.module_id for choice in chosen.values()}:
            homes = self._homes.get(module_id, ())
            loaded_modules = [loader._loaded(home) for home in homes] + self.bound.copies_of(homes, module_id)
            loaded_modules += [container for home in (module_id, *homes) if (container := self.closure_with(home))]
            if any(loaded is not None and loaded.committed and loaded.module_id != module_id for loaded in loaded_modules):
                return False
        return True

    def keep_files(self, chosen: dict[str, Choice]) -> None:
        """Keep the files of closures that contain whole modules open. Functions of these modules are then found even after a removal."""
        for choice in chosen.values():
            if choice.module_id in self._homes and choice.loaded.file is None:
                try:
                    choice.loaded.file = share_open_file(choice.source.open_file(self._loader.store))
                except (CompcacheError, OSError) as error:  # the file is gone already
                    reraise_interrupt(error)

    def __contains__(self, module_id: object) -> bool:
        """Return whether the module is a linked closure that this loader has found valid, in this or an earlier state of the index."""
        return module_id in self._parts

    def kept_file(self, module_id: bytes) -> ModuleFile | None:
        """Return the kept file of a loaded closure that contains whole modules, or None."""
        container = self._loader._loaded(module_id) if module_id in self._homes else None
        return share_open_file(container.file) if container is not None and container.file is not None else None

    def closures_of(self, module_id: bytes) -> list[LoadedModule]:
        """Return the loaded closures that contain code of a module."""
        closures = [self._loader._loaded(key) for key, parts in self._parts.items() if module_id in parts]
        return [closure for closure in closures if closure is not None]

    def has_all_parts(self, module_id: bytes) -> bool:
        """Return whether all modules with code in a closure exist. The result is False if that cannot be determined."""
        try:
            return all(map(self._loader.store.exists, self._parts[module_id]))
        except (CompcacheError, OSError) as error:
            reraise_interrupt(error)
            return False

    def _offset_in(self, container: LoadedModule, func_name: str) -> int | None:
        """Return the offset of a function's record in a loaded closure, or None if neither the index nor the kept file lists the function.

        Raise `StorageError` if the closure's file cannot be read, or `FormatError` if its records are damaged.
        """
        loader = self._loader
        for module_id, offset in loader.store.find_here(func_name, linked=True):
            if module_id == container.module_id:
                return offset & ~LINKED
        file: ModuleFile | None = container.file
        if file is None:
            return None
        offsets: dict[str, tuple[bytes, int]] = {}
        loader.runtime().list_functions(file.read(file.image, file.records), container.module_id, offsets, set())
        return offsets[func_name][1] if func_name in offsets else None

    def is_valid_now(self, module_id: bytes) -> bool:
        """Return whether the linked closure with this module_id is valid in the present state of the index.

        A closure that is found valid is recorded.
        """
        loader = self._loader
        self._refresh_state(loader.store)
        is_known_valid = self._valid.get(module_id)
        if is_known_valid is None:
            contents = valid_parts(loader, module_id, self._state)
            is_known_valid = self._valid[module_id] = contents is not None
            if contents is not None:
                self._add_closure(module_id, *contents)
        return is_known_valid

    def exclude(self, sources: Sources) -> bool:
        """Exclude the closures that a failed load has used, unless they are loaded. Return whether a closure was excluded."""
        # Two closures can exclude each other. A function that is realized in both then has no usable realization, although the module that
        # defines it is usable.
        loaded = {module.module_id for module in self._loader.loaded_modules() if module.committed}
        used = {module_id for module_id in sources if module_id in self._parts and module_id not in loaded} - sources.excluded
        sources.excluded.update(used)
        return bool(used)

    def _add_closure(self, module_id: bytes, parts: tuple[bytes, ...], homes: int) -> None:
        """Record a closure and its `parts`, unless it is recorded. It contains the first `homes` of these modules whole."""
        if module_id in self._parts:
            return
        self._parts[module_id] = parts
        if homes:
            self._homes[module_id] = parts[:homes]
        for home in parts[:homes]:
            self._containers.setdefault(home, []).append(module_id)

    def _refresh_state(self, store: Store) -> None:
        """Forget validity if the index has changed."""
        segments = store.segments()
        if segments != self._segments:
            self._segments, self._state = segments, store.state()
            self._valid.clear()
