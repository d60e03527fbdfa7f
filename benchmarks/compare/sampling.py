"""Probes in turns: several figures of each process at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def probe_in_turns(
    sides: Mapping[str, Callable[[], Mapping[str, float]]], repetitions: int, units: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Every side once per repetition, in alternating order after one that does not count: {label: {figure: samples}}."""
    taken: dict[str, list[Mapping[str, float]]] = {label: [] for label in sides}
    for repetition in range(repetitions + 1):
        order = list(sides.items())
        for label, side in order if repetition % 2 else reversed(order):
            values = side()
            if repetition:
                taken[label].append(values)
    return {
        label: {
            name: Samples(label, unit, tuple(values[name] for values in all_values)).as_json()
            for name, unit in units.items()
        }
        for label, all_values in taken.items()
    }
