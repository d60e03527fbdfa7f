"""Warnings that point at the program's line that called the package."""

from __future__ import annotations

import contextlib
import os
import sys

from compcache.errors import CacheWarning

__all__ = ["warn"]

#: Files whose frames are skipped to find the program's line.
_INTERNAL = (os.path.dirname(os.path.abspath(__file__)) + os.sep, contextlib.__file__)


def warn(message: str, category: type[CacheWarning] = CacheWarning) -> None:
    """Issue a warning of this category that points at the program's line that called the package."""
    import warnings

    warnings.warn(message, category, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """Return the `stacklevel` for `warn`: the level of the first frame outside this package and `contextlib`.

    If there is no such frame, return the level of the outermost frame of the thread.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INTERNAL):
        level, frame = level + 1, frame.f_back
    return level
