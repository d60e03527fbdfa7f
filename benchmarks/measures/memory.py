"""Private memory that one function of a ten-thousand-function module adds to a process."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import sources
from filling import add_small
from harness import Outcome, in_turns

from measures.module_size import functions_of_large, large_cache, small_cache

if TYPE_CHECKING:
    from workspace import Workspace

GOAL_KIB = 1024.0


def measure(workspace: Workspace) -> list[Outcome]:
    warm = workspace.cached("single-small", add_small)
    names = Random(7).sample(functions_of_large(workspace), 40)
    turn = count()

    def added(directory: str, name: str) -> float:
        command = [sys.executable, "-m", "children.memory", warm, sources.SMALL_NAME, directory, name]
        done = subprocess.run(
            command, env=workspace.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return float(done.stdout)

    large, small = large_cache(workspace), small_cache(workspace)
    sides = {
        f"of {len(functions_of_large(workspace))} functions": lambda: added(
            large, names[next(turn) % len(names)]
        ),
        "of 1 function": lambda: added(small, "single"),
    }
    subject, other = in_turns(sides, 8 if workspace.quick else 25, "KiB")
    note = (
        "Private_Clean + Private_Dirty of /proc/self/smaps_rollup around get_target and a call, runtime warm"
    )
    title = "7. private memory for one function of a large module"
    return [Outcome(title, subject, None, GOAL_KIB, (other,), (note,))]
