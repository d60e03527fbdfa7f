"""Installs the backend without a line of code: ``NUMBA_CACHE_LOCATOR_CLASSES=compcache.numba.always.Locator``.

Numba imports the module of a locator when the first function asks for a cache. From then on the backend serves all
functions; the directory is `$COMPCACHE_DIR`, or the default one.
"""

from __future__ import annotations

from typing import Any

from numba.core.caching import _CacheLocator

import compcache.numba

__all__ = ["Locator"]

_backend = compcache.numba.install()


class Locator(_CacheLocator):  # type: ignore[misc]
    """What Numba asks for until the function that it has in hand is taken over."""

    def get_cache_path(self) -> str:
        """The cache directory."""
        return _backend.cache.path

    def ensure_cache_path(self) -> None:
        """The cache makes its directory itself."""

    def get_source_stamp(self) -> str:
        """Nothing: entries are found by content."""
        return ""

    def get_disambiguator(self) -> str:
        """Nothing, likewise."""
        return ""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Locator:
        """A locator for any function, whether it has a file or not."""
        del py_func, py_file
        return cls()
