"""The first get_target of a small module in a warm process, against bare ctypes on the same image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sources
from filling import add_small
from harness import Outcome, Samples

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from workspace import Workspace

GOAL = 4.0
MODULES = 24


def measure(workspace: Workspace) -> list[Outcome]:
    names = [f"single_{number}" for number in range(MODULES)]

    def fill(directory: str) -> None:
        add_small(directory)
        with Cache(directory) as cache:
            for number, name in enumerate(names):
                cache.add_module(ModuleSource(sources.small_module([name], seed=number)))

    directory = workspace.cached("singles", fill)
    repetitions = 300 if workspace.quick else 3000
    taken = workspace.child("first_load", directory, repetitions, sources.SMALL_NAME, *names)
    load, bare, raw = [Samples(label, "us", tuple(values)) for label, values in taken.items()]
    title = "4. first get_target of a small module / ctypes.CDLL + symbol"
    return [Outcome(title, load, bare, GOAL, (raw,), notes=("each is unmapped before the next turn",))]
