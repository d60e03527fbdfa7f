"""Holds the installed backend. A process has one Numba, and therefore at most one backend."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["installed_backend", "installed_hook", "open_lazy_cache", "register_cache_opener", "set_installed"]

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
    """Record the installed backend, and the object whose `remove` removes it from Numba. The backend is None if it was removed."""
    _installed[:] = [(backend, hook)] if backend is not None else []
