"""Merges the indexes of all layers into one segment in the writable directory. On the miss path."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE
from compcache.directory.places import MERGED_LAYERS
from compcache.errors import FormatError
from compcache.formats.index import ModuleEntry, Stamp
from compcache.formats.order import GREATEST_NUMBER
from compcache.interrupts import reraise_interrupt, suppress
from compcache.layers.layered_store import LAYER_SHIFT, ORDER_BITS
from compcache.publish.atomic_file import publish
from compcache.publish.index_merge import encode_segment, entries_of_modules, function_entries, keep_newest, with_order

if TYPE_CHECKING:
    from compcache.layers.layered_store import LayeredStore

__all__ = ["write_layer_segment"]

#: The maximum number of functions in the segment. Larger layers change often. Rewriting the segment would take longer than searching each
#: layer.
_MOST_FUNCTIONS = 50_000
_KEPT = 4  # segments of former states
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
        first_number = (_MOST_LAYERS - number) << ORDER_BITS
        try:
            for segment in layer.index.segments:
                if segment.functions.count + len(functions) > _MOST_FUNCTIONS:
                    return
                # A module in two layers belongs to the first layer.
                in_layer = partial(_number_in_layer, first_number)
                functions.update([with_order(entry, in_layer) for entry in function_entries(segment) if entry[_MODULE_ID] not in modules])
                requirements.update(segment.requirements.values())
                for data in entries_of_modules(layer.index, segment):
                    keep_newest(newest, data)
        except (FormatError, OSError) as problem:
            reraise_interrupt(problem)
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
    with suppress(OSError):
        publish(store.files, store.temporary, store.path(MERGED_LAYERS, name), [data], sync=False)
        _remove_former_segments(store, name)


def _number_in_layer(first_number: int, number: int) -> int:
    """Return the addition number of a layer's module in the merged segment, where the numbers of the layer begin at `first_number`."""
    return first_number + min(number, GREATEST_NUMBER)  # the number comes from the layer, and may be any number


def _remove_former_segments(store: LayeredStore, name: str) -> None:
    """Remove segments of former states except the latest few, which caches with other layers may use."""
    directory = store.directory(MERGED_LAYERS)
    statuses = store.files.statuses(directory)
    former_names = [other for other in statuses if MERGED_LAYERS.includes(other) and other != name]
    for other in sorted(former_names, key=lambda other: statuses[other].st_mtime_ns, reverse=True)[_KEPT:]:
        store.files.unlink(f"{directory}/{other}")
