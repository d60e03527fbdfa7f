"""What the measures inside one process share."""

from __future__ import annotations

import gc
import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def nanoseconds(call: Callable[[], object], calls: int) -> float:
    """How long one of `calls` calls in a row takes, in nanoseconds."""
    from timeit import Timer

    return Timer(call).timeit(calls) / calls * 1e9


def take_turns(
    sides: Mapping[str, Callable[[int], float]], repetitions: int, warm_up: int = 3
) -> dict[str, list[float]]:
    """Every side's figure for every repetition (which it is told), in alternating order, without the collector."""
    gc.disable()
    values: dict[str, list[float]] = {label: [] for label in sides}
    for repetition in range(repetitions + warm_up):
        order = list(sides.items())
        for label, side in order if repetition % 2 else reversed(order):
            value = side(repetition)
            if repetition >= warm_up:
                values[label].append(value)
    gc.enable()
    return values


def report(result: object) -> None:
    """Hand the result to the parent."""
    json.dump(result, sys.stdout)


__all__ = ["nanoseconds", "report", "take_turns"]
