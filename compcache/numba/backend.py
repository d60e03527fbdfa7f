"""What stands in for Numba's per-function cache objects while the backend is installed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from numba.core import compiler, sigutils, typing
from numba.core.caching import _Cache, _cache_log
from numba.core.errors import NumbaWarning
from numba.core.targetconfig import ConfigStack

from compcache.errors import CompcacheError
from compcache.numba import entries, scopes
from compcache.numba.fingerprint import Unidentifiable, type_text
from compcache.numba.identity import Identity, flags_text, identify

if TYPE_CHECKING:
    from compcache.cache import Cache
    from compcache.numba.state import Backend

__all__ = ["FunctionBackend", "GufuncBackend"]


class _Base(_Cache):  # type: ignore[misc]
    """What both kinds share: a backend, a function, and the identities computed for the signatures asked for."""

    def __init__(self, backend: Backend, owner: Any, function: Any) -> None:
        self._backend = backend
        self._owner = owner
        self._function = function
        self._enabled = True
        self._identities: dict[Any, Identity | str] = {}
        self._flushed: set[str] = set()

    @property
    def cache_path(self) -> str:
        """The cache directory."""
        return self._cache.path

    @property
    def _cache(self) -> Cache:
        return self._backend.cache

    def enable(self) -> None:
        """Use the cache."""
        self._enabled = True

    def disable(self) -> None:
        """Do not."""
        self._enabled = False

    def flush(self) -> None:
        """Compile again what is asked for next; content-addressed entries cannot be stale."""
        self._flushed |= {found.key for found in self._identities.values() if isinstance(found, Identity)}

    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def _log(self, action: str, name: str) -> None:
        """What NUMBA_DEBUG_CACHE=1 prints, in the words that Numba's users know; the index is the directory's."""
        _cache_log(f"[cache] index {action} %r", self.cache_path)
        _cache_log(f"[cache] data {action} %r", name)

    def _accept(self, identity: Identity, sig: Any, name: str) -> None:
        self._log("saved to", name)
        self._backend.accept(entries.label_of(identity.name, sig))

    def _refuse(self, sig: Any, reason: str) -> None:
        self._backend.refuse(self._name(), entries.label_of(self._name(), sig), reason)
        message = f'Cannot cache compiled function "{self._function.__qualname__.split(".")[-1]}" as {reason}'
        code = self._function.__code__
        warnings.warn_explicit(message, NumbaWarning, code.co_filename, code.co_firstlineno)


class FunctionBackend(_Base):
    """The cache of one function: compile results by signature."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The stored compile result for a signature, or None."""
        if not self._enabled:
            return None
        sig = _parsed(sig)
        if getattr(self._owner, "_compiler", None) is None:
            target_context.refresh()  # a ufunc compiles its wrapper now, hit or not
        identity = self._identify(sig, target_context)
        if identity is None or identity.key in self._flushed:
            return None
        name = entries.func_name_of(identity, sig)
        try:
            cres = entries.load_result(self._cache, identity, name, self._function, target_context)
        except (ImportError, AttributeError, CompcacheError) as error:
            # What the entry refers to by name is gone: as good as no entry.
            self._backend.note_failure(name, error)
            return None
        self._backend.count(hit=cres is not None)
        if cres is not None:
            self._log("loaded from", name)
        return cres

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compile result for a signature, where that can be done."""
        if not self._enabled:
            return
        sig = _parsed(sig)
        found = self._identities.get(_sig_key(sig))
        if found is None:
            found = self._identify(sig, data.target_context) or self._identities[_sig_key(sig)]
        if isinstance(found, str):
            self._refuse(sig, found)
            return
        name = entries.func_name_of(found, sig)
        try:
            entries.save_result(self._cache, found, name, data)
            self._accept(found, sig, name)
        except entries.NotCacheable as error:
            self._refuse(sig, str(error))
        except CompcacheError as error:
            self._backend.note_failure(self._name(), error)

    def _identify(self, sig: Any, target_context: Any) -> Identity | None:
        key = _sig_key(sig)
        try:
            found: Identity | str = identify(
                self._function, sig=sig, flags=flags_text(self._flags()), extra=self._extra(),
                codegen=target_context.codegen(),
            )  # fmt: skip
        except Unidentifiable as error:
            found = str(error)
        self._identities[key] = found
        return found if isinstance(found, Identity) else None

    def _flags(self) -> Any:
        compiler_ = getattr(self._owner, "_compiler", None)
        if compiler_ is None:  # of a ufunc: it has entered them already
            return ConfigStack.top_or_none()
        flags = compiler.Flags()
        # Numba takes dictionaries apart while it reads them.
        options = {k: dict(v) if isinstance(v, dict) else v for k, v in compiler_.targetoptions.items()}
        compiler_.targetdescr.options.parse_as_flags(flags, options)
        return compiler_._customize_flags(flags)

    def _extra(self) -> dict[str, str]:
        compiler_ = getattr(self._owner, "_compiler", None)
        pipeline = getattr(compiler_, "pipeline_class", compiler.Compiler)
        if not pipeline.__module__.startswith("numba.") or pipeline.__module__.startswith("numba.tests"):
            raise Unidentifiable(
                f"its compiler pipeline {pipeline.__module__}.{pipeline.__qualname__} has no identity"
            )
        types_of_locals = getattr(compiler_, "locals", None) or getattr(self._owner, "locals", None) or {}
        return {
            "kind": type(self._owner).__name__,
            "pipeline": pipeline.__qualname__,
            "locals": ", ".join(f"{k}: {type_text(v)}" for k, v in sorted(types_of_locals.items())),
        }


class GufuncBackend(_Base):
    """The cache of a gufunc's wrapper: code libraries."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The stored wrapper, or None."""
        identity = self._identify() if self._enabled else None
        if identity is None or identity.key in self._flushed:
            return None
        name = entries.func_name_of(identity, sig)
        library = entries.load_library(self._cache, identity, name, target_context)
        self._backend.count(hit=library is not None)
        if library is not None:
            self._log("loaded from", name)
        return library

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the wrapper."""
        identity = self._identify() if self._enabled else None
        if identity is None:
            if self._enabled:
                self._refuse(sig, str(self._identities[None]))
            return
        recorded = scopes.dependencies_of(self._owner.cres.library)
        name = entries.func_name_of(identity, sig)
        try:
            entries.save_library(self._cache, identity, name, self._owner.cres.signature, data, recorded)
            self._accept(identity, sig, name)
        except entries.NotCacheable as error:
            self._refuse(sig, str(error))
        except CompcacheError as error:
            self._backend.note_failure(self._name(), error)

    def _identify(self) -> Identity | None:
        """A wrapper follows from the symbol of the function that it calls, which is a digest, and the layout."""
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


def _parsed(sig: Any) -> Any:
    """A signature that was written as text, as an object."""
    if not isinstance(sig, str):
        return sig
    args, result = sigutils.normalize_signature(sig)
    return args if result is None else typing.signature(result, *args)


def _sig_key(sig: Any) -> Any:
    return (sig.args, sig.return_type) if hasattr(sig, "return_type") else tuple(sig)
