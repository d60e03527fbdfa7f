"""Replaced functions of Numba are restored, and a call of one costs a single frame."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from compcache.numba.hooks.replacements import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable


def depth() -> int:
    """How many frames are below this one."""
    frame, number = sys._getframe(), 0
    while frame.f_back is not None:
        frame, number = frame.f_back, number + 1
    return number


def test_a_wrapped_function_adds_one_frame_until_it_is_restored() -> None:
    """Numba compiles callees within callers: with more frames, chains of functions that it can compile end in `RecursionError`."""

    def wrap(original: Callable[[], int]) -> Callable[[], int]:
        def call() -> int:
            return original()

        return call

    module: Any = types.ModuleType("module")
    module.depth = depth
    replacements = Replacements()
    before = module.depth()
    replacements.wrap(module, "depth", wrap)
    assert module.depth() == before + 1
    replacements.undo()
    assert module.depth is depth
