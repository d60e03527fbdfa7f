"""The backend that is installed: there is one Numba in a process, and one backend for it at most."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["installed_backend", "installed_hook", "opened_cache", "opens_cache", "set_installed"]

_installed: list[tuple[Any, Any]] = []  # the backend and what takes it out of Numba again: one item, or none


def installed_backend() -> Any:
    """The `Backend` that is installed, or None."""
    return _installed[0][0] if _installed else None


def installed_hook() -> Any:
    """What takes it out of Numba again, or None."""
    return _installed[0][1] if _installed else None


_opener: list[Any] = []  # one item, or none


def opens_cache(open_cache: Any) -> None:
    """Let `opened_cache` give the cache that this function opens."""
    _opener[:] = [open_cache]


def opened_cache() -> Any:
    """The cache of lazy functions; None where there is none."""
    return _opener[0]() if _opener else None


def set_installed(backend: Any, hook: Any) -> None:
    """Remember that a backend was installed; None and None: that none is."""
    _installed[:] = [(backend, hook)] if backend is not None else []
