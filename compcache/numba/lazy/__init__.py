"""Numba functions in processes that start without Numba: decorated, found and called. Only a miss imports Numba.

This file knows the state of the process: whether it has imported Numba, the stand-in module for Numba, what runs when Numba is imported,
and the installed backend. A process has one Numba, and therefore at most one backend.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "has_numba", "has_settings_file", "installed_backend", "installed_hook", "numba_stand_in", "open_lazy_cache", "register_cache_opener",
    "run_callbacks", "set_installed", "when_imported",
]  # fmt: skip


def has_numba() -> bool:
    """Return whether this process has imported Numba itself, or has begun to import it."""
    core = sys.modules.get("numba.core")
    return core is not None and not hasattr(type(core), "_compcache_original")  # a module of Numba, not a stand-in


def numba_stand_in() -> Any:
    """Return the stand-in for the module `numba` (`import_hook`), or None if `numba` is not replaced."""
    module = sys.modules.get("numba")
    return module if module is not None and "_compcache_when_real" in vars(module) else None


def has_settings_file() -> bool:
    """Return whether the current directory has the file from which Numba reads settings in addition to the environment."""
    return os.path.exists(".numba_config.yaml")


_callbacks: list[Callable[[], None]] = []


def when_imported(callback: Callable[[], None]) -> None:
    """Call a function when the stand-in has imported Numba. The functions run in the order of registration."""
    _callbacks.append(callback)


def run_callbacks() -> None:
    """Run the registered functions, because Numba was imported. Each function runs once."""
    while _callbacks:
        _callbacks.pop(0)()


_installed: list[tuple[Any, Any]] = []  # the backend and its hook, or nothing


def installed_backend() -> Any:
    """Return the installed `Backend`, or None."""
    return _installed[0][0] if _installed else None


def installed_hook() -> Any:
    """Return the object whose `remove` removes the backend from Numba, or None."""
    return _installed[0][1] if _installed else None


_opener: list[Any] = []  # one function, or nothing


def register_cache_opener(open_cache: Any) -> None:
    """Register the function that opens the cache of lazy functions."""
    _opener[:] = [open_cache]


def open_lazy_cache() -> Any:
    """Open and return the cache of lazy functions; None if it cannot be used, or if no function is registered."""
    return _opener[0]() if _opener else None


def set_installed(backend: Any, hook: Any) -> None:
    """Record the installed backend, and the object whose `remove` removes it from Numba. None records that no backend is installed."""
    _installed[:] = [(backend, hook)] if backend is not None else []
