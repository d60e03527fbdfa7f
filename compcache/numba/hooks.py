"""Puts the backend into Numba, and takes it out again.

Numba has no interface for other caches. Replaced are the methods that make a function's cache object, the two entry
points of the compiler, the numbering of functions, and the three places where user-defined implementations are asked.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numba.core import bytecode, caching, ccallback, compiler, dispatcher
from numba.core.typing import templates
from numba.np.ufunc import ufuncbuilder, wrappers

from compcache.numba import scopes
from compcache.numba.backend import FunctionBackend, GufuncBackend
from compcache.numba.fingerprint import plain_name, register_overload_source
from compcache.numba.overloads import find_overloads, source_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.numba.state import Backend

__all__ = ["Hooks"]


class Hooks:
    """The replacements of one installation."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._replaced: list[tuple[Any, str, Any, bool]] = []
        self._adopted: list[tuple[Any, str, Any]] = []
        register_overload_source(find_overloads)

    def put_in(self) -> None:
        """Replace Numba's functions."""
        owners = ((dispatcher.Dispatcher, "_cache", "py_func", "compile"),
                  (ccallback.CFunc, "_cache", "_pyfunc", "compile"),
                  (ufuncbuilder.UFuncDispatcher, "cache", "py_func", "_compile_core"))  # fmt: skip
        for cls, attribute, function, method in owners:
            self._replace(cls, "enable_caching", self._enabler(attribute, function))
            self._wrap(cls, method, self._adopter(attribute, function))
        self._wrap(wrappers._GufuncWrapper, "__init__", self._gufunc_wrapper)
        self._wrap(compiler, "compile_extra", _scoped(2))
        self._wrap(compiler, "compile_internal", _scoped(3))
        self._replace(bytecode.FunctionIdentity, "from_function", classmethod(_from_function(
            bytecode.FunctionIdentity.__dict__["from_function"].__func__
        )))  # fmt: skip
        self._wrap(templates._OverloadFunctionTemplate, "generic", _recording)
        self._wrap(templates._IntrinsicTemplate, "generic", _recording)
        self._wrap(templates._OverloadAttributeTemplate, "resolve", _recording)
        self._wrap(templates._OverloadMethodTemplate, "_resolve", _recording)
        self._wrap(templates._OverloadAttributeTemplate, "_resolve", _recording)

    def take_out(self) -> None:
        """Put back what was there. Functions that were decorated meanwhile go on using the directory."""
        for owner, name, original, was_own in reversed(self._replaced):
            if was_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self._replaced.clear()
        for owner, attribute, original in self._adopted:
            setattr(owner, attribute, original)
        self._adopted.clear()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner)
        self._replaced.append((owner, name, own.get(name), name in own))
        setattr(owner, name, value)

    def _wrap(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._replace(owner, name, functools.wraps(original)(wrap(original)))

    def _enabler(self, attribute: str, function: str) -> Callable[[Any], None]:
        backend = self._backend

        def enable_caching(self: Any) -> None:
            setattr(self, attribute, FunctionBackend(backend, self, getattr(self, function)))

        return enable_caching

    def _adopter(self, attribute: str, function: str) -> Callable[[Any], Any]:
        """Functions that were decorated before take part as well, until the backend is taken out."""
        backend, adopted = self._backend, self._adopted

        def wrap(original: Any) -> Any:
            def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
                current = getattr(self, attribute)
                if isinstance(current, caching.FunctionCache):
                    adopted.append((self, attribute, current))
                    setattr(self, attribute, FunctionBackend(backend, self, getattr(self, function)))
                return original(self, *args, **kwargs)

            return compile_

        return wrap

    def _gufunc_wrapper(self, original: Any) -> Any:
        backend = self._backend

        def __init__(  # noqa: N807 - it takes that method's place
            self: Any, py_func: Any, cres: Any, sin: Any, sout: Any, cache: Any, is_parfors: Any
        ) -> None:
            original(self, py_func, cres, sin, sout, False, is_parfors)
            if cache:
                self.cache = GufuncBackend(backend, self, py_func)

        return __init__


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


def _recording(original: Any) -> Any:
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = source_function(type(self))
        if function is not None:
            scopes.record(function)
        return original(self, *args, **kwargs)

    return ask
