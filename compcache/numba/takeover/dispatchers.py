"""Creates Numba's dispatcher for a lazy function when a program needs the dispatcher.

Overloads that ran without Numba are loaded into the dispatcher from the same entries. Therefore callers are linked with the code that ran,
even if the program's globals have changed in the meantime.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from compcache.numba.fingerprints.code_digest import replaced_defaults_reason
from compcache.numba.fingerprints.fixed_code import CodeIdentity, record_compiled
from compcache.numba.lazy import _dispatch
from compcache.numba.lazy.state import lazy_state_of
from compcache.numba.takeover.lazy_dispatchers import apply_decorator, find_lazy_backend, unfinished_dispatchers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.numba.dispatch import Backend
    from compcache.numba.lazy.state import State

__all__ = ["real_dispatcher"]


def real_dispatcher(function: Any) -> Any:
    """Return Numba's dispatcher of a lazy function. Create the dispatcher on the first call, importing Numba if necessary.

    After that, the lazy function passes every call to the dispatcher, and shares its attributes.
    """
    existing = _dispatch.get_real(function)
    if existing is not None:
        return existing
    from compcache.numba.lazy import stand_ins

    stand_ins.real_numba()
    state = lazy_state_of(function)
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        existing = _dispatch.get_real(function) or unfinished_dispatchers.get(id(state))
        if existing is not None:
            return existing
        stand_ins.replace_stand_ins(state.function)
        try:
            dispatcher = _make_dispatcher_with_declared_defaults(state)
        finally:
            unfinished_dispatchers.pop(id(state), None)
        vars(dispatcher).update(function.__dict__)
        object.__setattr__(function, "__dict__", vars(dispatcher))  # so that both have what the program sets on either of them
        return _dispatch.set_real(function, dispatcher)


def _make_dispatcher_with_declared_defaults(state: State) -> Any:
    """Return a new dispatcher of Numba that has the default values of the declaration. The function's present values stay."""
    function, defaults = state.function, state.defaults
    if not replaced_defaults_reason(function, defaults):
        return _make_dispatcher(state)
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    present = function.__defaults__, function.__kwdefaults__
    function.__defaults__ = tuple(defaults[name] for name in positional if name in defaults)
    function.__kwdefaults__ = {name: value for name, value in defaults.items() if name not in positional}
    try:
        return _make_dispatcher(state)
    finally:
        function.__defaults__, function.__kwdefaults__ = present


def _make_dispatcher(state: State) -> Any:
    """Return a new dispatcher of Numba with the overloads that ran before. The caller removes it from `unfinished_dispatchers`."""
    # The reasons that the options of the decorator give begin with these words (`_reason_in_options`). If the program requests caching,
    # Numba's own cache would store copies of objects, and would not notice changes of helpers.
    is_left_to_numba = state.reason.startswith("the function is declared") and not state.requests_caching
    backend = None if is_left_to_numba else find_lazy_backend()
    if backend is None:  # Numba compiles as without the backend
        return apply_decorator(state, state.signatures, use_numba_cache=True)
    if state.signatures is not None:
        from compcache.numba.takeover.declared import make_declared_dispatcher

        return make_declared_dispatcher(state, backend)
    dispatcher = apply_decorator(state)
    unfinished_dispatchers[id(state)] = dispatcher
    from compcache.numba.dispatch.function_cache import FunctionCache

    dispatcher._cache = FunctionCache(backend, dispatcher, state.function, is_requested=state.requests_caching, explains_starts=True)
    _load_earlier_overloads(state, dispatcher, backend)
    return dispatcher


def _load_earlier_overloads(state: State, dispatcher: Any, backend: Backend) -> None:
    """Load the overloads of a lazy function that ran before into its new dispatcher. Numba compiles those that cannot be loaded."""
    if not state.loaded:
        return
    from numba.core import entrypoints
    from numba.core.compiler_lock import global_compiler_lock

    from compcache.numba.entries.load import load_result
    from compcache.numba.fingerprints.history import named_functions

    entrypoints.init_all()
    for loaded, key in state.loaded.values():
        with global_compiler_lock:
            context = dispatcher.targetctx
            adapt_args = partial(_replace_functions, functions=iter(key.functions))
            functions = named_functions(key.content.parts)
            loading = partial(load_result, backend.cache, loaded.record.entry_fields, adapt_args, dispatcher, context, functions)
            cres = backend.load_or_record(loaded.record.entry.rpartition("-")[0], loading)
            if cres is not None and (args := tuple(cres.signature.args)) not in dispatcher.overloads:
                context.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
                dispatcher.add_overload(cres)
                record_compiled(dispatcher, args, CodeIdentity(loaded.record.entry.rpartition("-")[2], loaded.record.lines))


def _replace_functions(types_: Iterable[Any], functions: Iterator[Any]) -> tuple[Any, ...]:
    """Return the argument types of an entry, with the types of these lazy functions in place of the other process's functions."""
    return tuple([_replace_functions_in_type(type_, functions) for type_ in types_])


def _replace_functions_in_type(type_: Any, functions: Iterator[Any]) -> Any:
    """Return one argument type, as `_replace_functions` does."""
    from numba.core import types

    if isinstance(type_, types.Dispatcher):
        return types.Dispatcher(real_dispatcher(next(functions)))
    if isinstance(type_, types.BaseTuple):
        items = _replace_functions(type_.types, functions)
        return types.BaseTuple.from_types(items, getattr(type_, "instance_class", None))
    return type_
