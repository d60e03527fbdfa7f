"""add_module of a thousand realistic functions, against parsing, optimizing and emitting them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import Outcome, Samples

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 1.25


def measure(workspace: Workspace) -> list[Outcome]:
    """The row of the goal, and one for functions so small that what surrounds code generation weighs most."""
    count = 200 if workspace.quick else 1000
    title = f"8. add_module of {count} functions / parse + optimize + emit_object"
    small = f"8b. the same, {count} functions of two instructions"
    return [
        _outcome(workspace, title, ("realistic", count, 3 if workspace.quick else 7), GOAL),
        _outcome(workspace, small, ("small", count, 5 if workspace.quick else 15), None),
    ]


def _outcome(workspace: Workspace, title: str, what: tuple[str, int, int], goal: float | None) -> Outcome:
    result = workspace.child("adding", workspace.fresh_directory("adding"), *what)
    subject, baseline = [Samples(label, "ms", tuple(values)) for label, values in result["samples"].items()]
    return Outcome(title, subject, baseline, goal, facts=result["facts"])
