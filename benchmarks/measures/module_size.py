"""The first get_target from a module of ten thousand functions, against one from a module of one function."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import sources
from filling import add_small

from compcache import Cache, ModuleSource
from measures.first_lookup import Asked, compare

if TYPE_CHECKING:
    from harness import Outcome
    from workspace import Workspace

GOAL = 1.3


def functions_of_large(workspace: Workspace) -> list[str]:
    """The names of the functions of the large module."""
    return [f"large_{number:05d}" for number in range(2_000 if workspace.quick else 10_000)]


def large_cache(workspace: Workspace) -> str:
    """A cache with one large module, and the smallest one."""

    def fill(directory: str) -> None:
        add_small(directory)
        with Cache(directory) as cache:
            text = sources.small_module(functions_of_large(workspace))
            cache.add_module(ModuleSource(text, optimize=1))

    return workspace.cached("large-module", fill)


def small_cache(workspace: Workspace) -> str:
    """A cache with one module of one function, and the smallest one."""

    def fill(directory: str) -> None:
        add_small(directory)
        with Cache(directory) as cache:
            cache.add_module(ModuleSource(sources.small_module(["single"]), optimize=1))

    return workspace.cached("small-module", fill)


def measure(workspace: Workspace) -> list[Outcome]:
    names = functions_of_large(workspace)
    large = Asked(f"module of {len(names)} functions", large_cache(workspace), Random(2).sample(names, 40))
    small = Asked("module of 1 function", small_cache(workspace), ["single"])
    return compare(workspace, f"2. first get_target, {len(names)} / 1 functions", large, small, goal=GOAL)
