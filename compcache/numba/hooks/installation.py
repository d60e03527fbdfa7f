"""Installs the backend into Numba, and removes it.

Numba has no interface for other caches. Therefore this module replaces the methods that create a function's cache object, and `recorders`
replaces the methods through which it records compilations.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from numba.core import caching, ccallback, dispatcher, entrypoints
from numba.np.ufunc import ufuncbuilder, wrappers

from compcache.numba.compilation import scopes
from compcache.numba.dispatch import Backend
from compcache.numba.dispatch.cache_object import are_objects_kept
from compcache.numba.dispatch.function_cache import FunctionCache
from compcache.numba.dispatch.gufunc_cache import GufuncCache
from compcache.numba.fingerprints.fingerprint import fingerprint, walk_value
from compcache.numba.fingerprints.fixed_code import CodeIdentity, record_running
from compcache.numba.fingerprints.owners import owner_of
from compcache.numba.hooks import recorders
from compcache.numba.hooks.replacements import Replacements
from compcache.numba.lazy.garbage import few_collections
from compcache.numba.registered.refusals import Unidentifiable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Hooks"]

#: Numba's classes with a cache: the attributes for the cache and the Python function, and the method that uses the cache.
_OWNERS = {
    dispatcher.Dispatcher: ("_cache", "py_func", "compile"),
    ccallback.CFunc: ("_cache", "_pyfunc", "compile"),
    ufuncbuilder.UFuncDispatcher: ("cache", "py_func", "_compile_core"),
}


class Hooks:
    """The replacements that one installation makes in Numba.

    Args:
        backend: the backend that functions use after the installation.
        stores_all: whether functions use it that Numba's own decorators declare without a request for caching.
    """

    def __init__(self, backend: Backend, *, stores_all: bool = False) -> None:
        self._backend, self._stores_all = backend, stores_all
        self._replacements = Replacements()
        self._adopted_owners: list[tuple[weakref.ref[Any], str]] = []

    def install(self, *, is_first: bool) -> Hooks:
        """Replace Numba's functions, and return these hooks. If an error occurs, undo all replacements.

        `is_first` is whether Numba is about to compile or load its first function. Raise `AttributeError` if this version of Numba lacks a
        function to replace.
        """
        try:
            self._install(is_first=is_first)
        except BaseException:
            self.remove()
            raise
        return self

    def _install(self, *, is_first: bool) -> None:
        """Start recording, and replace the methods that create and use cache objects. See `install` for `is_first` and the exception."""
        recorders.start_recording(from_the_start=is_first or not entrypoints._already_initialized)
        for cls, (attribute, function, method) in _OWNERS.items():
            self._replacements.replace(cls, "enable_caching", self._make_enable_caching(attribute, function))
            self._replacements.wrap(cls, method, self._make_compile_wrapper(attribute, function))
        self._replacements.wrap(wrappers._GufuncWrapper, "__init__", self._cache_gufuncs_in_backend)
        if is_first:
            self._adopt_running_lookup()

    def serve_callees(self) -> None:
        """Make functions of Numba's own cache use the backend from now on when a caller is compiled.

        Numba's own cache does not compare the values that a callee reads, so the caller could not be stored with code from that cache.
        """
        for cls, (attribute, function, method) in _OWNERS.items():
            self._replacements.wrap(cls, method, recorders.run_before(functools.partial(self._adopt_callee, attribute, function)))

    def _adopt_callee(self, attribute: str, function: str, owner: Any, *_: Any, **__: Any) -> None:
        """Adopt an object as `_adopt` does if this thread is compiling a caller."""
        if scopes.is_compiling():
            self._adopt(owner, attribute, function)

    def remove(self) -> None:
        """Restore Numba's functions.

        Functions that were decorated while the hooks were installed keep using the directory, as do lazy functions. If there are any,
        compilations are still recorded.
        """
        self._replacements.undo()
        for reference, attribute in self._adopted_owners:
            owner = reference()
            cache = getattr(owner, attribute, None)
            if isinstance(cache, FunctionCache):  # the program has not replaced it
                setattr(owner, attribute, cache._fallback)
        self._adopted_owners.clear()
        if not are_objects_kept():
            recorders.stop_recording()

    def _adopt_running_lookup(self) -> None:
        """Take over the look-up that one of Numba's own cache objects is performing in a caller of this function.

        Record the identity of any other dispatcher that is compiling in a caller. The hooks record the compilations that begin later.
        """
        frame = sys._getframe()
        recorded_ids: set[int] = set()
        while frame.f_back is not None:
            is_compiling = frame.f_code.co_name == "compile"
            cache, frame = frame.f_locals.get("self"), frame.f_back  # the caller of a cache object's method owns the cache object
            if is_compiling and isinstance(cache, dispatcher.Dispatcher) and id(cache) not in recorded_ids:
                recorded_ids.add(id(cache))
                record_running(cache, _identity_of_compiled(cache))
            if isinstance(cache, caching.FunctionCache):
                owner = frame.f_locals.get("self")
                for cls, (attribute, function, _) in _OWNERS.items():
                    if isinstance(owner, cls) and getattr(owner, attribute) is cache:
                        self._adopt(owner, attribute, function)
                        recorded_ids.add(id(owner))
                        collections = few_collections(lasting=True)  # Numba registers its implementations before the look-up
                        collections.__enter__()
                        cache._load_overload = functools.partial(_load_once, cache, getattr(owner, attribute), collections)

    def _make_enable_caching(self, attribute: str, function: str) -> Callable[[Any], None]:
        """Return the replacement for `enable_caching`, which creates a cache object of the backend."""
        return lambda owner: setattr(owner, attribute, FunctionCache(self._backend, owner, getattr(owner, function)))

    def _make_compile_wrapper(self, attribute: str, function: str) -> Callable[[Any], Any]:
        """Return a wrapper of `compile`. It makes functions that were decorated before the installation use the backend until `remove`."""
        adopt = self._adopt

        def wrap(original: Any) -> Any:
            def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
                adopt(self, attribute, function)
                with scopes.look_up_scope(), few_collections():
                    return original(self, *args, **kwargs)

            return compile_

        return wrap

    def _adopt(self, owner: Any, attribute: str, function: str) -> None:
        """Replace a function's cache object until `remove` if Numba created it. Leave those of the backend and of lazy functions.

        The owner has the cache object and the Python function in the attributes with these names. Unless caching is requested, this happens
        only with `stores_all` and to functions that Python calls: methods of typed lists, accessors that Numba compiles amid a constructor.
        """
        current, compiler = getattr(owner, attribute), getattr(owner, "_compiler", None)
        is_requested = isinstance(current, caching.FunctionCache)
        is_for_python = not scopes.is_compiling() or getattr(owner, function).__code__.co_varnames[:1] == ("__numba_self_",)
        is_stored = self._stores_all and type(current) is caching.NullCache and owner_of(owner) is compiler and is_for_python
        if is_requested or is_stored:
            self._adopted_owners.append((weakref.ref(owner), attribute))
            cache = FunctionCache(self._backend, owner, getattr(owner, function), is_requested=is_requested, fallback=current)
            setattr(owner, attribute, cache)

    def _cache_gufuncs_in_backend(self, original: Any) -> Any:
        """Return a constructor of gufunc wrappers that creates a cache object of the backend if the program requests caching."""
        backend = self._backend

        def __init__(  # noqa: N807 - it replaces this method
            self: Any, py_func: Any, cres: Any, sin: Any, sout: Any, cache: Any, is_parfors: Any
        ) -> None:
            is_backend = isinstance(cache, Backend)  # `recorders` handles a backend; False keeps Numba from creating its own cache object
            original(self, py_func, cres, sin, sout, cache if is_backend else False, is_parfors)
            if cache and not is_backend:
                self.cache = GufuncCache(backend, self, py_func)

        return __init__


def _identity_of_compiled(compiling: dispatcher.Dispatcher) -> CodeIdentity | None:
    """Return the identity of the code that a dispatcher is compiling, or None if the function has no identity."""
    try:
        options = walk_value({**compiling.targetoptions}, "the options of a function that is being compiled")
        code = fingerprint(compiling.py_func)
    except Unidentifiable:
        return None
    return CodeIdentity(f"{code.content} {options.content}", code.lines)


def _load_once(cache: Any, replacement: Any, collections: few_collections, sig: Any, target_context: Any) -> Any:
    """Load an overload from the backend in place of `cache`, Numba's cache object, for the running call only.

    The limit on garbage collections ends, now that Numba has registered its implementations.
    """
    collections.__exit__(None, None, None)
    del cache._load_overload
    return replacement.load_overload(sig, target_context)
