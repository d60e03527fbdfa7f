"""Stores modules again that this process has loaded and the directory has lost. A new module that is built from them needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError, StorageError
from compcache.formats.footer import intact_footer, sections_of
from compcache.formats.host import target_id
from compcache.formats.manifest_writer import WholeManifest, image_flag
from compcache.hit.memory import modules_behind
from compcache.hit.target import load_runtime
from compcache.publish.additions import merge
from compcache.publish.writer import Publication, keep_in_memory, publish_modules

if TYPE_CHECKING:
    from compcache.hit.loader import LoadedModule, Loader
    from compcache.hit.target import TargetContext, TypedCallTarget
    from compcache.store import Store

__all__ = ["ensure_held", "ensure_stored"]


def ensure_stored(store: Store, loader: Loader, target: TypedCallTarget) -> bool:
    """Ensure that the directory has a function that is in memory, and every module that the function is bound to.

    Returns:
        False if the function must be looked up in the directory instead: it was unloaded, a lost module cannot be read any more, or the
        directory has other code under a lost name. In the last two cases look-ups no longer find the lost module in memory.

    Raises:
        StorageError: the directory cannot be read.
    """
    context: TargetContext | None = target._context
    if context is None:
        return False
    lost = _lost_modules(store, context.module)
    publications = {module.module_id: _read_publication(store, module) for module in lost}
    for module in lost:
        publication = publications[module.module_id]
        names = [context.func_name] if module is context.module else [name for name, *_ in publication.indexed] if publication else []
        if publication is None or all(loader.holds(name, to_import=True) for name in names):
            loader.forget(module.module_id)
            return False
    for publication in publications.values():
        if publication is not None:
            _store_again(store, publication)
    return True


def ensure_held(store: Store, target: TypedCallTarget) -> bool:
    """Keep the module of a loaded function in this store object. The modules that it is bound to live as long as the target.

    Returns:
        False if the function was unloaded, or its module cannot be read any more.
    """
    context: TargetContext | None = target._context
    publication = _read_publication(store, context.module) if context is not None else None
    if publication is not None:
        keep_in_memory(store, publication)
    return publication is not None


def _lost_modules(store: Store, module: LoadedModule) -> list[LoadedModule]:
    store.files.look_again()
    return [each for each in modules_behind(module) if not store.holds_in_memory(each.module_id) and not store.exists(each.module_id)]


def _read_publication(store: Store, module: LoadedModule) -> Publication | None:
    """Return the module, read from its mapped file, or None if the file is not mapped as a whole, or is damaged.

    The result is also None for a module with pickles if layers may provide it without a trusted signature: here the pickles would be
    read.
    """
    data = load_runtime().stored(module.image)
    if data is None:
        return None
    try:
        sections = sections_of(data, intact_footer(data, module.module_id))
        manifest = WholeManifest(sections[1])
        if store.layers and not store.trusted_keys and manifest.is_pickled():
            return None
        header = manifest.header
        indexed = tuple(manifest.indexed())
    except FormatError:
        return None
    return Publication(sections, indexed, target_id(header.requirement()), image_flag(header.image_kind), header.key)


def _store_again(store: Store, publication: Publication) -> None:
    try:
        publish_modules(store, [publication], signs=False)
    except StorageError:
        keep_in_memory(store, publication)
        return
    store.stats.unaccounted += sum(map(len, publication.sections))
    merge(store)
