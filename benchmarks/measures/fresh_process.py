"""A whole fresh process that finds, loads and calls one cached function, against one that does nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import sources
from filling import add_small, fill
from harness import Outcome, in_turns
from prototype_build import build_prototype

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 1.6
PROTOTYPE_GOAL = 1.3


def measure(workspace: Workspace) -> list[Outcome]:
    """Both rows come from the same turns."""
    cache = workspace.fresh_directory("ten")
    add_small(cache)
    fill(cache, 9, sync=True)
    floor = workspace.fresh_directory("prototype")
    build_prototype(floor, sources.SMALL_NAME)
    name = sources.SMALL_NAME
    hit = f"import compcache; compcache.Cache({cache!r}).get_target({name!r})(1.0, 2.0)"
    prototype = f"import prototype; prototype.get_target({floor!r}, {name!r})(1.0, 2.0)"
    programs = {"hit": hit, "pass": "pass", "prototype": prototype, "import compcache": "import compcache"}
    programs |= {"import ctypes": "import ctypes", "import llvmlite.binding": "import llvmlite.binding"}
    sides = {label: partial(workspace.time_process, "-c", code) for label, code in programs.items()}
    taken = {side.label: side for side in in_turns(sides, 12 if workspace.quick else 60, "ms", warm_up=2)}
    others = tuple(taken[label] for label in ("import compcache", "import ctypes", "import llvmlite.binding"))
    above = taken["hit"].median - taken["pass"].median
    floor_above = taken["prototype"].median - taken["pass"].median
    facts = {
        "hit above pass, ms": round(above, 2),
        "prototype above pass, ms": round(floor_above, 2),
        "prototype / pass": round(taken["prototype"].median / taken["pass"].median, 3),
    }
    return [
        Outcome(
            "1. fresh process with a hit / python -c pass",
            taken["hit"],
            taken["pass"],
            GOAL,
            others,
            facts=facts,
        ),
        Outcome(
            "1b. fresh process with a hit / bare prototype", taken["hit"], taken["prototype"], PROTOTYPE_GOAL
        ),
    ]
