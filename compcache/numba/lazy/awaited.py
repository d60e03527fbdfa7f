"""Knows the stand-in module for Numba, and runs callbacks when Numba is imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["has_numba", "run_callbacks", "stand_in_of", "when_imported"]


def has_numba() -> bool:
    """Return whether this process has imported Numba itself, or has begun to import it."""
    core = sys.modules.get("numba.core")
    return core is not None and not hasattr(type(core), "_compcache_original")  # a module of Numba, not a stand-in


def stand_in_of() -> Any:
    """Return the stand-in for the module `numba` (`import_hook`), or None if `numba` is not replaced."""
    module = sys.modules.get("numba")
    return module if module is not None and "_compcache_when_real" in vars(module) else None


_callbacks: list[Callable[[], None]] = []


def when_imported(callback: Callable[[], None]) -> None:
    """Call a function when the stand-in has imported Numba. The functions run in the order of registration."""
    _callbacks.append(callback)


def run_callbacks() -> None:
    """Run the registered functions, because Numba was imported. Each function runs once."""
    while _callbacks:
        _callbacks.pop(0)()
