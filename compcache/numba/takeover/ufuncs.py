"""Creates Numba's ufuncs for decorated functions, and records their loops for starts without Numba."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.numba.dispatch.gufunc_cache import wrapper_symbol
from compcache.numba.entries.starts import are_settings_from_environment, environments_of, find_stored, store_fields
from compcache.numba.fingerprints.history import note_code
from compcache.numba.lazy.description import Description
from compcache.numba.lazy.entries import START, Record, key_of
from compcache.numba.lazy.stand_ins import numba_decorator, real_numba
from compcache.numba.registered.refusals import NotLazy
from compcache.numba.takeover import lazy_dispatchers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compcache.numba.declarations.ufuncs import Loop
    from compcache.numba.dispatch.backend import Backend
    from compcache.numba.entries.starts import Entry
    from compcache.numba.lazy.entries import Key
    from compcache.numba.lazy.state import State

__all__ = ["make_ufunc"]


def make_ufunc(state: State, loops: Sequence[Loop]) -> Any:
    """Return Numba's ufunc for a decorated function. Import Numba if necessary.

    Args:
        state: the state of the function.
        loops: the loops that ran without Numba; the ufunc gets them.
    """
    real_numba()
    backend = None if state.reason else lazy_dispatchers.backend_for_lazy()
    if backend is None:
        return _apply_decorator(state)
    from numba.core import entrypoints

    entrypoints.init_all()
    if state.is_parallel:
        return _make_parallel(state, backend)
    return _make_gufunc(state, backend, loops) if state.decorator == "guvectorize" else _make_dufunc(state, backend, loops)


def _apply_decorator(state: State) -> Any:
    """Return the result of Numba's own decorator."""
    options = dict(state.options)
    args = [list(state.signatures)] if state.signatures is not None else []
    if state.decorator == "guvectorize":
        args.append(options.pop("signature"))
    return numba_decorator(state.decorator)(*args, **options)(state.function)


def _options_of(state: State) -> dict[str, Any]:
    """Return the options that the decorator passes on to the compiler."""
    own = ("cache", "identity", "signature", "target", "writable_args")
    return {name: value for name, value in state.options.items() if name not in own}


def _pinned_cache(state: State, backend: Backend, owner: Any, signatures: Any, loops: Sequence[Loop]) -> Any:
    """Return the cache object for the loops of a ufunc. It returns the entries of the loops that ran before."""
    from compcache.numba.takeover.declared import PinnedCache, pinned_rows

    declared = state.declared
    bases = declared.details[-1] if declared is not None else [loop.base for loop in loops]
    return PinnedCache(backend, owner, state, pinned_rows(signatures, map(tuple, bases)) if bases else {})


def _add_loops(state: State, real: Any, signatures: Any, loops: Sequence[Loop]) -> None:
    """Add the loops that ran without Numba to Numba's ufunc."""
    for signature, loop in zip(signatures, loops, strict=True):
        real.add(signature)
        note_code(lazy_dispatchers.parts_of(state, loop.key))


# ---------------------------------------------------------------------------------------------------- vectorize


def _make_dufunc(state: State, backend: Backend, loops: Sequence[Loop]) -> Any:
    """Return Numba's ufunc for a function that `vectorize` decorates."""
    from numba.np.ufunc.dufunc import DUFunc

    from compcache.numba.takeover.declared import compile_and_record, record_compiled_identities

    real = DUFunc(state.function, identity=state.options.get("identity"), targetoptions=_options_of(state))
    signatures: Any = state.signatures if state.signatures is not None else [_types_of(loop) for loop in loops]
    real._dispatcher.cache = _pinned_cache(state, backend, real._dispatcher, signatures, loops)
    if state.signatures is None:
        _add_loops(state, real, signatures, loops)
        real._compile_for_argtys = partial(_compile_loop, state, backend, real, real._compile_for_argtys)
        return real

    def compile_all() -> None:
        for signature in signatures:
            real.add(signature)
        real.disable_compile()

    compile_and_record(state, backend, compile_all, lambda: _dufunc_fields(real, backend))
    record_compiled_identities(state, real._dispatcher, is_frozen=True)
    return real


