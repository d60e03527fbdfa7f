"""Creates Numba's objects for declarations with signatures, and records their code for later starts.

Code that a declaration found is loaded from the same entries, even if the program's globals have changed in the meantime.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from numba.core import entrypoints, sigutils, typeinfer, types

from compcache.errors import CompcacheError
from compcache.numba.compilation import scopes
from compcache.numba.dispatch.function_cache import FunctionCache
from compcache.numba.entries.starts import are_settings_from_environment, argument_text, find_stored_entry, store_fields
from compcache.numba.fingerprints.fixed_code import CodeIdentity, fixed_code
from compcache.numba.fingerprints.history import named_functions
from compcache.numba.lazy.argument_types import NUMBERS
from compcache.numba.lazy.entries import key_of
from compcache.numba.registered.refusals import NotLazy, Unidentifiable
from compcache.numba.takeover import lazy_dispatchers
from compcache.warning import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compcache.numba.declarations.ufuncs import LoadedLoop
    from compcache.numba.dispatch import Backend
    from compcache.numba.lazy.entries import Key
    from compcache.numba.lazy.state import State

__all__ = ["compile_and_record", "is_key_current", "make_declared_dispatcher", "make_pinned_cache", "record_compiled_identities"]


def make_pinned_cache(
    state: State, backend: Backend, owner: Any, signatures: Sequence[Any], loops: Sequence[LoadedLoop] = ()
) -> FunctionCache:
    """Return the cache object for signatures whose code was found without Numba: the entries with this code, or other entries.

    `owner` is the dispatcher or callback that has the cache object. `loops` are the loops that ran before, one for each signature, of a
    ufunc without declared signatures.
    """
    declared = state.declared
    found: list[Any] = [(loop.entry_fields, loop.key) for loop in loops]
    if declared is not None:
        found = [(entry, state.key) for entry in declared.entries]
    tuples = [tuple(sigutils.normalize_signature(signature)[0]) for signature in signatures]
    pinned = {args: (entry, named_functions(key.content.parts) if key else []) for args, (entry, key) in zip(tuples, found, strict=False)}
    return FunctionCache(backend, owner, state.function, is_requested=state.requests_caching, pinned=pinned)


def make_declared_dispatcher(state: State, backend: Backend) -> Any:
    """Make and return Numba's dispatcher of a function with declared signatures. Compile all signatures whose code was not found.

    Record the code for starts without Numba. The dispatcher is added to `unfinished_dispatchers`, from which the caller removes it.
    """
    entrypoints.init_all()
    dispatcher = lazy_dispatchers.apply_decorator(state)
    lazy_dispatchers.unfinished_dispatchers[id(state)] = dispatcher
    signatures = state.signatures or ()
    dispatcher._cache = make_pinned_cache(state, backend, dispatcher, signatures)

    def compile_all() -> None:
        """Compile all declared signatures. Then disable compilation, as Numba does."""
        with typeinfer.register_dispatcher(dispatcher):
            for signature in signatures:
                with scopes.look_up_scope():
                    dispatcher.compile(signature)
            dispatcher.disable_compile()

    compile_and_record(state, backend, compile_all, lambda: _make_function_fields(dispatcher, backend, state.key))
    record_compiled_identities(state, dispatcher)
    return dispatcher


def record_compiled_identities(state: State, dispatcher: Any, *, is_frozen: bool = False) -> None:
    """Set `state.compiled` to the identities of a declared function's code, which are part of its callers' keys; None if one is unknown.

    `is_frozen` says whether the function's dispatcher compiles no further signatures.
    """
    registered = tuple(state.key.content.registered) if state.key is not None else ()
    try:
        overloads = fixed_code(dispatcher, is_frozen=is_frozen)
    except Unidentifiable:
        overloads = None
    state.compiled = None if overloads is None else [CodeIdentity(code.key, code.lines, registered) for code in overloads]


def compile_and_record(state: State, backend: Backend, compile_all: Callable[[], None], make_fields: Callable[[], Any]) -> None:
    """Compile a declaration. Store its record for starts without Numba, if later processes will look up the same key.

    A declaration that was loaded from such a record keeps this record. If a record cannot be stored, issue a `CacheWarning`. `compile_all`
    compiles all signatures. `make_fields` returns the fields of the record, or None if only Numba can use the code.
    """
    compile_all()
    if state.declared is not None or state.key is None or not is_key_current(state) or not are_settings_from_environment():
        return
    try:
        fields = make_fields()
        if fields is not None:
            store_fields(backend.cache, state.key.name, fields)
    except NotLazy:
        return
    except CompcacheError as error:
        name = state.function.__qualname__
        warn(f"{name} was compiled, but cannot be recorded for starts without Numba: {error}; later starts import Numba")


def is_key_current(state: State) -> bool:
    """Return whether a declaration has a key, and would get the same key now. Compiling may change the key."""
    try:
        current = key_of(state.function, state.key_options, f"{state.decorator} {state.signatures}")
    except NotLazy:
        return False
    return state.key is not None and current.name == state.key.name


def _make_function_fields(dispatcher: Any, backend: Backend, key: Key | None) -> tuple[Any, ...] | None:
    """Return the fields of a function's record, or None if only Numba can use the function's code.

    `key` is the key of the function for starts without Numba, as in `find_stored_entry`. See there for the exception, too.
    """
    rows, records = [], []
    signatures = list(dispatcher.overloads)
    for args in signatures:
        cres = dispatcher.overloads[args]
        entry = find_stored_entry(dispatcher._cache, backend.cache, cres.signature, key)
        record = entry.create_record(entry.fndesc.llvm_cpython_wrapper_name) if entry is not None else None
        if record is None:
            return None
        same_length = [signature for signature in signatures if len(signature) == len(args)]
        rows.append([
            _accepted_types(type_, dispatcher.typingctx, [signature[position] for signature in same_length])
            for position, type_ in enumerate(args)
        ])  # fmt: skip
        records.append(record.fields)
    return rows, records, None


#: The maximum number of tuple types that are recorded for a tuple of arrays in all layouts. Above it, only the exact type is recorded.
_MAX_TUPLES = 300


def _list_array_layouts(type_: Any) -> list[Any]:
    """Return the array types that differ from an array type at most in layout and writability."""
    layouts = "CFA" if type_.ndim > 1 else "CA"
    return [types.Array(type_.dtype, type_.ndim, layout, readonly=readonly) for layout in layouts for readonly in (False, True)]


def _accepted_types(type_: Any, typing_context: Any, types_in_signatures: Sequence[Any]) -> dict[str, int]:
    """Return the rank of the conversion for each argument type that a parameter accepts, by the type's text.

    `types_in_signatures` are the types of the parameter in all signatures. The result is empty if only Numba supports the parameter's type.
    If several signatures have arrays that differ only in layout, Numba's choice depends on earlier calls. Then the result contains only the
    type of the parameter. See `argument_text` for the exception.
    """
    is_optional = isinstance(type_, types.Optional) and isinstance(type_.type, (types.Number, types.Boolean))
    try:
        accepted = {} if is_optional else {argument_text(type_): 0}  # an argument never has an optional type
    except NotLazy:
        return {}
    for candidate in _list_candidates(type_, types_in_signatures, is_optional=is_optional):
        conversion = typing_context.can_convert(candidate, type_)
        if conversion is not None and candidate != type_:
            accepted[argument_text(candidate)] = int(conversion) - 1  # the rank of a type's conversion to itself is 0 here, and 1 in Numba
    return accepted


def _list_candidates(type_: Any, types_in_signatures: Sequence[Any], *, is_optional: bool) -> list[Any]:
    """Return the argument types, besides a parameter's own type, that may be convertible to this type; empty if there are none.

    `is_optional` is whether the parameter's type is optional. See `_accepted_types` for the other arguments.
    """
    if is_optional or isinstance(type_, (types.Number, types.Boolean)):
        numbers = [getattr(types, name if name != "bool" else "boolean") for name in NUMBERS]
        return [types.none, *numbers] if is_optional else numbers
    if type(type_) is types.Array and list(map(_array_kind, types_in_signatures)).count(_array_kind(type_)) == 1:
        return _list_array_layouts(type_)
    if type(type_) in (types.Tuple, types.UniTuple) and len(types_in_signatures) == 1:
        layouts = [_list_array_layouts(item) if type(item) is types.Array else [item] for item in type_]
        if math.prod(map(len, layouts)) <= _MAX_TUPLES:
            return list(map(types.Tuple, itertools.product(*layouts)))
    return []


def _array_kind(type_: Any) -> Any:
    """Return the element type and the number of dimensions of an array type, in which layouts do not differ."""
    return getattr(type_, "dtype", None), getattr(type_, "ndim", None)
