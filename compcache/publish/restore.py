"""Restores removed modules that this process has loaded, because new modules import their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError, StorageError
from compcache.formats.built_module import Sections
from compcache.formats.footer import intact_footer, sections_of
from compcache.formats.manifest_writer import WholeManifest
from compcache.hit.memory import modules_behind
from compcache.hit.target import load_runtime
from compcache.publish.additions import merge
from compcache.publish.writer import keep_in_memory, publication_of, publish_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from compcache.hit.loader import LoadedModule, Loader
    from compcache.hit.target import TargetContext, TypedCallTarget
    from compcache.publish.writer import Publication
    from compcache.store import Store

__all__ = ["ensure_held", "ensure_stored", "restore_providers"]


def ensure_stored(store: Store, loader: Loader, target: TypedCallTarget) -> bool:
    """Ensure that the modules of a loaded function are stored. These are its own module and the modules that it is bound to.

    Returns:
        False if the function must be looked up in the directory instead: it was unloaded, a removed module can no longer be read or has
        pickles that may be from an unsigned layer, or the directory has usable realizations of all functions of a removed module (of the
        function itself, if the module is its own). In the last two cases, the loader forgets the module.

    Raises:
        StorageError: the directory cannot be read.
    """
    context: TargetContext | None = target._context
    if context is None:
        return False
    lost_modules = _lost_modules(store, context.module)
    publications = {module.module_id: _read_publication(store, module) for module in lost_modules}
    for module in lost_modules:
        publication = publications[module.module_id]
        names = [name for name, *_ in publication.indexed] if publication is not None else []
        if module is context.module:
            names = [context.func_name]
        if publication is None or all(loader.holds(name, to_import=True) for name in names):
            loader.forget(module.module_id)
            return False
    for publication in publications.values():
        if publication is not None:
            _store_again(store, publication)
    return True


def restore_providers(store: Store, modules: Iterable[LoadedModule], names: Collection[str]) -> None:
    """Store those loaded modules again that the store no longer has, if they define functions or variables in `names`."""
    for module in modules:
        publication = _read_publication(store, module) if not store.exists(module.module_id) else None
        if publication is not None and any(name in names for name, *_ in publication.indexed):
            _store_again(store, publication)


def ensure_held(store: Store, target: TypedCallTarget) -> bool:
    """Keep the module of a loaded function in the store's memory. The target itself keeps the imported modules loaded.

    Returns:
        False if the function was unloaded, its module can no longer be read, or the module has pickles that may be from an unsigned layer.
    """
    context: TargetContext | None = target._context
    publication = _read_publication(store, context.module) if context is not None else None
    if publication is not None:
        keep_in_memory(store, publication)
    return publication is not None


def _lost_modules(store: Store, module: LoadedModule) -> list[LoadedModule]:
    """Return the loaded modules that a module is bound to and that the store no longer has."""
    store.files.look_again()
    bound = modules_behind(module)
    return [loaded for loaded in bound if not store.holds_in_memory(loaded.module_id) and not store.exists(loaded.module_id)]


def _read_publication(store: Store, module: LoadedModule) -> Publication | None:
    """Read a module from its mapped file. Return None if the file is not mapped completely, or is damaged.

    The result is also None for a module with pickles that may be from an unsigned layer, because publishing would make them trusted.
    """
    data = load_runtime().stored(module.image)
    if data is None:
        return None
    try:
        sections = Sections(*sections_of(data, intact_footer(data, module.module_id)))
        manifest = WholeManifest(sections.records)
        if store.layers and not store.trusted_keys and manifest.is_pickled():
            return None
        return publication_of(sections, manifest)
    except FormatError:
        return None


def _store_again(store: Store, publication: Publication) -> None:
    """Store a lost module again. If that fails, keep it in memory for this process."""
    try:
        publish_modules(store, [publication], sign=False)
    except StorageError:
        keep_in_memory(store, publication)
        return
    store.stats.unaccounted += sum(map(len, publication.sections))
    merge(store)
