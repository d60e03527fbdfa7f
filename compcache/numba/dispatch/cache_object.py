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
from compcache.files import reraise_interrupt
from compcache.numba.compilation import libraries
from compcache.numba.entries.names import func_name_of, label_of
from compcache.numba.identity.key import Identity
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.cache import Cache
    from compcache.numba.dispatch.backend import Backend

__all__ = ["CacheObject"]

#: The kind of the entries that say of an overload that it is left to the other cache.
_LEFT = "numba left"


class CacheObject(_Cache):  # type: ignore[misc]
    """A backend, a function, and the identities computed for its signatures.

    `is_asked_for`: the program has requested caching. Functions that the backend refuses are then left to the cache that would have served
    the program otherwise, and functions that Numba does not cache get Numba's warning.
    """

    #: The class of the cache that would have served the function.
    _other_class: Callable[[Any], Any] = FunctionCache

    def __init__(self, backend: Backend, owner: Any, function: Any, *, is_asked_for: bool = True, other: Any = None) -> None:
        self._backend = backend
        self._owner_reference = weakref.ref(owner)  # else only the garbage collector could free the owner, which has this
        self._function = function
        self._enabled = True
        self._is_asked_for = is_asked_for
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
        """The cache that would have served the function. It is empty if there is none, or if the program has not requested caching."""
        if not self._is_asked_for:
            return NullCache()
        try:
            return self._other_class(self._function)
        except (RuntimeError, OSError) as error:  # no locator knows a place for it, or it cannot be used
            reraise_interrupt(error)
            return NullCache()

    @functools.cached_property
    def _is_anothers(self) -> bool:
        """Whether the locator of a package names the function's entries. That name is then its identity."""
        locator = getattr(getattr(self._other, "_impl", None), "locator", None)
        return locator is not None and not type(locator).__module__.startswith("numba.")

    @property
    def _impl(self) -> Any:
        """The corresponding attribute of Numba's own cache object. Packages rename its files, and disable caching if that fails."""
        return getattr(self._other, "_impl", None) or CompileResultCacheImpl(self._function)

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
        """Make the known signatures compile again. Entries stay, because entries named by content cannot be stale."""
        self._flushed |= {found.key for found in self._identities.values() if isinstance(found, Identity)}
        self._other.flush()

    def _may_leave(self, why: BaseException | None) -> bool:
        """Return whether the other cache may have functions that this one refuses."""
        return self._is_asked_for and not isinstance(why, Unrepeatable)

    def _load_other(self, sig: Any, target_context: Any) -> Any:
        """Return the entry of the other cache. Callers that are linked with it are as little known as it is."""
        found = self._other.load_overload(sig, target_context)
        if found is not None:
            library = getattr(found, "library", found)
            problem = Unidentifiable(f"it calls {self._name()}, which another cache has served")
            libraries.set_dependencies(library, libraries.Recorded(problem=problem))
        return found

    def _leave(self, identity: Identity, sig: Any) -> None:
        """Record that an overload is left to the other cache although it has an identity."""
        if not isinstance(self._other, NullCache):
            with contextlib.suppress(StorageError):
                frontend.put_entry(self._cache, func_name_of(identity, sig), b"", kind=_LEFT)

    def _was_left(self, identity: Identity, sig: Any) -> bool:
        return self._is_asked_for and frontend.get_entry(self._cache, func_name_of(identity, sig), _LEFT) is not None

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
        """Record why the function is not cached, without a warning, because Numba itself would have cached it."""
        self._backend.refuse(label_of(self._name(), sig), reason)

    def _refuse(self, sig: Any, reason: str) -> None:
        """Record why the function is not cached, and warn in Numba's words, because Numba would not have cached it either."""
        self._note(sig, reason)
        if not self._is_asked_for:
            return
        message = f'Cannot cache compiled function "{self._function.__qualname__.split(".")[-1]}" as {reason}'
        code = self._function.__code__
        warnings.warn_explicit(message, NumbaWarning, code.co_filename, code.co_firstlineno)
