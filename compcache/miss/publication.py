"""Publishes built modules, and does the accounts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from compcache.maintain.size_limit import note_additions
from compcache.miss.held import keep_stored, modules_in_use
from compcache.publish.additions import merge
from compcache.publish.writer import publish_modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.formats.built_module import BuiltModule
    from compcache.session import Session

__all__ = ["publish_built"]


def publish_built(session: Session, modules: Sequence[BuiltModule]) -> list[tuple[str, ...]]:
    """Publish modules for all their targets; for each its module_ids, that of the one for this host first.

    They are queued for the remote store as well, if the cache has one to write to.

    Raises:
        StorageError: they could not be stored; nothing refers to what was written of them.
    """
    # Of several realizations the one for this host comes last: look-ups take the newest first.
    all_targets = [[*module.others, module] for module in modules]
    flat = [module for targets in all_targets for module in targets]
    if not flat:
        return []
    module_ids = publish_modules(session.store, flat)
    imports = {name for module in flat for name in module.imports}
    if imports:
        keep_stored(session, imports)
    note_additions(session.store, list(zip(module_ids, flat, strict=True)), session.max_size, partial(modules_in_use, session))
    remote = session.remote()
    if remote is not None and remote.writes:
        for module_id in module_ids:
            remote.offer(module_id)
    merge(session.store)  # packs among them are one with others then
    remaining = iter(module_ids)
    return [tuple([next(remaining).hex() for _ in targets])[::-1] for targets in all_targets]
