"""get_target of a function that is loaded already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sources
from filling import add_small
from harness import Outcome, Samples

if TYPE_CHECKING:
    from workspace import Workspace

GOAL_NS = 1000.0


def measure(workspace: Workspace) -> list[Outcome]:
    directory = workspace.cached("single-small", add_small)
    repetitions = 30 if workspace.quick else 100
    taken = workspace.child("repeated_lookup", directory, sources.SMALL_NAME, repetitions)
    again, table, empty = [Samples(label, "ns", tuple(values)) for label, values in taken.items()]
    note = "each side inside one lambda; 'empty' is that lambda alone"
    return [Outcome("5. repeated get_target", again, None, GOAL_NS, (table, empty), notes=(note,))]
