"""The cache of a gufunc's wrapper: a code library by signature."""

from __future__ import annotations

from typing import Any

from compcache.errors import CompcacheError
from compcache.numba.compilation import libraries
from compcache.numba.dispatch.cache_object import CacheObject
from compcache.numba.entries import load
from compcache.numba.entries.names import func_name_of, label_of
from compcache.numba.identity.key import Identity, identify
from compcache.numba.registered.refusals import Unidentifiable

__all__ = ["GufuncCache", "wrapper_symbol"]


def wrapper_symbol(cres: Any) -> str:
    """The name that Numba gives the wrapper of a gufunc's function."""
    return f"__gufunc__.{cres.fndesc.mangled_name}"


class GufuncCache(CacheObject):
    """The cache of a gufunc's wrapper: code libraries."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored wrapper, or None."""
        identity = self._identify() if self._enabled else None
        if identity is None or identity.key in self._flushed:
            return None
        library = self._load(identity, sig, target_context)
        self._backend.count(hit=library is not None)
        if library is not None:
            self._log("loaded from", func_name_of(identity, sig))
        return library

    def find(self, sig: Any, target_context: Any) -> Any:
        """The stored wrapper, or None, which is no hit and no miss: it has been compiled or loaded already."""
        identity = self._identify() if self._enabled else None
        return self._load(identity, sig, target_context) if identity is not None else None

    def _load(self, identity: Identity, sig: Any, target_context: Any) -> Any:
        return load.load_library(self._cache, identity, func_name_of(identity, sig), target_context)

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
            cres = self._owner.cres
            save.save_library(
                self._cache, identity, name, cres.signature, data, recorded, wrapper_symbol(cres), label_of(self._name(), sig)
            )
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
