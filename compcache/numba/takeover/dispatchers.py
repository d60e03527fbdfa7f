"""Creates Numba's dispatcher for a lazy function when one is needed. The dispatcher gets all overloads that ran before.

Overloads that ran without Numba are loaded into the dispatcher from the same entries. Therefore callers are linked with the code that ran,
even if the program's globals have changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.state import STATE, state_of
from compcache.numba.takeover.lazy_dispatchers import (
    LazyDispatcher,
    backend_for_lazy,
    dispatchers,
    note_unfinished,
    numba_options,
    parts_of,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.numba.dispatch.backend import Backend
    from compcache.numba.lazy.state import State

__all__ = ["real_dispatcher"]


def real_dispatcher(function: Any) -> Any:
    """Return Numba's dispatcher of a lazy function, and create it if necessary.

    From then on, the lazy function passes every call to the dispatcher.
    """
    real = _dispatch.get_real(function)
    if real is not None:
        return real
    from compcache.numba.lazy import stand_ins

    stand_ins.real_numba()
    state = state_of(function)
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        real = _dispatch.get_real(function) or unfinished.get(id(state))
        if real is not None:
            return real
        stand_ins.replace_stand_ins(state.function)
        try:
            dispatcher = _make_dispatcher(state)
        finally:
            unfinished.pop(id(state), None)
        for name, value in function.__dict__.items():
            if name not in vars(dispatcher) and name != STATE:
                setattr(dispatcher, name, value)
        return _dispatch.set_real(function, dispatcher)


def _make_dispatcher(state: State) -> Any:
    """Create Numba's dispatcher for the state of a lazy function."""
    from compcache.numba.lazy.stand_ins import numba_decorator

    decorator = numba_decorator(state.decorator)
    backend = None if state.reason else backend_for_lazy()
    if backend is None:  # the backend cannot be used, so Numba compiles as without it
        return _apply_decorator(decorator, state.signatures, state.options, state.function)
    if state.signatures is not None:
        from compcache.numba.takeover.declared import make_declared

        return make_declared(state, backend)
    options = {k: v for k, v in state.options.items() if k != "cache"}
    real = _apply_decorator(decorator, None, options, state.function)
    note_unfinished(state, real)
    if hasattr(real, "_compile_for_args"):
        from compcache.numba.dispatch.function_cache import FunctionCache

        real._cache = FunctionCache(backend, real, state.function, is_requested=state.requests_caching, explains_starts=True)
        _load_earlier_overloads(state, real, backend)
        dispatchers.append(LazyDispatcher(state, real, backend))
    return real


def _apply_decorator(decorator: Any, signatures: tuple[str, ...] | None, options: dict[str, Any], function: Any) -> Any:
    options = numba_options(options)
    if signatures is not None:
        return decorator(list(signatures), **options)(function)
    return decorator(**options)(function) if options else decorator(function)


# ---------------------------------------------------------------------------------------------- what ran before


def _load_earlier_overloads(state: State, real: Any, backend: Backend) -> None:
    """Load the overloads of a lazy function that ran before into its new dispatcher."""
    if not state.loaded:
        return
    from numba.core import entrypoints
    from numba.core.compiler_lock import global_compiler_lock

    from compcache.numba.entries.load import load_result, with_types
    from compcache.numba.fingerprints.history import note_code

    entrypoints.init_all()
    for loaded, key in state.loaded.values():
        with global_compiler_lock:
            record = loaded.record
            cres = load_result(backend.cache, record.entry, record.lines, (), state.function, real.targetctx, record.implementations)
            if cres is not None and key.functions:
                cres = with_types(cres, _replace_functions(cres.signature.args, iter(key.functions)))
            if cres is None or tuple(cres.signature.args) in real.overloads:
                continue
            real.targetctx.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
            real.add_overload(cres)
            state.loaded_signatures.add(tuple(cres.signature.args))
        note_code(parts_of(state, key))


def _replace_functions(types_: Iterable[Any], functions: Iterator[Any]) -> tuple[Any, ...]:
    """Replace the types of functions among the argument types of an entry.

    An entry contains the types of another process's functions. They are replaced by the types of `functions`, in order.
    """
    return tuple([_replace_function(type_, functions) for type_ in types_])


def _replace_function(type_: Any, functions: Iterator[Any]) -> Any:
    """Replace the types of functions in one argument type."""
    from numba.core import types

    if isinstance(type_, types.Dispatcher):
        return types.Dispatcher(real_dispatcher(next(functions)))
    if isinstance(type_, types.BaseTuple):
        items = _replace_functions(type_.types, functions)
        return types.BaseTuple.from_types(items, getattr(type_, "instance_class", None))
    return type_
