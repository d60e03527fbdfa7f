"""The installed backend: a process has one Numba, and so one backend at most."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["installed_backend", "installed_hook", "opened_cache", "opens_cache", "set_installed"]

_installed: list[tuple[Any, Any]] = []  # the backend and what removes it from Numba: one item, or none


def installed_backend() -> Any:
    """Return the installed `Backend`, or None."""
    return _installed[0][0] if _installed else None


def installed_hook() -> Any:
    """Return the function that removes the backend from Numba, or None."""
    return _installed[0][1] if _installed else None


_opener: list[Any] = []  # one item, or none


def opens_cache(open_cache: Any) -> None:
    """Make `opened_cache` return the cache that this function opens."""
    _opener[:] = [open_cache]


def opened_cache() -> Any:
    """Return the cache of lazy functions; None if there is none."""
    return _opener[0]() if _opener else None


def set_installed(backend: Any, hook: Any) -> None:
    """Record that a backend was installed; None and None mean that none is."""
    _installed[:] = [(backend, hook)] if backend is not None else []