def _types_of(loop: Loop) -> tuple[Any, ...]:
    from numba.core import types

    return tuple(types.boolean if name == "bool" else getattr(types, name) for name in loop.types)


def _compile_loop(state: State, backend: Backend, real: Any, compile_for_types: Any, types: Any, return_type: Any = None) -> Any:
    """Make Numba compile a loop of a ufunc without signatures, and record the loop if possible."""
    wanted = None if return_type is not None else tuple(types)
    return _compile_and_record_loop(
        state, backend, wanted, lambda: compile_for_types(types, return_type), lambda cres: _loop_of_dufunc(real, backend, cres)
    )


def _compile_and_record_loop(
    state: State, backend: Backend, types: tuple[Any, ...] | None, compile_: Callable[[], Any],
    fields_of: Callable[[Any], tuple[Any, ...] | None],
) -> Any:  # fmt: skip
    """Make Numba compile a loop, and record the loop if possible.

    Args:
        state: the state of the ufunc's function.
        backend: the backend that stores the record.
        types: the types by which processes look the loop up; None if they do not.
        compile_: compiles the loop.
        fields_of: returns the fields of the record from the result of `compile_`, or None if only Numba can use the loop.

    Returns:
        The result of `compile_`.
    """
    key = _key_for(state, types) if types is not None else None
    is_known = key is not None and frontend.get_entry(backend.cache, key.name, START) is not None
    result = compile_()
    if is_known or key is None or key.name != getattr(_key_for(state, types), "name", None) or not are_settings_from_environment():
        return result
    try:
        fields = fields_of(result)
        if fields is not None:
            store_fields(backend.cache, key, fields)
    except (NotLazy, CompcacheError):
        pass  # this process has the loop; later processes compile it again
    return result


def _key_for(state: State, types: Any) -> Key | None:
    try:
        return key_of(state.function, state.key_options, f"{state.decorator} {tuple(map(str, types))}")
    except NotLazy:
        return None


def _dufunc_fields(real: Any, backend: Backend) -> tuple[Any, ...] | None:
    return _loop_fields([_loop_of_dufunc(real, backend, cres) for cres in real._dispatcher.overloads.values()])


