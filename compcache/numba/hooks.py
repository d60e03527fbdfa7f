"""Puts the backend into Numba, and takes it out again.

Numba has no interface for other caches. Replaced are the methods that make a function's cache object, the two entry
points of the compiler, the numbering of functions, and the places where implementations are looked for: wherever those
can be the user's.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from numba.core import base, bytecode, caching, ccallback, compiler, dispatcher, entrypoints
from numba.core.types import functions
from numba.core.typing import context, templates
from numba.np.ufunc import ufuncbuilder, wrappers

from compcache.numba import scopes
from compcache.numba.backend import FunctionBackend, GufuncBackend
from compcache.numba.fingerprint import plain_name, register_overload_source
from compcache.numba.overloads import find_overloads, key_name, source_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.numba.state import Backend

__all__ = ["Hooks"]

#: What has a cache: the attributes that hold it and the Python function, and the method that asks it.
_OWNERS = {
    dispatcher.Dispatcher: ("_cache", "py_func", "compile"),
    ccallback.CFunc: ("_cache", "_pyfunc", "compile"),
    ufuncbuilder.UFuncDispatcher: ("cache", "py_func", "_compile_core"),
}


class _Replacements:
    """Attributes that were replaced, and what was there."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, str, Any, bool]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner)
        self._rows.append((owner, name, own.get(name), name in own))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self.replace(owner, name, functools.wraps(original)(wrap(original)))

    def undo(self) -> None:
        for owner, name, original, was_own in reversed(self._rows):
            if was_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self._rows.clear()


#: What records compilations. One per process: a function that keeps its directory needs it after `uninstall`, too.
_recorders = _Replacements()


def _start_recording() -> None:
    _recorders.wrap(compiler, "compile_extra", _scoped(2))
    _recorders.wrap(compiler, "compile_internal", _scoped(3))
    numbering = bytecode.FunctionIdentity.__dict__["from_function"].__func__
    _recorders.replace(bytecode.FunctionIdentity, "from_function", classmethod(_from_function(numbering)))
    _recorders.wrap(templates._OverloadFunctionTemplate, "generic", _recording)
    _recorders.wrap(templates._IntrinsicTemplate, "generic", _recording)
    _recorders.wrap(templates._OverloadAttributeTemplate, "resolve", _recording)
    _recorders.wrap(templates._OverloadMethodTemplate, "_resolve", _recording)
    _recorders.wrap(templates._OverloadAttributeTemplate, "_resolve", _recording)
    _recorders.wrap(context.BaseContext, "resolve_getattr", _noting_attribute)
    _recorders.wrap(context.BaseContext, "resolve_setattr", _noting_attribute)
    _recorders.wrap(functions.BaseFunction, "get_call_type", _noting_call)
    _recorders.wrap(base.OverloadSelector, "find", _noting_generator)


