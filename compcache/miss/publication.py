"""Publishes built modules, updates statistics, and warns about null references."""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from compcache.errors import CacheWarning, StorageError
from compcache.maintain.size_limit import note_additions
from compcache.miss.claim import modules_of_builds
from compcache.miss.held import keep_stored
from compcache.publish.additions import merge
from compcache.publish.quarantine import warn_not_stored
from compcache.publish.writer import keep_in_memory, publish_additions
from compcache.store import is_ordered
from compcache.warning import warn
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.formats.built_module import BuiltModule
    from compcache.publish.numbering import LookUps
    from compcache.session import Session

__all__ = ["publish_built", "publish_or_keep"]

_RESERVED = re.compile("_[_A-Z]")
_MOST_NAMED = 3


def publish_built(
    session: Session, modules: Sequence[BuiltModule], *, sign: bool = True, is_derived: bool = False, look_ups: LookUps | None = None
) -> list[tuple[str, ...]]:
    """Publish modules for all their targets. Return the module_ids of each module, this host's first.

    If the cache has a writable remote store, the modules are also queued for upload, unless `is_derived` is set. `sign` and `look_ups`
    are the parameters of `publish_additions`.

    Raise `StorageError` if the modules could not be stored. Then no index entry refers to the files that were written.
    """
    all_targets = [[module, *module.others] for module in modules]
    if not all_targets:
        return []
    _warn_about_null(modules)
    additions, written = publish_additions(session.store, all_targets, sign=sign, look_ups=look_ups)
    published = list(chain.from_iterable(additions))
    _forget_older_names(session, chain.from_iterable(all_targets), published)
    imports = {name for _, module in published for name in module.imports}
    if imports:
        keep_stored(session, imports)
    new_modules = {module_id: module for module_id, module in published if module_id in written}
    if new_modules:
        note_additions(session.store, list(new_modules.items()), session.max_size, partial(modules_of_builds, session.store.root))
    remote = session.remote() if not is_derived else None
    if remote is not None and remote.writes:
        for module_id, _ in published:
            remote.offer(module_id)
    merge(session.store, is_fresh=True)  # also merges packs among the modules with others
    return [tuple([module_id.hex() for module_id, _ in addition]) for addition in additions]


def publish_or_keep(session: Session, func_name: str, built: BuiltModule, *, sign: bool = True) -> None:
    """Publish a module. If the module cannot be stored, keep it in memory, and warn about `func_name`, unless the cache is read-only.

    See `publish_modules` for `sign`.
    """
    try:
        publish_built(session, [built], sign=sign)
    except StorageError as error:
        if not session.store.readonly:
            warn_not_stored(session.store, func_name, error)
        keep_in_memory(session.store, built)


def _forget_older_names(session: Session, modules: Iterable[BuiltModule], published: Iterable[tuple[bytes, BuiltModule]]) -> None:
    """Forget loaded functions whose plain names have newer modules now. Existing call targets stay valid."""
    for module, (module_id, published_module) in zip(modules, published, strict=True):
        if published_module is not module:  # the addition has received a number
            session.loader.forget_names([name for name, *_ in module.functions if is_ordered(name)], module_id)


def _warn_about_null(modules: Iterable[BuiltModule]) -> None:
    """Issue a warning about weak references that are null. Names that are reserved for compilers are left out."""
    names = sorted({name for built in modules for name in built.null if not _RESERVED.match(name)})
    if names:
        warn(
            f"weak references to {join_first(map(repr, names), _MOST_NAMED)} are null: no module defines the symbols now, and later "
            "definitions will not be used; unless the symbols may be absent, like hooks, add their modules together with the module that "
            "uses them, or name the symbols in imports=",
            CacheWarning,
        )
