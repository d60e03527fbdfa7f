"""Creates Numba's own dispatcher for a lazy function when one is needed. It takes over with all overloads that ran before.

Overloads that ran without Numba are first loaded into the dispatcher from the same entries. So callers are linked with the code that ran,
whatever the program's globals are now.
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
    parts_of,
    real_options,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.numba.dispatch.backend import Backend
    from compcache.numba.lazy.state import State

__all__ = ["real_dispatcher"]


def real_dispatcher(function: Any) -> Any:
    """Return the dispatcher of a lazy function, creating it if necessary. It answers all calls from then on."""
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
            made = _make(state)
        finally:
            unfinished.pop(id(state), None)
        for name, value in function.__dict__.items():
            if name not in vars(made) and name != STATE:
                setattr(made, name, value)
        return _dispatch.set_real(function, made)


def _make(state: State) -> Any:
    from compcache.numba.lazy.stand_ins import numba_decorator

    decorator = numba_decorator(state.decorator)
    backend = None if state.reason else backend_for_lazy()
    if backend is None:  # an unsupported version of Numba works as without this package
        return _decorated(decorator, state.signatures, state.options, state.function)
    if state.signatures is not None:
        from compcache.numba.takeover.declared import make_declared

        return make_declared(state, backend)
    options = {k: v for k, v in state.options.items() if k != "cache"}
    real = _decorated(decorator, None, options, state.function)
    note_unfinished(state, real)
    if hasattr(real, "_compile_for_args"):
        from compcache.numba.dispatch.function_cache import FunctionCache

        real._cache = FunctionCache(backend, real, state.function, is_asked_for=state.asks_for_caching, tells_starts=True)
        _load_what_ran(state, real, backend)
        dispatchers.append(LazyDispatcher(state, real, backend))
    return real


def _decorated(decorator: Any, signatures: tuple[str, ...] | None, options: dict[str, Any], function: Any) -> Any:
    options = real_options(options)
    if signatures is not None:
        return decorator(list(signatures), **options)(function)
    return decorator(**options)(function) if options else decorator(function)


# ---------------------------------------------------------------------------------------------- what ran before


def _load_what_ran(state: State, real: Any, backend: Backend) -> None:
    """Load the overloads that ran without it into a new dispatcher."""
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
            if cres is not None and key.given:
                cres = with_types(cres, _with_functions(cres.signature.args, iter(key.given)))
            if cres is None or tuple(cres.signature.args) in real.overloads:
                continue
            real.targetctx.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
            real.add_overload(cres)
            state.loaded_signatures.add(tuple(cres.signature.args))
        note_code(parts_of(state, key))


def _with_functions(types_: Iterable[Any], given: Iterator[Any]) -> tuple[Any, ...]:
    """Return argument types in which those of functions are replaced by the types of the given functions: an entry has
    another process's.
    """
    return tuple([_with_function(type_, given) for type_ in types_])


def _with_function(type_: Any, given: Iterator[Any]) -> Any:
    from numba.core import types

    if isinstance(type_, types.Dispatcher):
        return types.Dispatcher(real_dispatcher(next(given)))
    if isinstance(type_, types.BaseTuple):
        items = _with_functions(type_.types, given)
        return types.BaseTuple.from_types(items, getattr(type_, "instance_class", None))
    return type_
