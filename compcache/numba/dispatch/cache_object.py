"""The base of the classes that replace Numba's per-function cache objects."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _Cache, _cache_log
from numba.core.errors import NumbaWarning

from compcache import frontend
from compcache.errors import StorageError
from compcache.interrupts import suppress
from compcache.numba.entries.names import make_func_name, make_label
from compcache.numba.fingerprints.content import find_old_code
from compcache.numba.fingerprints.history import changed_value, is_latest
from compcache.numba.identity.key import Identity
from compcache.numba.registered.library import full_name
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.cache import Cache
    from compcache.numba.dispatch import Backend

__all__ = ["CacheObject", "are_objects_kept"]

#: The kind of the entries that mark an overload as delegated to the fallback cache.
_DELEGATED = "numba left"
#: Contains True once a cache object was created that its owner keeps after `uninstall`.
_kept: list[bool] = []


def are_objects_kept() -> bool:
    """Return whether a function may use a cache object of a backend after `uninstall`. Then compilations must be recorded."""
    return bool(_kept)


class CacheObject(_Cache):  # type: ignore[misc]
    """The cache object of one function: the backend, and the identities computed for the function's signatures.

    The fallback cache is the cache object that the function would have without the backend.

    Args:
        backend: the backend that loads and stores.
        owner: the dispatcher or callback that has this cache object. Only a weak reference to it is kept.
        function: the Python function.
        is_requested: whether the program has requested caching. In this case, functions that the backend refuses are delegated to the
            fallback cache, and Numba's warning is issued for a function that Numba does not cache either.
        fallback: the fallback cache; None to create it when it is needed.
    """

    #: The class of the fallback cache.
    _fallback_class: Callable[[Any], Any] = FunctionCache

    def __init__(self, backend: Backend, owner: Any, function: Any, *, is_requested: bool = True, fallback: Any = None) -> None:
        self._backend = backend
        self._owner_reference = weakref.ref(owner)  # the owner refers to this object, and a reference cycle would delay its release
        self._function = function
        self._enabled = True
        self._is_requested = is_requested
        self._identities: dict[Any, Identity | Unidentifiable] = {}
        self._flushed: set[str] = set()
        if fallback is not None:  # `uninstall` restores the fallback cache
            self._fallback = fallback
        elif not _kept:
            _kept.append(True)

    @property
    def cache_path(self) -> str:
        """The cache directory."""
        return self._cache.path

    _cache_path = cache_path

    @functools.cached_property
    def _fallback(self) -> Any:
        """The fallback cache. It stores nothing if the program has not requested caching, or if no directory is usable."""
        if not self._is_requested:
            return NullCache()
        with suppress(RuntimeError, OSError):  # raised if no locator has a usable directory for the function
            return self._fallback_class(self._function)
        return NullCache()

    @functools.cached_property
    def _has_own_locator(self) -> bool:
        """Whether a package's locator names the entries of the function. In this case, that name is the identity of the function."""
        locator = getattr(getattr(self._fallback, "_impl", None), "locator", None)
        return locator is not None and not type(locator).__module__.startswith("numba.")

    @property
    def _impl(self) -> Any:
        """The same attribute of Numba's own cache object. Packages rename files through it, and disable caching if it is missing."""
        return getattr(self._fallback, "_impl", None) or CompileResultCacheImpl(self._function)

    @property
    def _owner(self) -> Any:
        return self._owner_reference()

    @property
    def _cache(self) -> Cache:
        return self._backend.cache

    def enable(self) -> None:
        """Load and store overloads from now on, as before `disable`."""
        self._enabled = True

    def disable(self) -> None:
        """Neither load nor store overloads from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Make Numba compile all known signatures again on their next use, and flush the fallback cache.

        The entries in the cache stay, because they are named by content and never stale.
        """
        self._flushed |= {identity.key for identity in self._identities.values() if isinstance(identity, Identity)}
        self._fallback.flush()

    def _may_delegate(self, refusal: BaseException | None) -> bool:
        """Return whether the fallback cache may store a function that this cache refuses because of the error `refusal`."""
        return self._is_requested and not isinstance(refusal, Unrepeatable)

    def _mark_as_delegated(self, identity: Identity, sig: Any) -> None:
        """Mark an overload that has an identity as delegated to the fallback cache, unless that cache stores nothing. Ignore failures."""
        if not isinstance(self._fallback, NullCache):
            with suppress(StorageError):
                frontend.put_entry(self._cache, make_func_name(identity, sig), b"", kind=_DELEGATED)

    def _was_delegated(self, identity: Identity, sig: Any) -> bool:
        """Return whether the program has requested caching, and the overload for `sig` is marked as delegated."""
        return self._is_requested and frontend.get_entry(self._cache, make_func_name(identity, sig), _DELEGATED) is not None

    def _old_code_reason(self, identity: Identity) -> str:
        """Return why the code of the function or of a callee was compiled from other values than the present ones; "" if it was not."""
        return find_old_code(identity.parts, 1) or ("" if is_latest(identity.parts) else changed_value(self._function))

    def _full_name(self) -> str:
        return full_name(self._function)

    def _log(self, action: str, name: str) -> None:
        """Print Numba's messages if $NUMBA_DEBUG_CACHE is on. The index in these messages is the cache directory."""
        _cache_log(f"[cache] index {action} %r", self.cache_path)
        _cache_log(f"[cache] data {action} %r", name)

    def _record_stored(self, identity: Identity, sig: Any, name: str) -> None:
        """Record that an overload is cached, and print Numba's messages."""
        self._log("saved to", name)
        self._backend.record_stored(make_label(identity.name, sig))

    def _record_reason(self, sig: Any, reason: str) -> None:
        """Record why an overload is not cached, without a warning."""
        self._backend.record_refusal(make_label(self._full_name(), sig), reason)

    def _warn_uncached(self, reason: str) -> None:
        """Issue Numba's warning about an overload that Numba would not cache, if the program has requested caching."""
        if not self._is_requested:
            return
        message = f'Cannot cache compiled function "{self._function.__qualname__.split(".")[-1]}" as {reason}'
        code = self._function.__code__
        warnings.warn_explicit(message, NumbaWarning, code.co_filename, code.co_firstlineno)
