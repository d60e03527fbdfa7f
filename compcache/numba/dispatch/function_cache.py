"""The cache of a function, a ufunc or a callback: compile results by signature."""

from __future__ import annotations

from typing import Any

from numba.core import compiler, sigutils, typing
from numba.core.targetconfig import ConfigStack

from compcache.errors import CompcacheError
from compcache.numba.dispatch.cache_object import CacheObject
from compcache.numba.entries import load
from compcache.numba.entries.names import func_name_of
from compcache.numba.identity.errors import Unidentifiable
from compcache.numba.identity.key import Identity, flags_text, identify
from compcache.numba.identity.type_text import type_text

__all__ = ["FunctionCache"]


class FunctionCache(CacheObject):
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
        name = func_name_of(identity, sig)
        try:
            cres = load.load_result(self._cache, identity, name, self._function, target_context)
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
        from compcache.numba.entries import save

        sig = _parsed(sig)
        found = self._identities.get(_sig_key(sig))
        if found is None:
            found = self._identify(sig, data.target_context) or self._identities[_sig_key(sig)]
        if isinstance(found, str):
            self._refuse(sig, found)
            return
        name = func_name_of(found, sig)
        try:
            save.save_result(self._cache, found, name, data)
            self._accept(found, sig, name)
        except save.NotCacheable as error:
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


def _parsed(sig: Any) -> Any:
    """A signature that was written as text, as an object."""
    if not isinstance(sig, str):
        return sig
    args, result = sigutils.normalize_signature(sig)
    return args if result is None else typing.signature(result, *args)


def _sig_key(sig: Any) -> Any:
    return (sig.args, sig.return_type) if hasattr(sig, "return_type") else tuple(sig)
