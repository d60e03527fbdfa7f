"""Modules without an index entry. Their addition was interrupted after the module was published and before its index entry was.

No look-up finds such a module. An intact module can be indexed. A damaged module, which a power failure can leave on a disk that does not
sync, only takes space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE
from compcache.errors import FormatError, UnknownVersionError
from compcache.formats.footer import is_signed_with, require_intact
from compcache.formats.table import all_entries
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_reader import ModuleSections
from compcache.publish.open_segments import readable_segments

if TYPE_CHECKING:
    from compcache.store import Store
    from compcache.usage.snapshot import Slice

__all__ = ["Unindexed"]

#: The number of index entries whose modules are in memory at a time.
_ENTRIES = 1 << 21


class Unindexed:
    """Collects the modules without an index entry from slices.

    Left out are modules that were modified since `before`, are from other compcache versions, or lack the signature of this cache's key.

    Attributes:
        sound: the ids of the intact modules.
        damaged: the sizes of the damaged modules in bytes, by module_id.
    """

    def __init__(self, store: Store, before: float) -> None:
        self._store = store
        self._before = before
        self._named = _NamedModules(store)
        self.sound: set[bytes] = set()
        self.damaged: dict[bytes, int] = {}

    def add(self, slice_: Slice) -> None:
        """Examine the old modules of a slice that are not indexed. Slices must be added in order. Omit modules that cannot be read."""
        indexed_ids = self._named.of_directory(slice_.first)
        if indexed_ids is None:
            return
        for module_id in sorted(slice_.present.keys() - indexed_ids):
            if slice_.present[module_id].modified < self._before:
                try:
                    if _is_indexable(self._store, module_id):
                        self.sound.add(module_id)
                except (UnknownVersionError, OSError) as error:
                    reraise_interrupt(error)
                    continue
                except FormatError:
                    self.damaged[module_id] = slice_.present[module_id].size


class _NamedModules:
    """The modules with function entries in the index, read for some directories at a time, because entries are sorted by name."""

    def __init__(self, store: Store) -> None:
        self._known: dict[int, bytearray] = {}
        self._is_readable = True
        try:
            self._segments = readable_segments(store.index)
            count = sum(segment.functions.count for segment in self._segments)
        except (FormatError, OSError) as failure:
            reraise_interrupt(failure)
            self._is_readable = False  # the next look-up rebuilds the index
            return
        self._step = max((1 << 8) * _ENTRIES // max(count, 1), 1)

    def of_directory(self, first: int) -> set[bytes] | None:
        """Return the ids with index entries that begin with the byte `first`, or None if the index cannot be read."""
        if not self._is_readable:
            return None
        if first not in self._known:
            self._known = {number: bytearray() for number in range(first, min(first + self._step, 1 << 8))}
            try:
                self._read_range()
            except (FormatError, OSError) as failure:
                reraise_interrupt(failure)
                self._is_readable = False
                return None
        joined = bytes(self._known[first])
        return {joined[start : start + DIGEST_SIZE] for start in range(0, len(joined), DIGEST_SIZE)}

    def _read_range(self) -> None:
        """Add the modules of all function entries to the current range. See `all_entries` for the exception."""
        module_ids = self._known
        for segment in self._segments:
            for entry in all_entries(segment.functions):
                if entry[KEY_SIZE] in module_ids:
                    module_ids[entry[KEY_SIZE]] += entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE]


def _is_indexable(store: Store, module_id: bytes) -> bool:
    """Return whether a module has functions or entries, and, if the cache has a signing key, a signature by this key.

    Raise `FormatError` if the module is damaged, or `OSError` if the module cannot be read.
    """
    from compcache.publish.module_rows import read_row

    with ModuleSections(store, module_id) as module:
        require_intact(module.footer, module_id, module.read)
        if store.signing_key and not is_signed_with(module.footer, store.signing_key):
            return False
    row = read_row(store, module_id)
    return row is not None and bool(row.names or row.entries)
