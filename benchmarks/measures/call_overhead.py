"""A call of an f64(f64, f64) target, against the same function through ctypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sources
from filling import add_small
from harness import Outcome, Samples

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 0.2


def measure(workspace: Workspace) -> list[Outcome]:
    directory = workspace.cached("single-small", add_small)
    repetitions = 30 if workspace.quick else 120
    taken = workspace.child("call_overhead", directory, sources.SMALL_NAME, repetitions)
    target, native, *others = [Samples(label, "ns", tuple(values)) for label, values in taken.items()]
    note = "a call in a for loop, the loop's own 10 ns or so included on every side"
    return [
        Outcome("6. call of an f64(f64, f64) target / ctypes", target, native, GOAL, tuple(others), (note,))
    ]
