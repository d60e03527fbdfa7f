"""The base of the classes that replace Numba's per-function cache objects."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from numba.core.caching import CompileResultCacheImpl, _Cache, _cache_log
from numba.core.errors import NumbaWarning

from compcache.numba.entries.names import label_of
from compcache.numba.identity.key import Identity

if TYPE_CHECKING:
    from compcache.cache import Cache
    from compcache.numba.dispatch.backend import Backend

__all__ = ["CacheObject"]


class CacheObject(_Cache):  # type: ignore[misc]
    """A backend, a function, and the identities computed for its signatures.

    `warns`: tell what is not cached as Numba does, because the program has asked for caching.
    """

    def __init__(self, backend: Backend, owner: Any, function: Any, *, warns: bool = True) -> None:
        self._backend = backend
        self._owner_reference = weakref.ref(owner)  # else only the garbage collector could free the owner, which has this
        self._function = function
        self._enabled = True
        self._warns = warns
        self._identities: dict[Any, Identity | str] = {}
        self._flushed: set[str] = set()

    @property
    def cache_path(self) -> str:
        """The cache directory."""
        return self._cache.path

    @property
    def _cache_path(self) -> str:
        return self.cache_path

    @functools.cached_property
    def _impl(self) -> Any:
        """What Numba's own cache object has there. Packages give its files other names, and turn caching off where that fails."""
        return CompileResultCacheImpl(self._function)

    @property
    def _owner(self) -> Any:
        return self._owner_reference()

    @property
    def _cache(self) -> Cache:
        return self._backend.cache

    def enable(self) -> None:
        """Load and store from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither load nor store from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Make the known signatures compile again; the entries stay, since content-addressed ones cannot be stale."""
        self._flushed |= {found.key for found in self._identities.values() if isinstance(found, Identity)}

    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def _log(self, action: str, name: str) -> None:
        """Print the messages of NUMBA_DEBUG_CACHE=1 in Numba's words; the index is the cache directory."""
        _cache_log(f"[cache] index {action} %r", self.cache_path)
        _cache_log(f"[cache] data {action} %r", name)

    def _accept(self, identity: Identity, sig: Any, name: str) -> None:
        self._log("saved to", name)
        self._backend.accept(label_of(identity.name, sig))

    def _note(self, sig: Any, reason: str) -> None:
        """Record why the function is not cached, without a warning: Numba itself would have cached it."""
        self._backend.refuse(label_of(self._name(), sig), reason)

    def _refuse(self, sig: Any, reason: str) -> None:
        """Record it, and warn in Numba's words, because Numba would not have cached it either."""
        self._note(sig, reason)
        if not self._warns:
            return
        message = f'Cannot cache compiled function "{self._function.__qualname__.split(".")[-1]}" as {reason}'
        code = self._function.__code__
        warnings.warn_explicit(message, NumbaWarning, code.co_filename, code.co_firstlineno)
