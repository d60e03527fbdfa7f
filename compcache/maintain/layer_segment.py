"""Merges the indexes of all layers into one segment in the writable directory. On the miss path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE
from compcache.directory.places import MERGED_LAYERS
from compcache.errors import FormatError
from compcache.formats.index import FUNCTION, ModuleEntry, Stamp
from compcache.formats.order import GREATEST_NUMBER
from compcache.formats.table import all_entries
from compcache.interrupts import reraise_interrupt
from compcache.layers.layered_store import LAYER_SHIFT, ORDER_BITS
from compcache.publish.atomic_file import keep_file
from compcache.publish.index_merge import encode_segment, keep_newest, with_own_stamps

if TYPE_CHECKING:
    from compcache.layers.layered_store import LayeredStore

__all__ = ["write_layer_segment"]

#: The maximum number of functions in the segment. Larger layers change often. Rewriting the segment would take longer than searching each
#: layer.
_MOST_FUNCTIONS = 50_000
_KEPT = 4  # segments of former states, which caches with other layers may use
_MOST_LAYERS = (1 << 64 - ORDER_BITS) - 1
_MODULE_ID = slice(KEY_SIZE, KEY_SIZE + DIGEST_SIZE)


def write_layer_segment(store: LayeredStore, name: str) -> None:
    """Write the merged segment of a directory's layers to the file `name`, which identifies the state of the layers.

    Nothing is written if the layers have too many functions, cannot be read, or no longer have that state. A failure to write is ignored.
    """
    functions: set[bytes] = set()
    modules: dict[bytes, bytes] = {}
    requirements: set[str] = set()
    for number, layer in enumerate(store.layers):
        newest: dict[bytes, bytes] = {}
        behind = (_MOST_LAYERS - number) << ORDER_BITS  # so that the addition numbers of layers do not overlap
        try:
            for segment in layer.index.segments:
                if segment.functions.count + len(functions) > _MOST_FUNCTIONS:
                    return
                # A module in two layers belongs to the first layer.
                functions.update(
                    [_move_entry(entry, behind) for entry in all_entries(segment.functions) if entry[_MODULE_ID] not in modules]
                )
                requirements.update(segment.requirements.values())
                for data in with_own_stamps(layer.index, segment, all_entries(segment.modules)):
                    keep_newest(newest, data)
        except (FormatError, OSError) as problem:
            reraise_interrupt(problem)
            return
        if layer.index.failure is not None or layer.index.damaged:
            return
        for module_id, data in newest.items():
            entry = ModuleEntry.decode(data)
            fields = [getattr(entry, field) for field in ModuleEntry.__slots__]
            if store.known_faults and layer._entry_mac(*fields[:-1]) != entry.mac:  # verified with another table of known faults
                fields[ModuleEntry.__slots__.index("stamp")] = Stamp(0, 0, 0, 0)
            fields[ModuleEntry.__slots__.index("flags")] |= number << LAYER_SHIFT
            modules.setdefault(module_id, ModuleEntry(*fields).encode())
    if name != store.merged_name() or len(store.layers) > _MOST_LAYERS:
        return
    data = encode_segment(sorted(functions), [modules[key] for key in sorted(modules)], requirements)
    keep_file(store, MERGED_LAYERS, name, data, 1 + _KEPT)


def _move_entry(entry: bytes, behind: int) -> bytes:
    """Return a function entry with its addition number raised by `behind`. The number comes from the layer, and may be any number."""
    *fields, order, content = FUNCTION.unpack(entry)
    return FUNCTION.pack(*fields, behind + min(order, GREATEST_NUMBER), content)
