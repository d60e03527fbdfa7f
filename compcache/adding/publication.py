"""Publishes built modules, and does the accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.maintain.size_limit import note_additions
from compcache.publish.writer import publish_modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.linker import BuiltModule
    from compcache.store import Store

__all__ = ["publish_built"]


def publish_built(store: Store, modules: Sequence[BuiltModule], max_size: int | None) -> list[tuple[str, ...]]:
    """Publish modules for all their targets; for each its module_ids, that of the one for this host first.

    `max_size` is the limit that the cache was opened with, as for `Cache`.

    Raises:
        StorageError: they could not be stored; nothing refers to what was written of them.
    """
    # Of several realizations the one for this host comes last: look-ups take the newest first.
    all_targets = [[*module.others, module] for module in modules]
    flat = [module for targets in all_targets for module in targets]
    if not flat:
        return []
    module_ids = publish_modules(store, flat)
    note_additions(store, list(zip(module_ids, flat, strict=True)), max_size)
    remaining = iter(module_ids)
    return [tuple([next(remaining).hex() for _ in targets])[::-1] for targets in all_targets]
