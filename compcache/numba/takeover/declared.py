"""Creates Numba's objects for declarations with signatures, and records their code for later starts.

Code that was found on declaration is loaded from the same entries, even if the program's globals have changed since.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import TYPE_CHECKING, Any

from compcache.errors import CacheWarning, CompcacheError
from compcache.numba.compilation import scopes
from compcache.numba.dispatch.function_cache import FunctionCache
from compcache.numba.entries.load import load_result
from compcache.numba.entries.starts import are_settings_from_environment, argument_text, find_stored, store_fields
from compcache.numba.fingerprints.fixed_code import Compiled, fixed_code, note_compiled
from compcache.numba.fingerprints.history import note_code
from compcache.numba.lazy.entries import key_of
from compcache.numba.lazy.stand_ins import numba_decorator
from compcache.numba.registered.refusals import NotLazy, Unidentifiable
from compcache.numba.registered.type_texts import NUMBERS
from compcache.numba.takeover import lazy_dispatchers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from compcache.numba.dispatch.backend import Backend
    from compcache.numba.lazy.entries import Key
    from compcache.numba.lazy.state import State

__all__ = ["PinnedCache", "compile_and_record", "is_key_current", "make_declared", "record_compiled_identities"]


class PinnedCache(FunctionCache):
    """A cache object that returns the entries that were found when a function was declared.

    For any other signature, it behaves like the cache of the backend. `pinned` maps argument types to the name, the lines and, if known,
    the implementations of an entry (`Record`).
    """

    def __init__(self, backend: Backend, owner: Any, state: State, pinned: Mapping[Any, tuple[str, ...]]) -> None:
        super().__init__(backend, owner, state.function, is_requested=state.requests_caching)
        self._pinned = pinned

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored compile result for a signature, or None if no entry is valid."""
        from numba.core import sigutils

        args = tuple(sigutils.normalize_signature(sig)[0])
        row = self._pinned.get(args)
        if row is not None:
            if getattr(self._owner, "_compiler", None) is None:
                target_context.refresh()
            name, lines, *implementations = row
            cres = load_result(self._cache, name, lines, args, self._function, target_context, *implementations)
            if cres is not None:
                note_compiled(self._owner, args, Compiled(row[0].rpartition("-")[2], row[1]))
                return cres
        return super().load_overload(sig, target_context)


def pinned_rows(signatures: Sequence[Any], bases: Iterable[tuple[str, ...]]) -> dict[Any, tuple[str, ...]]:
    """Map the argument types of signatures to the entries for these signatures."""
    from numba.core import sigutils

    return {tuple(sigutils.normalize_signature(signature)[0]): base for signature, base in zip(signatures, bases, strict=True)}


def make_declared(state: State, backend: Backend) -> Any:
    """Return the dispatcher of a function with declared signatures.

    Numba compiles the function now if its code was not found.
    """
    from numba.core import entrypoints, typeinfer

    entrypoints.init_all()
    decorator = numba_decorator(state.decorator)
    options = lazy_dispatchers.numba_options({k: v for k, v in state.options.items() if k != "cache"})
    real = decorator(**options)(state.function)
    lazy_dispatchers.note_unfinished(state, real)
    declared = state.declared
    bases = [code.record.base for code in declared.loaded] if declared is not None else []
    signatures = state.signatures or ()
    pinned = pinned_rows(signatures, bases) if declared is not None else {}
    real._cache = PinnedCache(backend, real, state, pinned)

    def compile_all() -> None:
        with typeinfer.register_dispatcher(real):
            for signature in signatures:
                with scopes.look_up_scope():
                    real.compile(signature)
            real.disable_compile()

    compile_and_record(state, backend, compile_all, lambda: _function_fields(real, backend, state.key))
    record_compiled_identities(state, real)
    lazy_dispatchers.dispatchers.append(lazy_dispatchers.LazyDispatcher(state, real, backend))
    return real


def record_compiled_identities(state: State, dispatcher: Any, *, is_frozen: bool = False) -> None:
    """Set `state.compiled` to the identities of a declared function's code, for the keys of its callers.

    If an identity is unknown, set it to None.
    """
    registered = tuple(state.key.content.registered) if state.key is not None else ()
    try:
        overloads = fixed_code(dispatcher, is_frozen=is_frozen)
    except Unidentifiable:
        overloads = None
    state.compiled = None if overloads is None else [Compiled(code.key, code.lines, registered) for code in overloads]


