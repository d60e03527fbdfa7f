"""The costs of functions, added up by label while lists of modules are read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from compcache.publish.module_lists import base_of
from compcache.usage.listings import functions_of, uses_by_module
from compcache.usage.snapshot import Excerpts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.store import Store
    from compcache.usage.module_files import Progress

__all__ = ["Cost", "costs"]

#: The number of labels read at a time.
_AT_ONCE = 1 << 12


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


def costs(store: Store, progress: Progress | None = None) -> Iterator[Cost]:
    """Yield the costs of all functions of a directory and its layers, sorted by name.

    Args:
        store: the cache directory.
        progress: called now and then with the numbers of read modules and of all modules while lists of modules are made.
    """
    excerpts = Excerpts(store, progress)
    bases = excerpts.bases()
    while batch := list(islice(bases, _AT_ONCE)):
        totals: dict[str, list[float]] = {base: [0.0, 0.0, 0, 0.0, 0] for base in batch}
        places = excerpts.of_bases(batch[0], batch[-1])
        for _, overview in places:
            uses = uses_by_module(overview.ledger)
            for module_id, row in overview.rows.items():
                share = 1 / max(len(row.names), 1)
                values = row.seconds * share, overview.present[module_id].size * share, 0, uses.get(module_id, 0) * share, 1
                for sums in [totals[base] for base in map(base_of, row.names) if base in totals]:
                    for position, value in enumerate(values):
                        sums[position] += value
        for function in functions_of(places):
            if function.misses and base_of(function.func_name) in totals:
                totals[base_of(function.func_name)][2] += function.misses
        for name, (seconds, size, misses, loads, copies) in sorted(totals.items()):
            if copies:
                yield Cost(name, seconds, round(size), int(misses), round(loads), int(copies))