class Hooks:
    """The replacements of one installation."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._replaced = _Replacements()
        self._adopted: list[tuple[Any, str, Any]] = []
        self._has_functions = False
        register_overload_source(find_overloads)

    def put_in(self, *, is_first: bool) -> None:
        """Replace Numba's functions; `is_first` where Numba is about to compile or load its first one."""
        if not _recorders:
            scopes.start_recording(from_the_start=is_first or not entrypoints._already_initialized)
            _start_recording()
        for cls, (attribute, function, method) in _OWNERS.items():
            self._replaced.replace(cls, "enable_caching", self._enabler(attribute, function))
            self._replaced.wrap(cls, method, self._adopter(attribute, function))
        self._replaced.wrap(wrappers._GufuncWrapper, "__init__", self._gufunc_wrapper)
        if is_first:
            self._take_over_running()

    def take_out(self) -> None:
        """Put back what was there. Functions that were decorated meanwhile go on using the directory.

        As long as there may be such functions, compilations are recorded.
        """
        self._replaced.undo()
        for owner, attribute, original in self._adopted:
            setattr(owner, attribute, original)
        self._adopted.clear()
        if not self._has_functions:
            _recorders.undo()

    def _take_over_running(self) -> None:
        """Serve the function that Numba's own cache is looking for at this moment, further up this stack."""
        frame = sys._getframe()
        while frame.f_back is not None:
            cache, frame = frame.f_locals.get("self"), frame.f_back
            if isinstance(cache, caching.FunctionCache):
                owner = frame.f_locals.get("self")
                for cls, (attribute, function, _) in _OWNERS.items():
                    if isinstance(owner, cls) and getattr(owner, attribute) is cache:
                        self._adopt(owner, attribute, function)
                        cache._load_overload = functools.partial(_load_once, cache, getattr(owner, attribute))

    def _enabler(self, attribute: str, function: str) -> Callable[[Any], None]:
        hooks = self

        def enable_caching(self: Any) -> None:
            hooks._has_functions = True
            setattr(self, attribute, FunctionBackend(hooks._backend, self, getattr(self, function)))

        return enable_caching

    def _adopter(self, attribute: str, function: str) -> Callable[[Any], Any]:
        """Functions that were decorated before take part as well, until the backend is taken out."""
        adopt = self._adopt

        def wrap(original: Any) -> Any:
            def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
                adopt(self, attribute, function)
                return original(self, *args, **kwargs)

            return compile_

        return wrap

    def _adopt(self, owner: Any, attribute: str, function: str) -> None:
        current = getattr(owner, attribute)
        if isinstance(current, caching.FunctionCache):
            self._adopted.append((owner, attribute, current))
            setattr(owner, attribute, FunctionBackend(self._backend, owner, getattr(owner, function)))

    def _gufunc_wrapper(self, original: Any) -> Any:
        backend = self._backend

        def __init__(  # noqa: N807 - it takes that method's place
            self: Any, py_func: Any, cres: Any, sin: Any, sout: Any, cache: Any, is_parfors: Any
        ) -> None:
            original(self, py_func, cres, sin, sout, False, is_parfors)
            if cache:
                self.cache = GufuncBackend(backend, self, py_func)

        return __init__


def _load_once(cache: Any, replacement: Any, sig: Any, target_context: Any) -> Any:
    """In place of the `_load_overload` of a cache object, for the call that is running."""
    del cache._load_overload
    return replacement.load_overload(sig, target_context)


def _scoped(position: int) -> Callable[[Any], Any]:
    """Wrap one of the compiler's entry points, whose argument number `position` is the function."""

    def wrap(original: Any) -> Any:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            names = ("func", "args", "return_type", "flags", "locals")
            given = dict(zip(names, args[position:], strict=False)) | {
                k: kwargs[k] for k in names if k in kwargs
            }
            pipeline = kwargs.get("pipeline_class") or (args[8] if position == 2 and len(args) > 8 else None)  # noqa: PLR2004
            extra = f"{sorted((k, str(v)) for k, v in (given['locals'] or {}).items())} {getattr(pipeline, '__name__', '')}"
            function = bytecode.get_function_object(given["func"])
            if plain_name(function.__name__) != function.__name__:
                function.__name__ = function.__qualname__ = plain_name(function.__name__)
            with scopes.compile_scope(
                function, given["args"], given["return_type"], given["flags"], extra
            ) as scope:
                result = original(*args, **kwargs)
                scopes.dependencies_of(result.library, scope)
                scopes.remember_library(result.fndesc.llvm_func_name, result.library)
            return result

        return compile_

    return wrap


def _from_function(original: Any) -> Any:
    def from_function(cls: Any, pyfunc: Any) -> Any:
        found = original(cls, pyfunc)
        found.unique_id = scopes.next_unique_id(found.func)
        found.unique_name = f"{found.func_qualname}${found.unique_id}"
        return found

    return functools.wraps(original)(from_function)


def _noting_attribute(original: Any) -> Any:
    def resolve(self: Any, owner: Any, name: Any, *rest: Any) -> Any:
        scopes.note(str(name))
        return original(self, owner, name, *rest)

    return resolve


def _noting_call(original: Any) -> Any:
    def get_call_type(self: Any, *args: Any, **kwargs: Any) -> Any:
        scopes.note(key_name(self.typing_key))
        return original(self, *args, **kwargs)

    return get_call_type


def _noting_generator(original: Any) -> Any:
    def find(self: Any, sig: Any) -> Any:
        found = original(self, sig)
        scopes.note_generator(found)
        return found

    return find


def _recording(original: Any) -> Any:
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = source_function(type(self))
        if function is not None:
            scopes.record(function)
        return original(self, *args, **kwargs)

    return ask
