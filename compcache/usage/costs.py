"""The costs of functions, added up by label. All modules are read once, and their functions are sorted by name."""

from __future__ import annotations

from itertools import groupby, islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import DIGEST_SIZE, name_key
from compcache.formats.manifest import LINK_ONLY
from compcache.publish.module_lists import SortedItems, base_of, relation_key
from compcache.usage.ledger import Uses, fold_long
from compcache.usage.snapshot import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache.formats.sorted_keys import Item
    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["Cost", "costs"]

#: The number of labels whose misses are read at a time.
_AT_ONCE = 1 << 12
#: A function's share of the seconds, the bytes and the loads of a module, the size of the module, and whether listings show the function.
_SHARE = Struct("<dddQ?")


class Cost(NamedTuple):
    """The cost of one function, or of all content-named functions with the same label.

    `seconds` is the compile time of its modules, `size` their size in bytes, and `uses` the number of their loads. The values of a module
    with several functions are divided equally among the functions. `misses` is the number of requests without a usable realization.
    `realizations` is the number of stored copies.
    """

    name: str
    seconds: float
    size: int
    misses: int
    uses: int
    realizations: int


def costs(
    store: Store, progress: Progress | None = None, report_duplicate: Callable[[str, int, int], object] | None = None
) -> Iterator[Cost]:
    """Yield the costs of all functions of a directory and its layers, sorted by name. Fold the long journals, and read each module once.

    `report_duplicate` is called for each listed function with several realizations, with the func_name, the number of realizations, and the
    size of their modules in bytes.
    """
    fold_long(store)
    uses = Uses(store)
    directories = enumerate((store, *store.layers))
    shares = SortedItems(
        share for number, directory in directories for share in _shares_in(Slices(directory, progress), uses, bytes([number]))
    )
    totals = (_add_shares(base, items, report_duplicate) for base, items in groupby(shares, _base_of_share))
    while batch := list(islice(totals, _AT_ONCE)):
        misses = uses.of((), {key for _, keys in batch for key in keys}).misses()
        for cost, keys in batch:
            yield cost._replace(misses=sum(misses.get(key, 0) for key in keys))


def _shares_in(slices: Slices, uses: Uses, number: bytes) -> Iterator[Item]:
    """Yield the share of each function in the costs of its module, with the key ``base 0 func_name 0 module_id number``.

    `number` is one byte, which differs between the directory and its layers.
    """
    for slice_ in slices:
        module_uses = uses.of_directory(slice_.first)
        for module_id, row in slice_.rows().items():
            size = slice_.present[module_id].size
            share = 1 / max(len(row.names), 1)
            loads, _ = module_uses.get(module_id, (0, 0.0))
            for name, signature in zip(row.names, row.signatures, strict=True):
                key = relation_key(base_of(name), name.encode("utf-8", "surrogatepass") + b"\0", module_id + number)
                yield key, _SHARE.pack(row.seconds * share, size * share, loads * share, size, not signature.startswith(LINK_ONLY))


def _base_of_share(share: Item) -> bytes:
    """Return the base in the key of a share."""
    key, _ = share
    base, _, _ = key.partition(b"\0")
    return base


def _name_of_share(share: Item) -> bytes:
    """Return the func_name in the key of a share. The name is followed by a NUL, the module_id and the number of the directory."""
    key, _ = share
    return key[key.index(b"\0") + 1 : -DIGEST_SIZE - 2]


def _add_shares(base: bytes, items: Iterable[Item], report_duplicate: Callable[[str, int, int], object] | None) -> tuple[Cost, list[bytes]]:
    """Return the cost of the functions with a common base, without their misses, and the name keys of the listed functions.

    See `costs` for `report_duplicate`.
    """
    seconds = size = loads = 0.0
    realizations, keys = 0, []
    for text, shares in groupby(items, _name_of_share):
        listed = size_of_listed = 0
        for _, value in shares:
            own_seconds, own_size, own_loads, module_size, is_listed = _SHARE.unpack(value)
            seconds += own_seconds
            size += own_size
            loads += own_loads
            realizations += 1
            listed += is_listed
            size_of_listed += module_size * is_listed
        if listed:
            name = text.decode("utf-8", "surrogatepass")
            keys.append(name_key(name))
            if listed > 1 and report_duplicate is not None:
                report_duplicate(name, listed, size_of_listed)
    return Cost(base.decode("utf-8", "surrogatepass"), seconds, round(size), 0, round(loads), realizations), keys
