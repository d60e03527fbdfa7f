"""The cache of a gufunc's wrapper: a code library by signature."""

from __future__ import annotations

from typing import Any

from compcache.errors import CompcacheError
from compcache.numba.compilation import libraries
from compcache.numba.dispatch.cache_object import CacheObject
from compcache.numba.entries import load
from compcache.numba.entries.names import func_name_of
from compcache.numba.fingerprints.errors import Unidentifiable
from compcache.numba.identity.key import Identity, identify

__all__ = ["GufuncCache"]


class GufuncCache(CacheObject):
    """The cache of a gufunc's wrapper: code libraries."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored wrapper, or None."""
        identity = self._identify() if self._enabled else None
        if identity is None or identity.key in self._flushed:
            return None
        name = func_name_of(identity, sig)
        library = load.load_library(self._cache, identity, name, target_context)
        self._backend.count(hit=library is not None)
        if library is not None:
            self._log("loaded from", name)
        return library

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the wrapper."""
        identity = self._identify() if self._enabled else None
        if identity is None:
            if self._enabled:
                self._note(sig, str(self._identities[None]))
            return
        from compcache.numba.entries import save

        recorded = libraries.dependencies_of(self._owner.cres.library)
        name = func_name_of(identity, sig)
        try:
            save.save_library(self._cache, identity, name, self._owner.cres.signature, data, recorded)
            self._accept(identity, sig, name)
        except save.NotCacheable as error:
            self._note(sig, str(error))
        except CompcacheError as error:
            self._backend.note_failure(self._name(), error)

    def _identify(self) -> Identity | None:
        """The identity of the wrapper: the symbol of the function that it calls, which contains a digest, and the layout."""
        cres = self._owner.cres
        try:
            found = identify(
                self._function, sig=cres.signature, flags="", codegen=cres.target_context.codegen(),
                extra={
                    "kind": "gufunc wrapper", "symbol": cres.fndesc.mangled_name,
                    "layout": repr((self._owner.sin, self._owner.sout)),
                },
            )  # fmt: skip
        except Unidentifiable as error:
            self._identities[None] = str(error)
            return None
        self._identities[None] = found
        return found._replace(name=f"gufunc wrapper of {found.name}")
