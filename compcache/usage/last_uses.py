"""The last use of each module of a directory, with the uses of the modules that import from it.

All modules are read once. Modules are numbered in the order of module_ids, and imports are pairs of numbers, so that a module takes some
40 bytes of memory and an import 8.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE
from compcache.publish.module_lists import IMPORTS, REALIZES, SortedItems, relation_key

if TYPE_CHECKING:
    from compcache.usage.ledger import Uses
    from compcache.usage.snapshot import Slices

__all__ = ["LastUses"]

_NUMBER_SIZE = 4


class LastUses:
    """The last uses of the modules of a directory. A use of a module counts as a use of its dependencies.

    Args:
        slices: the modules, which are read once.
        uses: the statistics of the directory.
    """

    def __init__(self, slices: Slices, uses: Uses) -> None:
        self._starts: dict[int, int] = {}
        self._module_ids = bytearray()
        self._latest = array("d")
        names = SortedItems()
        if not uses.is_empty:
            for slice_ in slices:
                directory_uses = uses.of_directory(slice_.first)
                self._starts[slice_.first] = len(self._latest)
                for module_id, row in slice_.rows().items():
                    number = len(self._latest).to_bytes(_NUMBER_SIZE, "big")
                    self._module_ids += module_id
                    _, last_use = directory_uses.get(module_id, (0, 0.0))
                    self._latest.append(last_use)
                    for relation, functions in ((REALIZES, row.names), (IMPORTS, row.imports)):
                        for name in functions:
                            names.add(relation_key(name, relation, number))
        starts, targets = self._index_imports(names)
        self._spread_uses(starts, targets)

    def of_directory(self, first_byte: int) -> dict[bytes, float]:
        """Return the time of the last use of each used module whose module_id begins with `first_byte`."""
        start = self._starts.get(first_byte, len(self._latest))
        last_uses = {}
        for number in range(start, len(self._latest)):
            module_id = bytes(self._module_ids[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE])
            if module_id[0] != first_byte:
                break
            if self._latest[number]:
                last_uses[module_id] = self._latest[number]
        return last_uses

    def _index_imports(self, names: SortedItems) -> tuple[array[int], array[int]]:
        """Return two arrays: for each module the position of its first provider in the second array, and the numbers of all providers.

        Of several modules that realize a function, the module used last is its provider.
        """
        importers, providers = array("I"), array("I")
        for _, keys in groupby((key for key, _ in names), lambda key: key[: -_NUMBER_SIZE - 1]):
            provider = -1
            for key in keys:
                number = int.from_bytes(key[-_NUMBER_SIZE:], "big")
                if key[-_NUMBER_SIZE - 1 : -_NUMBER_SIZE] == IMPORTS:
                    if provider >= 0:
                        importers.append(number)
                        providers.append(provider)
                elif provider < 0 or self._latest[number] >= self._latest[provider]:
                    provider = number
        counts = array("I", bytes(_NUMBER_SIZE * (len(self._latest) + 1)))
        for number in importers:
            counts[number] += 1
        starts = array("I", accumulate(counts))  # the ends of the modules' providers; the loop counts down to their starts
        targets = array("I", bytes(_NUMBER_SIZE * len(importers)))
        for number, provider in zip(importers, providers, strict=True):
            starts[number] -= 1
            targets[starts[number]] = provider
        return starts, targets

    def _spread_uses(self, starts: array[int], targets: array[int]) -> None:
        """Set each module's last use to the latest use of itself and of all modules that need it. Arguments: see `_index_imports`."""
        latest = self._latest
        visited = bytearray(len(latest))
        used_modules = [number for number, last_use in enumerate(latest) if last_use]
        for root in sorted(used_modules, key=latest.__getitem__, reverse=True):
            pending = [] if visited[root] else [root]
            visited[root] = 1
            for number in pending:  # the loop appends to the list
                latest[number] = latest[root]  # not earlier than its own last use, because roots are visited latest first
                for target in targets[starts[number] : starts[number + 1]]:
                    if not visited[target]:
                        visited[target] = 1
                        pending.append(target)
