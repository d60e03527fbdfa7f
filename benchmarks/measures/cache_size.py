"""The first get_target in a cache of a hundred thousand modules, against a cache of ten; the cost of adding there."""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from filling import PER_MODULE, Filled, add_small, fill, function_name
from harness import Outcome, Samples

from measures.first_lookup import Asked, compare

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 1.5
SMALL_MODULES = 10
ADDED = 300


def measure(workspace: Workspace) -> list[Outcome]:
    large, filled = _filled(workspace, "large-cache", workspace.modules)
    small, _ = _filled(workspace, "small-cache", SMALL_MODULES)
    title = f"3. first get_target, {workspace.modules} / {SMALL_MODULES} modules"
    sides = (
        Asked(f"{workspace.modules} modules", large, _names(workspace.modules)),
        Asked(f"{SMALL_MODULES} modules", small, _names(SMALL_MODULES)),
    )
    facts = {f"index segments of {side.label}": _segments(side.directory) for side in sides}
    return [*compare(workspace, title, *sides, goal=GOAL, facts=facts), _additions(workspace, large, filled)]


def _segments(directory: str) -> str:
    """How many segments of each level the index has: a fresh Cache may have to open them all."""
    levels = Counter(name.partition("-")[0] for name in os.listdir(f"{directory}/index-v1"))
    shown = ", ".join(f"{count} of level {int(level)}" for level, count in sorted(levels.items()))
    return f"{levels.total()} ({shown})"


def _filled(workspace: Workspace, name: str, modules: int) -> tuple[str, Filled | None]:
    done: list[Filled] = []

    def make(directory: str) -> None:
        add_small(directory)
        done.append(fill(directory, modules, sync=False))

    return workspace.cached(f"{name}-{modules}", make), done[0] if done else None


def _names(modules: int) -> list[str]:
    random = Random(3)
    return [function_name(random.randrange(modules), random.randrange(PER_MODULE)) for _ in range(40)]


def _additions(workspace: Workspace, large: str, filled: Filled | None) -> Outcome:
    """Additions to the large cache and to a small one, alternately, without waiting for the disk."""
    small = workspace.fresh_directory("additions")
    add_small(small)
    fill(small, SMALL_MODULES, sync=False)
    turns: dict[str, list[float]] = {large: [], small: []}
    first = 10_000_000 + len(list(workspace.root.glob("*"))) * 100_000
    last: Filled | None = None
    for turn in range(ADDED // 50):
        for directory, values in turns.items():
            done = fill(directory, 50, sync=False, first=first + turn * 50)
            values.append(done.amortized_us)
            last = done if directory == large else last
    facts: dict[str, Any] = {"functions per module": PER_MODULE}
    if filled is not None:
        facts |= {
            "amortized over the whole filling, us": round(filled.amortized_us),
            "slowest single addition (a merge of everything), ms": round(filled.slowest_ms),
        }
    if last is not None:
        facts |= {"index bytes": last.index_bytes}
    return Outcome(
        f"3b. addition to a cache of {workspace.modules} / {SMALL_MODULES} modules",
        Samples(f"to {workspace.modules} modules", "us", tuple(turns[large])),
        Samples(f"to {SMALL_MODULES} modules", "us", tuple(turns[small])),
        notes=(
            "store.publish of a linked module, index merges included, without fsync; 50 additions a sample",
        ),
        facts=facts,
    )
