"""What is replaced to see compilations: the two entry points of the compiler, the numbering of functions, and the places
where implementations are looked for, wherever those can be the user's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numba.core import base, bytecode, compiler
from numba.core.types import functions
from numba.core.typing import context, templates

from compcache.numba.compilation import libraries, scopes
from compcache.numba.fingerprints.code_digest import plain_name
from compcache.numba.fingerprints.implementations import key_name, source_function
from compcache.numba.hooks.replacements import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["start_recording", "stop_recording"]

#: What records compilations. One per process: a function that keeps its directory needs it after `uninstall`, too.
_recorders = Replacements()


def start_recording(*, from_the_start: bool) -> None:
    """Record compilations from now on; `from_the_start`: there was none before. No effect where that is done."""
    if _recorders:
        return
    libraries.start_recording(from_the_start=from_the_start)
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


def stop_recording() -> None:
    """Put back what records."""
    _recorders.undo()


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
                libraries.dependencies_of(result.library, scope)
                libraries.remember_library(result.fndesc.llvm_func_name, result.library)
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
