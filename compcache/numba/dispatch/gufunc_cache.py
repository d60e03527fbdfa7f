"""Defines the cache object of a gufunc's wrapper, which loads and stores code libraries by signature."""

from __future__ import annotations

from functools import partial
from typing import Any

from numba.np.ufunc.wrappers import GufWrapperCache

from compcache.errors import CompcacheError
from compcache.numba.compilation import libraries
from compcache.numba.dispatch.cache_object import CacheObject
from compcache.numba.entries import load
from compcache.numba.entries.names import make_func_name, make_label
from compcache.numba.fingerprints.fixed_code import unknown_code_reason
from compcache.numba.identity.key import Identity, identify
from compcache.numba.registered.refusals import Unidentifiable, Unrepeatable

__all__ = ["GufuncCache", "wrapper_symbol"]


def wrapper_symbol(cres: Any) -> str:
    """Return the symbol of the wrapper that Numba creates for a gufunc's compile result."""
    return f"__gufunc__.{cres.fndesc.mangled_name}"


class GufuncCache(CacheObject):
    """The cache object of a gufunc's wrapper."""

    _fallback_class = GufWrapperCache

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored code library with the wrapper for a signature, or None if Numba must compile it.

        Count a hit or a miss, unless caching is off, the wrapper has no identity or was flushed, or the fallback cache is used.
        """
        if not self._enabled:
            return None
        identity = None if self._has_own_locator else self._identify()
        if not isinstance(identity, Identity):
            return self._fallback.load_overload(sig, target_context) if self._may_delegate(identity) else None
        if identity.key in self._flushed:
            return None
        library = self._load(identity, sig, target_context)
        if library is None and self._was_delegated(identity, sig):
            return self._fallback.load_overload(sig, target_context)
        if library is None:
            self._backend.count_miss(make_func_name(identity, sig))
        else:
            self._backend.count(hit=True)
            self._log("loaded from", make_func_name(identity, sig))
        return library

    def find_wrapper(self, sig: Any, target_context: Any) -> Any:
        """Return the stored code library with the wrapper for a signature, or None. Count nothing: the gufunc's own look-up was counted."""
        identity = self._identify() if self._enabled else None
        return self._load(identity, sig, target_context) if isinstance(identity, Identity) else None

    def _load(self, identity: Identity, sig: Any, target_context: Any) -> Any:
        """Return the stored code library, or None if no entry is valid. If loading fails, record the reason and return None."""
        loading = partial(load.load_library, self._cache, identity, make_func_name(identity, sig), target_context)
        return self._backend.load_or_record(make_label(identity.name, sig), loading)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the wrapper, record why it is not cached, or delegate it to the fallback cache. Do nothing if caching is off."""
        if self._enabled and (self._has_own_locator or not self._store(sig, data)):
            self._fallback.save_overload(sig, data)

    def _store(self, sig: Any, data: Any) -> bool:
        """Store the wrapper, or record why it is not cached. Return False if the fallback cache must store the wrapper, else True."""
        identity = self._identify()
        if isinstance(identity, Unidentifiable):
            self._record_reason(sig, str(identity))
            return not self._may_delegate(identity)
        from compcache.numba.entries import save

        cres = self._owner.cres
        recorded = libraries.collect_dependencies(cres.library)
        name = make_func_name(identity, sig)
        try:
            save.save_library(
                self._cache, identity, name, cres.signature, data, recorded, wrapper_symbol(cres), make_label(self._full_name(), sig)
            )
            self._record_stored(identity, sig, name)
        except save.NotCacheable as error:
            self._record_reason(sig, str(error))
            if self._may_delegate(error.__cause__):
                self._mark_as_delegated(identity, sig)
                return False
        except CompcacheError as error:
            self._backend.warn_not_stored(self._full_name(), error)
        return True

    def _identify(self) -> Identity | Unidentifiable:
        """Return the identity of the wrapper, or the error that says why there is none.

        The identity contains the layout of the gufunc, and the symbol of the function that the wrapper calls. The symbol contains a digest.
        """
        cres = self._owner.cres
        try:
            identity = identify(
                self._function, sig=cres.signature, flags="", codegen=cres.target_context.codegen(),
                extra={
                    "kind": "gufunc wrapper", "symbol": cres.fndesc.mangled_name, "layout": repr((self._owner.sin, self._owner.sout))
                },
            )  # fmt: skip
            reason = self._old_code_reason(identity) or unknown_code_reason(identity.parts[1:])
            if reason:  # the wrapper contains the code of the function
                raise Unrepeatable(reason)
        except Unidentifiable as error:
            return error.without_traceback()
        self._identities[None] = identity
        return identity._replace(name=f"gufunc wrapper of {identity.name}")
