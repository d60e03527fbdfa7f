"""Additions as a whole: modules are published, and what has come together of segments and packs is merged (miss path)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.files import reraise_interrupt
from compcache.publish.index_merge import merge_additions
from compcache.publish.packs import merge_packs
from compcache.publish.quarantine import warn
from compcache.publish.writer import Publication, publish_modules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.store import Sections, Store

__all__ = ["add_module", "compact", "merge"]


def merge(store: Store) -> None:
    """Merge the index, and the packs that it names, if many additions have come together; a failure is a warning."""
    try:
        merge_additions(store, merge_packs=merge_packs)
    except OSError as error:
        reraise_interrupt(error)
        warn(f"the index of {store.root} could not be merged: {error}")


def add_module(
    store: Store, sections: Sections, indexed: Iterable[tuple[str, int, str]], *, target: bytes, flags: int, key: bytes, signs: bool = True
) -> bytes:
    """Publish a module, of which there are the sections (image, records, graph, bitcode, notes) and what the index gets; its module_id.

    The rest is as of `publish_modules`.
    """
    (module_id,) = publish_modules(store, [Publication(sections, tuple(indexed), target, flags, key)], signs=signs)
    merge(store)
    return module_id


def compact(store: Store) -> None:
    """Merge the newest segments even if they are few, unless another process is merging them. A failure is harmless."""
    try:
        merge_additions(store, most=1, merge_packs=merge_packs)
    except OSError as error:
        reraise_interrupt(error)
