"""Additions as a whole: modules are published, and what has come together of segments and packs is merged (miss path)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.files import reraise_interrupt
from compcache.publish.index_merge import merge_additions
from compcache.publish.packs import merge_packs
from compcache.publish.quarantine import warn
from compcache.publish.writer import Publication, publish_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.formats.built_module import BuiltModule
    from compcache.store import Sections, Store

__all__ = ["add_module", "add_modules", "compact"]


def add_modules(store: Store, modules: Sequence[BuiltModule | Publication], *, signs: bool = True) -> list[bytes]:
    """Publish modules, and merge the index if many additions have come together; the rest is as of `publish_modules`."""
    module_ids = publish_modules(store, modules, signs=signs)
    try:
        merge_additions(store, merge_packs=merge_packs)
    except OSError as error:
        reraise_interrupt(error)
        warn(f"the index of {store.root} could not be merged: {error}")
    return module_ids


def add_module(
    store: Store, sections: Sections, indexed: Iterable[tuple[str, int, str]], *, target: bytes, flags: int, key: bytes, signs: bool = True
) -> bytes:
    """The same of one module, of which there are the sections (image, records, graph, bitcode, notes) and what the index gets; its module_id."""
    return add_modules(store, [Publication(sections, tuple(indexed), target, flags, key)], signs=signs)[0]


def compact(store: Store) -> None:
    """Merge the newest segments even if they are few, unless another process is merging them. A failure is harmless."""
    try:
        merge_additions(store, most=1, merge_packs=merge_packs)
    except OSError as error:
        reraise_interrupt(error)
