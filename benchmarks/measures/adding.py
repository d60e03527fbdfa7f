"""add_module of a thousand realistic functions and of tiny modules, against parsing, optimizing and emitting them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import Outcome, Samples

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 1.05
#: Where code generation alone takes 4.4 ms: 8 ms more for one module, 2 ms more for each of a hundred.
GOAL_ALONE, GOAL_OF_MANY = 2.8, 1.45
GOAL_FIRST = 1.0


def measure(workspace: Workspace) -> list[Outcome]:
    """The row of the goal, and one for functions so small that what surrounds code generation weighs most."""
    count = 200 if workspace.quick else 1000
    title = f"8. add_module of {count} functions / parse + optimize + emit_object"
    small = f"8b. the same, {count} functions of two instructions"
    return [
        _outcome(workspace, title, ("realistic", count, 3 if workspace.quick else 7), GOAL),
        _outcome(workspace, small, ("small", count, 5 if workspace.quick else 15), None),
        *_tiny(workspace),
    ]


def _tiny(workspace: Workspace) -> list[Outcome]:
    result = workspace.child("adding_small", workspace.fresh_directory("adding-small"), 10 if workspace.quick else 40)
    samples = {label: tuple(values) for label, values in result["samples"].items()}
    bare, one, each, second, first = [Samples(label, "ms", values) for label, values in samples.items()]
    title = "8c. add_module of a tiny module / parse + optimize + emit_object"
    return [
        Outcome(title, one, bare, GOAL_ALONE, facts=result["facts"]),
        Outcome("8d. the same, each of 100 in add_modules", each, bare, GOAL_OF_MANY),
        Outcome("8e. first addition of a directory / the second", first, second, GOAL_FIRST),
    ]


def _outcome(workspace: Workspace, title: str, what: tuple[str, int, int], goal: float | None) -> Outcome:
    result = workspace.child("adding", workspace.fresh_directory("adding"), *what)
    subject, baseline = [Samples(label, "ms", tuple(values)) for label, values in result["samples"].items()]
    return Outcome(title, subject, baseline, goal, facts=result["facts"])
