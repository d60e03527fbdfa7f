"""The base of the classes that replace Numba's per-function cache objects."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _Cache, _cache_log
from numba.core.errors import NumbaWarning

from compcache import frontend
from compcache.errors import StorageError
from compcache.interrupts import suppress
from compcache.numba.compilation import libraries
from compcache.numba.entries.names import func_name_of, label_of
from compcache.numba.identity.key import Identity
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.cache import Cache
    from compcache.numba.dispatch.backend import Backend

__all__ = ["CacheObject"]

#: The kind of the entries that mark an overload as delegated to the other cache.
_DELEGATED = "numba left"


class CacheObject(_Cache):  # type: ignore[misc]
    """A cache object for one function: the backend, and the identities computed for the function's signatures.

    Args:
        backend: the backend that loads and stores.
        owner: the dispatcher or callback that has this cache object. Only a weak reference to it is kept.
        function: the Python function.
        is_requested: whether the program has requested caching. Then a function that the backend refuses is delegated to the cache that
            would have served the program otherwise. A function that Numba does not cache gets Numba's warning.
        other: the other cache; None to create it when it is needed.
    """

    #: The class of the other cache, which would have served the function.
    _other_class: Callable[[Any], Any] = FunctionCache

    def __init__(self, backend: Backend, owner: Any, function: Any, *, is_requested: bool = True, other: Any = None) -> None:
        self._backend = backend
        self._owner_reference = weakref.ref(owner)  # the owner refers to this object, and a cycle would delay its release
        self._function = function
        self._enabled = True
        self._is_requested = is_requested
        self._identities: dict[Any, Identity | Unidentifiable] = {}
        self._flushed: set[str] = set()
        if other is not None:
            self._other = other

    @property
    def cache_path(self) -> str:
        """The cache directory."""
        return self._cache.path

    @property
    def _cache_path(self) -> str:
        return self.cache_path

    @functools.cached_property
    def _other(self) -> Any:
        """The cache that would have served the function. It stores nothing if the program has not requested caching."""
        if not self._is_requested:
            return NullCache()
        with suppress(RuntimeError, OSError):  # no locator has a usable directory for the function
            return self._other_class(self._function)
        return NullCache()

    @functools.cached_property
    def _has_own_locator(self) -> bool:
        """Whether a package's locator names the entries of the function. Then that name is its identity."""
        locator = getattr(getattr(self._other, "_impl", None), "locator", None)
        return locator is not None and not type(locator).__module__.startswith("numba.")

    @property
    def _impl(self) -> Any:
        """The corresponding attribute of Numba's own cache object. Packages rename its files, and disable caching if it is missing."""
        return getattr(self._other, "_impl", None) or CompileResultCacheImpl(self._function)

    @property
    def _owner(self) -> Any:
        return self._owner_reference()

    @property
    def _cache(self) -> Cache:
        return self._backend.cache

    def enable(self) -> None:
        """Load and store overloads from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither load nor store overloads from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Compile the known signatures again on their next use. Entries stay, because entries named by content cannot be stale."""
        self._flushed |= {identity.key for identity in self._identities.values() if isinstance(identity, Identity)}
        self._other.flush()

    def _may_delegate(self, why: BaseException | None) -> bool:
        """Return whether the other cache may store a function that this cache refuses for the reason `why`."""
        return self._is_requested and not isinstance(why, Unrepeatable)

    def _load_from_other(self, sig: Any, target_context: Any) -> Any:
        """Return the entry of the other cache, or None. Mark the entry as unidentifiable, because its content is unknown."""
        entry = self._other.load_overload(sig, target_context)
        if entry is not None:
            library = getattr(entry, "library", entry)
            problem = Unidentifiable(f"the function calls {self._full_name()}, which another cache has served")
            libraries.set_dependencies(library, libraries.Recorded(problem=problem))
        return entry

    def _mark_as_delegated(self, identity: Identity, sig: Any) -> None:
        """Mark an overload as delegated to the other cache although the overload has an identity."""
        if not isinstance(self._other, NullCache):
            with contextlib.suppress(StorageError):
                frontend.put_entry(self._cache, func_name_of(identity, sig), b"", kind=_DELEGATED)

    def _was_delegated(self, identity: Identity, sig: Any) -> bool:
        """Return whether an overload is marked as delegated, and the program has requested caching."""
        return self._is_requested and frontend.get_entry(self._cache, func_name_of(identity, sig), _DELEGATED) is not None

    def _full_name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def _log(self, action: str, name: str) -> None:
        """Print Numba's messages for NUMBA_DEBUG_CACHE=1. The index in these messages is the cache directory."""
        _cache_log(f"[cache] index {action} %r", self.cache_path)
        _cache_log(f"[cache] data {action} %r", name)

    def _record_stored(self, identity: Identity, sig: Any, name: str) -> None:
        """Record that an overload is cached, and print Numba's message."""
        self._log("saved to", name)
        self._backend.record_stored(label_of(identity.name, sig))

    def _record_reason(self, sig: Any, reason: str) -> None:
        """Record why the function is not cached. Issue no warning, because Numba itself would have cached it."""
        self._backend.record_refusal(label_of(self._full_name(), sig), reason)

    def _record_reason_and_warn(self, sig: Any, reason: str) -> None:
        """Record why the function is not cached. Issue Numba's warning, because Numba would not have cached it either."""
        self._record_reason(sig, reason)
        if not self._is_requested:
            return
        message = f'Cannot cache compiled function "{self._function.__qualname__.split(".")[-1]}" as {reason}'
        code = self._function.__code__
        warnings.warn_explicit(message, NumbaWarning, code.co_filename, code.co_firstlineno)
