"""What the measures of a first get_target share: in fresh processes, and through fresh Cache objects of one process."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from harness import Outcome, Samples, in_turns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspace import Workspace


class Asked(NamedTuple):
    """One side: a cache, and functions of it that are asked for in turn."""

    label: str
    directory: str
    names: list[str]


def compare(
    workspace: Workspace,
    title: str,
    large: Asked,
    small: Asked,
    *,
    goal: float,
    facts: Mapping[str, object] | None = None,
) -> list[Outcome]:
    """The row for fresh processes, and the row for fresh Cache objects in a warm one."""
    fresh = _fresh_processes(workspace, large, small)
    warm = _fresh_caches(workspace, large, small)
    process_note = (
        "first get_target of a process that has imported compcache; the native runtime is mapped in it"
    )
    object_note = "get_target of a new Cache object in a warm process, nothing of the module being mapped"
    return [
        Outcome(
            f"{title}, fresh process", fresh[0], fresh[1], goal, notes=(process_note,), facts=facts or {}
        ),
        Outcome(f"{title}, fresh Cache", warm[0], warm[1], goal, notes=(object_note,)),
    ]


def _fresh_processes(workspace: Workspace, *sides: Asked) -> list[Samples]:
    turn = count()

    def once(side: Asked) -> float:
        name = side.names[next(turn) % len(side.names)]
        command = [sys.executable, "-m", "children.first_in_process", side.directory, name]
        done = subprocess.run(
            command, env=workspace.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return float(done.stdout)

    repetitions = 10 if workspace.quick else 40
    calls = {side.label: partial(once, side) for side in sides}
    return in_turns(calls, repetitions, "us", warm_up=2)


def _fresh_caches(workspace: Workspace, *sides: Asked) -> list[Samples]:
    arguments: list[str] = []
    for side in sides:
        arguments += ["--", side.label, side.directory, *side.names]
    taken = workspace.child("fresh_caches", 60 if workspace.quick else 400, *arguments[1:])
    return [Samples(label, "us", tuple(values)) for label, values in taken.items()]
