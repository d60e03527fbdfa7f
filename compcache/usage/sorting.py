"""Sorting of summaries of functions and modules that may be too many for memory."""

from __future__ import annotations

import heapq
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from compcache.messagepack import pack, unpack_stream
from compcache.publish.scratch import Scratch
from compcache.usage.summaries import EntrySummary, ExportedFunction, FunctionSummary, ModuleSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Summary = FunctionSummary | EntrySummary | ModuleSummary

__all__ = ["in_order"]

#: The number of summaries sorted in memory.
_RUN = 1 << 15
_TYPES: tuple[type[Any], ...] = (FunctionSummary, EntrySummary, ModuleSummary)


def in_order(
    rows: Iterable[Summary], key: Callable[[Summary], Any], *, reverse: bool = False, limit: int | None = None
) -> Iterator[Summary]:
    """Return the summaries sorted by a key. Summaries with equal keys keep their order.

    Args:
        rows: the summaries. Lists in them may be returned as tuples.
        key: returns the sort key of a summary, a number or text.
        reverse: return the reverse of the complete order, in which summaries with equal keys are reversed, too.
        limit: the maximum number of returned summaries; None for all.
    """
    keyed = ((key(row), number, row) for number, row in enumerate(rows))
    order: Any = itemgetter(0, 1)
    row_of = itemgetter(2)
    if limit is not None and limit <= _RUN:
        select_first = heapq.nlargest if reverse else heapq.nsmallest
        return map(row_of, select_first(limit, keyed, key=order))
    runs: list[Iterator[tuple[Any, int, Summary]]] = []
    while run := sorted(islice(keyed, _RUN), key=order, reverse=reverse):
        is_only_run = len(run) < _RUN and not runs
        packed = (pack((key, number, _TYPES.index(type(row)), row)) for key, number, row in run)
        runs.append(iter(run) if is_only_run else _read_run(Scratch(packed)))
    return islice(map(row_of, heapq.merge(*runs, key=order, reverse=reverse)), limit)


def _read_run(scratch: Scratch) -> Iterator[tuple[Any, int, Summary]]:
    """Yield the rows in a temporary file, with their keys and numbers."""
    for key, number, type_number, fields in unpack_stream(scratch.parts()):
        row = _TYPES[type_number](*fields)
        if _TYPES[type_number] is ModuleSummary:
            row = row._replace(functions=tuple(map(ExportedFunction._make, row.functions)))
        yield key, number, row