def _loop_fields(loops: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the data of a ufunc's record; None if only Numba can use one of its loops."""
    usable = [loop for loop in loops if loop is not None]
    if len(usable) < len(loops):
        return None
    return [], [record for record, _, _ in usable], ([numbers for _, numbers, _ in usable], [base for _, _, base in usable])


def _loop_of_dufunc(real: Any, backend: Backend, cres: Any) -> tuple[Any, list[int], tuple[str, str]] | None:
    """Return the record of a loop, NumPy's type numbers, and the entry of the function that the loop calls.

    Returns:
        These three values; None if only Numba can use the loop.
    """
    from numba.np.ufunc.wrappers import build_ufunc_wrapper

    def build() -> Any:
        return build_ufunc_wrapper(cres.library, cres.target_context, cres.fndesc.llvm_func_name, cres.signature, False, cres)

    return _loop_of_function(real._dispatcher.cache, backend, cres, build)


def _loop_of_function(cache: Any, backend: Backend, cres: Any, build: Callable[[], Any]) -> tuple[Any, list[int], tuple[str, str]] | None:
    """Return a loop's record, NumPy's type numbers, and the entry of the function that it calls; None if only Numba can use the loop."""
    from numba.np.numpy_support import as_dtype

    entry = find_stored(cache, backend.cache, cres.signature)
    if entry is None or cres.objectmode:
        return None
    signature = cres.signature
    info = build()
    record = _store_loop(entry, backend, info, signature, "ufunc loop")
    numbers = [as_dtype(type_).num for type_ in (*signature.args, signature.return_type)]
    return None if record is None else (record, numbers, (entry.name, entry.identity.lines))


# -------------------------------------------------------------------------------------------------- guvectorize


def _make_gufunc(state: State, backend: Backend, loops: Sequence[Loop]) -> Any:
    """Return Numba's ufunc for a function that `guvectorize` decorates."""
    from numba.np.ufunc.gufunc import GUFunc

    from compcache.numba.takeover.declared import compile_and_record, record_compiled_identities

    options = state.options
    real = GUFunc(
        state.function, options["signature"], identity=options.get("identity"), cache=False, targetoptions=_options_of(state),
        writable_args=options.get("writable_args", ()), is_dynamic=state.signatures is None,
    )  # fmt: skip
    builder = real.gufunc_builder
    builder.cache = backend  # the backend stores the wrappers
    signatures: Any = state.signatures
    if signatures is None:
        signatures = [real._get_function_type(*_types_of(loop)) for loop in loops]
    builder.nb_func.cache = _pinned_cache(state, backend, builder.nb_func, signatures, loops)
    if state.signatures is None:
        _add_loops(state, real, signatures, loops)
        real.build_ufunc()
        real.add = partial(_add_loop, state, backend, builder, real.add)
        return real

    def compile_all() -> None:
        for signature in signatures:
            real.add(signature)
        real.disable_compile()
        real.build_ufunc()

    compile_and_record(state, backend, compile_all, lambda: _gufunc_fields(builder, backend))
    record_compiled_identities(state, builder.nb_func, is_frozen=True)
    return real


def _add_loop(state: State, backend: Backend, builder: Any, add: Any, signature: Any) -> None:
    """Make Numba compile a loop of a ufunc of `guvectorize` without signatures, and record the loop if possible."""

    def fields(_: Any) -> tuple[Any, ...] | None:
        loop = _loop_of_gufunc(builder, backend, builder._sigs[-1])
        return None if loop is None else (*loop, tuple(builder.writable_args))

    types = tuple(map(_element_type, signature.args)) if hasattr(signature, "args") else None
    _compile_and_record_loop(state, backend, types, lambda: add(signature), fields)


def _element_type(type_: Any) -> Any:
    from numba.core import types

    return type_.dtype if isinstance(type_, types.Array) else type_


def _gufunc_fields(builder: Any, backend: Backend, wrappers: Any = None) -> tuple[Any, ...] | None:
    """Return the data of the record of a `guvectorize` ufunc; None if only Numba can use one of its loops."""
    fields = _loop_fields([_loop_of_gufunc(builder, backend, signature, wrappers) for signature in builder._sigs])
    if fields is None:
        return None
    rows, records, numbers_and_bases = fields
    return rows, records, (builder.signature, len(builder.sin), len(builder.sout), tuple(builder.writable_args), *numbers_and_bases)


def _loop_of_gufunc(builder: Any, backend: Backend, signature: Any, wrappers: Any = None) -> tuple[Any, list[int], tuple[str, str]] | None:
    """Return the record of a loop, NumPy's type numbers, and the entry of the function that the loop calls.

    Args:
        builder: Numba's builder of the ufunc.
        backend: the backend that stores the loop.
        signature: the signature of the loop.
        wrappers: the module of Numba that builds the loop; None for loops that run on one thread.

    Returns:
        These three values; None if only Numba can use the loop.
    """
    from numba.np.numpy_support import as_dtype
    from numba.np.ufunc import wrappers as plain_wrappers

    cres = builder._cres[signature]
    entry = find_stored(builder.nb_func.cache, backend.cache, cres.signature)
    if entry is None or cres.objectmode:
        return None
    operands = builder.py_func, cres, builder.sin, builder.sout
    record = None
    if wrappers is None:  # the loop is Numba's wrapper, which the backend stored when it was compiled
        wrapper = plain_wrappers._GufuncWrapper(*operands, backend, is_parfors=False)
        record = _find_stored_loop(entry, wrapper.cache.find(cres.signature, cres.target_context), wrapper_symbol(cres))
    if record is None:
        info = (wrappers or plain_wrappers).build_gufunc_wrapper(*operands, cache=False, is_parfors=False)
        record = _store_loop(entry, backend, info, cres.signature, f"loop of {builder.signature}")
    numbers = [as_dtype(_element_type(type_)).num for type_ in cres.signature.args]
    return None if record is None else (record, numbers, (entry.name, entry.identity.lines))


# ------------------------------------------------------------------------------------------------------ threads


def _make_parallel(state: State, backend: Backend) -> Any:
    """Return a NumPy ufunc with declared signatures, whose loops run on Numba's threads."""
    from numba.np.ufunc import parallel

    from compcache.numba.takeover.declared import compile_and_record, record_compiled_identities

    common = {"identity": state.options.get("identity"), "cache": False, "targetoptions": _options_of(state)}
    is_general = state.decorator == "guvectorize"
    builder: Any
    if is_general:
        writable = state.options.get("writable_args", ())
        builder = parallel.ParallelGUFuncBuilder(state.function, state.options["signature"], writable_args=writable, **common)
        builder.cache = backend  # the backend stores the wrappers
    else:
        builder = parallel.ParallelUFuncBuilder(state.function, **common)
    signatures = state.signatures or ()
    builder.nb_func.cache = _pinned_cache(state, backend, builder.nb_func, signatures, ())
    built = []

    def compile_all() -> None:
        for signature in signatures:
            builder.add(signature)
        builder.disable_compile()
        built.append(builder.build_ufunc())

    def fields() -> tuple[Any, ...] | None:
        if is_general:
            return _gufunc_fields(builder, backend, parallel)
        return _loop_fields([_loop_of_parallel(builder, backend, signature) for signature in builder._sigs])

    compile_and_record(state, backend, compile_all, fields)
    record_compiled_identities(state, builder.nb_func, is_frozen=True)
    return built[0]


def _loop_of_parallel(builder: Any, backend: Backend, signature: Any) -> tuple[Any, list[int], tuple[str, str]] | None:
    """Return the record of a parallel loop, NumPy's type numbers, and the entry of its function; None if only Numba can use the loop."""
    from numba.np.ufunc.parallel import build_ufunc_wrapper

    cres = builder._cres[signature]

    def build() -> Any:
        return build_ufunc_wrapper(cres.library, cres.target_context, cres.fndesc.llvm_func_name, cres.signature, cres)

    return _loop_of_function(builder.nb_func.cache, backend, cres, build)


# -------------------------------------------------------------------------------------------------------- loops


def _find_stored_loop(entry: Entry, library: Any, symbol: str) -> tuple[Any, ...] | None:
    """Return the fields of the record for a loop in a stored library; None if the library is not an image, or lacks the loop."""
    stored = getattr(library, "stored", None)
    if stored is None or symbol not in stored.symbols:
        return None
    environments = environments_of(stored.symbols, {**stored.constants, **entry.constants})
    if environments is None:
        return None
    number = stored.symbols.index(symbol)
    return Record(stored.name, stored.lines, stored.description.implementations, number, environments).fields


def _store_loop(entry: Entry, backend: Backend, info: Any, signature: Any, kind: str) -> tuple[Any, ...] | None:
    """Store the code of a loop that NumPy calls.

    Returns:
        The fields of its record; None if the code cannot be linked as an image, or if its constants need Numba.
    """
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.environment import lookup_environment

    from compcache.numba.entries.image_source import CannotLink, prepare_image
    from compcache.numba.entries.save import assembly_of, publish

    with global_compiler_lock:
        info.library.finalize()
    symbol = info.name.replace(_number_of_kernel(info), "")
    text = assembly_of(info.library, info.library._final_module, (info.name,))
    if text is None:
        return None
    try:
        source = prepare_image(text.replace(_number_of_kernel(info), ""), (symbol,))
    except CannotLink:
        return None
    constants = dict(entry.constants)
    for name in source.environments:
        environment = lookup_environment(name)
        if name not in constants and environment is not None:
            constants[name] = list(environment.consts)
    environments = environments_of(source.symbols, constants)
    if environments is None or symbol not in source.symbols:
        return None
    known = entry.description
    description = Description(known.cpu, known.lines, known.dependencies, known.asked, known.answered, b"", b"")
    # The digest distinguishes loops of the same function in other source lines.
    name = f"{entry.name} {kind}-{blake2b(source.text.encode(), digest_size=8).hexdigest()}"
    publish(backend.cache, entry.identity, name, signature, source, description, part_of=entry.name)
    return Record(name, entry.identity.lines, description.implementations, source.symbols.index(symbol), environments).fields


def _number_of_kernel(info: Any) -> str:
    """Return the process-specific number in the name of a parallel loop (`numba.np.ufunc.parallel.build_gufunc_kernel`)."""
    return f"{id(info.env)}_"