def compile_and_record(state: State, backend: Backend, compile_all: Callable[[], None], fields: Callable[[], Any]) -> None:
    """Compile a declaration, and store its record for starts without Numba.

    Other lazy functions that Numba compiles meanwhile are recorded too. If the record cannot be stored, a `CacheWarning` is issued.

    Args:
        state: the declaration.
        backend: the backend that stores the record.
        compile_all: compiles all signatures.
        fields: returns the data to store under the key of the declaration, or None if only Numba can use the code.
    """
    if state.declared is not None:
        compile_all()
        note_code(lazy_dispatchers.parts_of(state, state.key) if state.key is not None else ())
        return
    compile_all()
    if state.key is None or not is_key_current(state) or not are_settings_from_environment():
        return
    name = state.function.__qualname__
    try:
        data = fields()
        if data is not None:
            store_fields(backend.cache, state.key, data)
    except NotLazy:
        return
    except CompcacheError as error:
        reason = f"{name} was compiled, but cannot be recorded for starts without Numba: {error}; later starts import Numba for it"
        warnings.warn(reason, CacheWarning, stacklevel=2)


def is_key_current(state: State) -> bool:
    """Return whether the key of a declaration is unchanged after compiling."""
    try:
        current = key_of(state.function, state.key_options, f"{state.decorator} {state.signatures}")
    except NotLazy:
        return False
    return state.key is not None and current.name == state.key.name


# ----------------------------------------------------------------------------------------- fields of the record


def _function_fields(real: Any, backend: Backend, key: Key | None) -> tuple[Any, ...] | None:
    """Return the data of a function's record; None if only Numba can use its code."""
    rows, records = [], []
    signatures = list(real.overloads)
    for args in signatures:
        cres = real.overloads[args]
        entry = find_stored(real._cache, backend.cache, cres.signature, key)
        record = entry.create_record(entry.fndesc.llvm_cpython_wrapper_name) if entry is not None else None
        if record is None:
            return None
        rows.append([
            _accepted_types(type_, real.typingctx, [other[at] for other in signatures if len(other) == len(args)])
            for at, type_ in enumerate(args)
        ])  # fmt: skip
        records.append(record.fields)
    return rows, records, None


#: The maximum number of tuples of arrays in all layouts that are recorded. If there are more, only the exact type is recorded.
_MAX_TUPLES = 300


def _layouts_of(type_: Any) -> list[Any]:
    """Return the types of arrays that differ from an array type at most in layout and writability."""
    from numba.core import types

    layouts = "CFA" if type_.ndim > 1 else "CA"
    return [types.Array(type_.dtype, type_.ndim, layout, readonly=readonly) for layout in layouts for readonly in (False, True)]


def _accepted_types(type_: Any, typing_context: Any, types_in_signatures: Sequence[Any]) -> dict[str, int]:
    """Return the argument types that a parameter accepts, each with the rank of its conversion.

    If several signatures have arrays that differ only in layout, Numba's choice depends on earlier calls. Then the result contains only the
    type of the parameter.

    Args:
        type_: the type of the parameter.
        typing_context: Numba's typing context.
        types_in_signatures: the types of this parameter in all signatures.
    """
    from numba.core import types

    is_optional = isinstance(type_, types.Optional) and isinstance(type_.type, (types.Number, types.Boolean))
    try:
        accepted = {} if is_optional else {argument_text(type_): 0}  # no argument itself has an optional type
    except NotLazy:
        return {}
    candidates: list[Any] = [types.none] if is_optional else []
    if is_optional or isinstance(type_, (types.Number, types.Boolean)):
        candidates += [getattr(types, name if name != "bool" else "boolean") for name in NUMBERS]
    elif type(type_) is types.Array and [_shape_of(other) for other in types_in_signatures].count(_shape_of(type_)) == 1:
        candidates = _layouts_of(type_)
    elif type(type_) in (types.Tuple, types.UniTuple) and len(types_in_signatures) == 1:
        parts = [_layouts_of(part) if type(part) is types.Array else [part] for part in type_]
        if math.prod(map(len, parts)) <= _MAX_TUPLES:
            candidates = list(map(types.Tuple, itertools.product(*parts)))
    for candidate in candidates:
        conversion = typing_context.can_convert(candidate, type_)
        if conversion is not None and candidate != type_:
            accepted[argument_text(candidate)] = int(conversion) - 1
    return accepted


def _shape_of(type_: Any) -> Any:
    return getattr(type_, "dtype", None), getattr(type_, "ndim", None)
