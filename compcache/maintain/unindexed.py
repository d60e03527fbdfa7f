"""Modules that no index segment names: additions that were interrupted between publishing module and index entry.

No look-up finds such a module until it is added again. A sound one only lacks its index entry. A damaged one, which a
power failure can leave on a disk that does not sync, only takes space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import DIGEST_SIZE, KEY_SIZE
from compcache.errors import FormatError, UnknownVersionError
from compcache.files import reraise_interrupt
from compcache.formats.footer import is_signed_with, require_intact
from compcache.formats.table import all_entries
from compcache.publish import index_merge
from compcache.publish.module_reader import ModuleSections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compcache.store import Store
    from compcache.usage.module_files import FileStatus

__all__ = ["Unindexed", "find_unindexed", "index_modules"]


class Unindexed(NamedTuple):
    """Modules that no index segment names: those whose content matches their module_id, and those damaged."""

    sound: tuple[bytes, ...] = ()
    damaged: tuple[bytes, ...] = ()


def find_unindexed(store: Store, present: Mapping[bytes, FileStatus], before: float) -> Unindexed:
    """The unindexed modules among those that are present and have not been modified since `before`.

    Modules that another version of compcache wrote, or that this cache's key did not sign, are left out.
    """
    try:
        named = {
            entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE]
            for segment in index_merge.readable(store.index)
            for entry in all_entries(segment.functions)
        }
    except (FormatError, OSError) as failure:
        reraise_interrupt(failure)
        return Unindexed()  # the next look-up rebuilds the index
    sound, damaged = [], []
    for module_id in present.keys() - named:
        if present[module_id].modified < before:
            try:
                if _holds_functions(store, module_id):
                    sound.append(module_id)
            except (UnknownVersionError, OSError) as error:
                reraise_interrupt(error)
                continue
            except FormatError:
                damaged.append(module_id)
    return Unindexed(tuple(sorted(sound)), tuple(sorted(damaged)))


def _holds_functions(store: Store, module_id: bytes) -> bool:
    """Whether an intact module is readable here and has functions. Raises `FormatError` if it is not intact."""
    from compcache.publish.module_rows import read_row

    with ModuleSections(store, module_id) as module:
        require_intact(module.footer, module_id, module.read)
        if store.signing_key and not is_signed_with(module.footer, store.signing_key):
            return False
    row = read_row(store, module_id)
    return row is not None and bool(row.names or row.entries)


def index_modules(store: Store, module_ids: Iterable[bytes]) -> tuple[bytes, ...]:
    """Publish an index segment of these modules; return those that it holds.

    Raises:
        OSError: the segment could not be written.
    """
    from compcache.publish.index_rebuild import IndexedModules

    indexed = IndexedModules()
    for module_id in sorted(module_ids):
        indexed.add(store, module_id)
    if indexed.modules:
        level = index_merge.segment_level(len(indexed.modules))
        index_merge.publish_segment(store.index, level, *indexed.entries(), indexed.greatest)
        store.index.refresh()
    return tuple(indexed.modules)
