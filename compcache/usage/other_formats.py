"""Directories of other formats: what earlier and later versions of the package have written, which this one leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.store import FORMER_DIRECTORIES, PLACES

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["other_formats"]

_CURRENT = frozenset([place.directory for place in PLACES])
_STEMS = tuple([f"{stem}-v" for stem, version, _ in [directory.partition("-v") for directory in _CURRENT] if version])


def other_formats(store: Store) -> list[str]:
    """The names of the directories below the root that are of formats which this version does not use, sorted."""
    names = store.names_in(store.root)
    return [name for name in names if name not in _CURRENT and name.startswith((*_STEMS, *FORMER_DIRECTORIES))]
