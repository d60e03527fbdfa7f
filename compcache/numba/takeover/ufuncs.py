"""Creates Numba's ufuncs for decorated functions, and records their loops for starts without Numba."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from numba.core import entrypoints, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.np.numpy_support import as_dtype
from numba.np.ufunc import parallel
from numba.np.ufunc import wrappers as plain_wrappers
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc

from compcache import frontend
from compcache.errors import CompcacheError
from compcache.numba.compilation import native_code
from compcache.numba.dispatch.gufunc_cache import wrapper_symbol
from compcache.numba.entries.image_source import CannotLink, prepare_image
from compcache.numba.entries.load import run_image
from compcache.numba.entries.save import assembly_of, publish_entry
from compcache.numba.entries.starts import are_settings_from_environment, find_stored_entry, pickle_environments, store_fields
from compcache.numba.lazy.description import Description
from compcache.numba.lazy.entries import START, Record, key_of
from compcache.numba.registered.refusals import NotLazy
from compcache.numba.takeover import lazy_dispatchers
from compcache.numba.takeover.declared import compile_and_record, make_pinned_cache, record_compiled_identities

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from compcache.numba.declarations.ufuncs import LoadedLoop
    from compcache.numba.dispatch import Backend
    from compcache.numba.entries.starts import Entry
    from compcache.numba.lazy.entries import Key
    from compcache.numba.lazy.state import State

    #: The fields of a loop's record, NumPy's type numbers, and the name and the lines of the called function's entry.
    LoopFields = tuple[Any, list[int], tuple[str, str]]

__all__ = ["make_ufunc"]


def make_ufunc(state: State, loops: Sequence[LoadedLoop]) -> Any:
    """Return Numba's ufunc for a decorated function, with the loops that ran without Numba."""
    backend = None if state.reason else lazy_dispatchers.find_lazy_backend()
    if backend is None:
        return lazy_dispatchers.apply_decorator(state, state.signatures, use_numba_cache=True)
    entrypoints.init_all()
    if state.is_parallel:
        return _make_parallel(state, backend)
    return _make_gufunc(state, backend, loops) if state.decorator == "guvectorize" else _make_dufunc(state, backend, loops)


def _compiler_options(state: State) -> dict[str, Any]:
    """Return the options that the decorator passes on to the compiler."""
    decorator_options = ("cache", "identity", "signature", "target", "writable_args")
    return {name: value for name, value in state.options.items() if name not in decorator_options}


def _make_dufunc(state: State, backend: Backend, loops: Sequence[LoadedLoop]) -> Any:
    """Return Numba's ufunc for a function that `vectorize` decorates. Compile and record the loops of declared signatures."""
    ufunc = DUFunc(state.function, identity=state.options.get("identity"), targetoptions=_compiler_options(state))
    signatures: Any = state.signatures if state.signatures is not None else [_numba_types(loop) for loop in loops]
    ufunc._dispatcher.cache = make_pinned_cache(state, backend, ufunc._dispatcher, signatures, loops)
    if state.signatures is None:
        for signature in signatures:  # of the loops that ran without Numba
            ufunc.add(signature)
        ufunc._compile_for_argtys = partial(_compile_dufunc_loop, state, backend, ufunc, ufunc._compile_for_argtys)
        return ufunc

    stored = _StoredLoops(ufunc, backend)

    def make_fields() -> tuple[Any, ...] | None:
        return _join_loop_fields([stored.fields_of(cres) for cres in ufunc._dispatcher.overloads.values()])

    with stored.storing() if state.declared is None and state.key is not None and are_settings_from_environment() else nullcontext():
        _compile_declared(state, backend, ufunc, ufunc._dispatcher, make_fields)
    return ufunc


def _compile_declared(
    state: State, backend: Backend, ufunc: Any, dispatcher: Any, make_fields: Callable[[], Any], build: Callable[[], Any] | None = None
) -> Any:
    """Compile the signatures of a declared ufunc, and record its loops for starts without Numba.

    `ufunc` is Numba's ufunc, or its builder. Return the result of `build`, which builds the NumPy ufunc, or `ufunc` without `build`.
    """
    built = []

    def compile_all() -> None:
        """Add the loops of all declared signatures. Then disable compilation, as Numba does."""
        for signature in state.signatures or ():
            ufunc.add(signature)
        ufunc.disable_compile()
        built.append(build() if build is not None else ufunc)

    compile_and_record(state, backend, compile_all, make_fields)
    record_compiled_identities(state, dispatcher, is_frozen=True)
    return built[0]


def _numba_types(loop: LoadedLoop) -> tuple[Any, ...]:
    """Return the Numba types of a loop's operands."""
    return tuple(types.boolean if name == "bool" else getattr(types, name) for name in loop.types)


def _compile_dufunc_loop(state: State, backend: Backend, ufunc: Any, compile_for_types: Any, types: Any, return_type: Any = None) -> Any:
    """Make Numba compile a loop of a `vectorize` ufunc without signatures, and record the loop if possible. Return the compile result."""
    stored = _StoredLoops(ufunc, backend)
    key_types = None if return_type is not None else tuple(types)
    return _compile_and_record_loop(
        state, backend, key_types, lambda: compile_for_types(types, return_type), stored.fields_of, stored.storing
    )


def _compile_and_record_loop(
    state: State, backend: Backend, types: tuple[Any, ...] | None, compile_: Callable[[], Any],
    make_fields: Callable[[Any], tuple[Any, ...] | None], storing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Any:  # fmt: skip
    """Make Numba compile a loop with `compile_`, record the loop if possible, and return the compile result.

    Processes look up the loop by `types`; None if no process looks it up. `make_fields` returns the fields of the record for the compile
    result, or None if only Numba can use the loop. A loop that may be recorded is compiled within `storing`.
    """
    key = _find_loop_key(state, types) if types is not None and are_settings_from_environment() else None
    if key is not None and frontend.get_entry(backend.cache, key.name, START) is not None:
        key = None
    with storing() if key is not None else nullcontext():
        result = compile_()
    if key is None or key.name != getattr(_find_loop_key(state, types), "name", None):
        return result
    try:
        fields = make_fields(result)
        if fields is not None:
            store_fields(backend.cache, key.name, fields)
    except (NotLazy, CompcacheError):
        pass  # this process has the loop; later processes compile it again
    return result


def _find_loop_key(state: State, types: Any) -> Key | None:
    """Return the present key of a loop for these types, or None if the function needs Numba."""
    try:
        return key_of(state.function, state.key_options, f"{state.decorator} {tuple(map(str, types))}")
    except NotLazy:
        return None


def _join_loop_fields(loops: Sequence[LoopFields | None]) -> tuple[Any, ...] | None:
    """Return the fields of a ufunc's record, or None if only Numba can use one of the loops."""
    usable = [loop for loop in loops if loop is not None]
    if len(usable) < len(loops):
        return None
    return [], [record for record, _, _ in usable], ([numbers for _, numbers, _ in usable], [fields for _, _, fields in usable])


class _BuiltLoop(NamedTuple):
    """A loop that Numba has built, with the attributes of Numba's own descriptions of loops.

    Attributes:
        library: the library with the loop.
        env: the environment of the function that the loop calls.
        name: the symbol of the loop.
    """

    library: Any
    env: Any
    name: str


class _StoredLoops:
    """Stores the loops of a `vectorize` ufunc when Numba requests their addresses, so that this process runs the stored code.

    Otherwise the code of each loop would be built and generated twice: for this process, and for later ones.
    """

    def __init__(self, ufunc: Any, backend: Backend) -> None:
        self._ufunc = ufunc
        self._backend = backend
        self._fields: dict[str, LoopFields | CompcacheError | None] = {}  # by the symbol of the loop

    def storing(self) -> AbstractContextManager[None]:
        """Return a context manager that stores the loops that this thread compiles in its block."""
        return native_code.before_requests(self._store)

    def fields_of(self, cres: Any) -> LoopFields | None:
        """Return the fields of the loop of a compiled function, or None if only Numba can use the loop.

        Raise `CompcacheError` if the loop could not be stored.
        """
        fields = self._fields.get(_loop_symbol(cres))
        if isinstance(fields, CompcacheError):
            raise fields
        return fields

    def _store(self, library: Any, symbol: str) -> None:
        """Store the loop that has this symbol. Do nothing if the ufunc has no such loop."""
        dispatcher = self._ufunc._dispatcher
        cres = next((cres for cres in dispatcher.overloads.values() if _loop_symbol(cres) == symbol), None)
        if cres is None:
            return
        build = partial(_BuiltLoop, library, cres.environment, symbol)
        try:
            self._fields[symbol] = _record_built_loop(dispatcher.cache, self._backend, cres, build, is_requested=True)
        except CompcacheError as error:
            self._fields[symbol] = error


def _loop_symbol(cres: Any) -> str:
    """Return the symbol of the loop that Numba builds for a compiled function."""
    return f"__ufunc__.{cres.fndesc.llvm_func_name}"


def _record_built_loop(
    cache: Any, backend: Backend, cres: Any, build: Callable[[], Any], *, is_requested: bool = False
) -> LoopFields | None:
    """Store a loop that calls a function, and return the loop's fields, or None if only Numba can use the loop.

    `cache` and `cres` are the cache object and the compile result of the function. `build` builds the loop and returns Numba's description.
    `is_requested` is as in `_store_loop`.
    """
    signature = cres.signature
    entry = find_stored_entry(cache, backend.cache, signature)
    if entry is None or cres.objectmode:
        return None
    record = _store_loop(entry, backend, build(), signature, "ufunc loop", is_requested=is_requested)
    numbers = [as_dtype(type_).num for type_ in (*signature.args, signature.return_type)]
    return None if record is None else (record, numbers, (entry.name, entry.identity.lines))


def _make_gufunc(state: State, backend: Backend, loops: Sequence[LoadedLoop]) -> Any:
    """Return Numba's ufunc for a function that `guvectorize` decorates. Compile and record the loops of declared signatures."""
    options = state.options
    ufunc = GUFunc(
        state.function, options["signature"], identity=options.get("identity"), cache=False, targetoptions=_compiler_options(state),
        writable_args=options.get("writable_args", ()), is_dynamic=state.signatures is None,
    )  # fmt: skip
    builder = ufunc.gufunc_builder
    builder.cache = backend  # the backend stores the wrappers
    signatures: Any = state.signatures
    if signatures is None:
        signatures = [ufunc._get_function_type(*_numba_types(loop)) for loop in loops]
    builder.nb_func.cache = make_pinned_cache(state, backend, builder.nb_func, signatures, loops)
    if state.signatures is None:
        for signature in signatures:  # of the loops that ran without Numba
            ufunc.add(signature)
        ufunc.build_ufunc()
        ufunc.add = partial(_compile_gufunc_loop, state, backend, builder, ufunc.add)
        return ufunc

    _compile_declared(state, backend, ufunc, builder.nb_func, lambda: _make_gufunc_fields(builder, backend), ufunc.build_ufunc)
    return ufunc


def _compile_gufunc_loop(state: State, backend: Backend, builder: Any, add: Any, signature: Any) -> None:
    """Make Numba compile a loop of a `guvectorize` ufunc without signatures, and record the loop if possible."""

    def make_fields(_: Any) -> tuple[Any, ...] | None:
        """Return the fields of the loop that was compiled last, or None if only Numba can use it."""
        loop = _record_gufunc_loop(builder, backend, builder._sigs[-1])
        return None if loop is None else (*loop, tuple(builder.writable_args))

    types = tuple(map(_element_type, signature.args)) if hasattr(signature, "args") else None
    _compile_and_record_loop(state, backend, types, lambda: add(signature), make_fields)


def _element_type(type_: Any) -> Any:
    """Return the type of an array type's elements, or the type itself if it is not an array type."""
    return type_.dtype if isinstance(type_, types.Array) else type_


def _make_gufunc_fields(builder: Any, backend: Backend, wrappers: Any = None) -> tuple[Any, ...] | None:
    """Return the fields of a gufunc's record; None if only Numba can use one of the loops. See `_record_gufunc_loop` for `wrappers`."""
    fields = _join_loop_fields([_record_gufunc_loop(builder, backend, signature, wrappers) for signature in builder._sigs])
    if fields is None:
        return None
    rows, records, numbers_and_entries = fields
    return rows, records, (builder.signature, len(builder.sin), len(builder.sout), tuple(builder.writable_args), *numbers_and_entries)


def _record_gufunc_loop(builder: Any, backend: Backend, signature: Any, wrappers: Any = None) -> LoopFields | None:
    """Store the loop for a signature of a `guvectorize` ufunc, and return its fields, or None if only Numba can use the loop.

    `wrappers` is Numba's module that builds a parallel loop; None for a loop that runs on one thread.
    """
    cres = builder._cres[signature]
    entry = find_stored_entry(builder.nb_func.cache, backend.cache, cres.signature)
    if entry is None or cres.objectmode:
        return None
    operands = builder.py_func, cres, builder.sin, builder.sout
    record = None
    if wrappers is None:  # the loop is Numba's wrapper, which the backend stored after its compilation
        wrapper = plain_wrappers._GufuncWrapper(*operands, backend, is_parfors=False)
        find = partial(wrapper.cache.find_wrapper, cres.signature, cres.target_context)
        record = _find_stored_loop(entry, find() or (wrapper.build() and find()), wrapper_symbol(cres))
    if record is None:
        info = (wrappers or plain_wrappers).build_gufunc_wrapper(*operands, cache=False, is_parfors=False)
        record = _store_loop(entry, backend, info, cres.signature, f"loop of {builder.signature}")
    numbers = [as_dtype(_element_type(type_)).num for type_ in cres.signature.args]
    return None if record is None else (record, numbers, (entry.name, entry.identity.lines))


def _make_parallel(state: State, backend: Backend) -> Any:
    """Compile and record a NumPy ufunc with declared signatures whose loops run on Numba's threads, and return the ufunc."""
    common = {"identity": state.options.get("identity"), "cache": False, "targetoptions": _compiler_options(state)}
    is_gufunc = state.decorator == "guvectorize"
    builder: Any
    if is_gufunc:
        writable = state.options.get("writable_args", ())
        builder = parallel.ParallelGUFuncBuilder(state.function, state.options["signature"], writable_args=writable, **common)
        builder.cache = backend  # the backend stores the wrappers
    else:
        builder = parallel.ParallelUFuncBuilder(state.function, **common)
    builder.nb_func.cache = make_pinned_cache(state, backend, builder.nb_func, state.signatures or ())

    def make_fields() -> tuple[Any, ...] | None:
        """Return the fields of the ufunc's record, or None if only Numba can use one of the loops."""
        if is_gufunc:
            return _make_gufunc_fields(builder, backend, parallel)
        return _join_loop_fields([_record_parallel_loop(builder, backend, signature) for signature in builder._sigs])

    return _compile_declared(state, backend, builder, builder.nb_func, make_fields, builder.build_ufunc)


def _record_parallel_loop(builder: Any, backend: Backend, signature: Any) -> LoopFields | None:
    """Store a parallel loop of a `vectorize` ufunc, and return its fields, or None if only Numba can use the loop."""
    cres = builder._cres[signature]
    build = partial(parallel.build_ufunc_wrapper, cres.library, cres.target_context, cres.fndesc.llvm_func_name, cres.signature, cres)
    return _record_built_loop(builder.nb_func.cache, backend, cres, build)


def _find_stored_loop(entry: Entry, library: Any, symbol: str) -> tuple[Any, ...] | None:
    """Return the fields of the record for a loop in a stored library.

    The result is None if the library is not a stored image, if the image lacks the loop, or if a constant needs Numba.
    """
    stored = getattr(library, "stored", None)
    if stored is None or symbol not in stored.symbols:
        return None
    environments = pickle_environments(stored.symbols, {**stored.constants, **entry.constants})
    if environments is None:
        return None
    number = stored.symbols.index(symbol)
    return Record(stored.name, stored.lines, stored.description.implementations, number, environments).fields


def _store_loop(
    entry: Entry, backend: Backend, info: Any, signature: Any, kind: str, *, is_requested: bool = False
) -> tuple[Any, ...] | None:
    """Store the code of a loop that NumPy calls, and return the fields of its record.

    The result is None if the code cannot be linked as an image, or if a constant needs Numba. `entry` is the entry of the function that the
    loop calls, and `info` is Numba's description of the loop. `signature` is only displayed. `kind` becomes part of the entry's name.
    `is_requested` is whether this process is about to run the loop; then it runs the stored code.
    """
    with global_compiler_lock:
        info.library._ensure_finalized()
    symbol = info.name.replace(_kernel_number(info), "")
    text = assembly_of(info.library, info.library._final_module, (info.name,))
    if text is None:
        return None
    try:
        source = prepare_image(text.replace(_kernel_number(info), ""), (symbol,))
    except CannotLink:
        return None
    constants = dict(entry.constants)
    for name in source.environments:
        environment = lookup_environment(name)
        if name not in constants and environment is not None:
            constants[name] = list(environment.consts)
    environments = pickle_environments(source.symbols, constants)
    if environments is None or symbol not in source.symbols:
        return None
    called = entry.description
    description = Description(called.cpu, called.lines, called.dependencies, called.asked, called.answered, b"", b"")
    # The digest distinguishes loops of the same function in other source lines.
    name = f"{entry.name} {kind}-{blake2b(source.text.encode(), digest_size=8).hexdigest()}"
    publish_entry(backend.cache, entry.identity, name, signature, source, description, part_of=entry.name)
    if is_requested:
        run_image(backend.cache, name, description, source.symbols, info.library)
    return Record(name, entry.identity.lines, description.implementations, source.symbols.index(symbol), environments).fields


def _kernel_number(info: Any) -> str:
    """Return the process-specific part of a parallel loop's name, which `numba.np.ufunc.parallel.build_gufunc_kernel` creates."""
    return f"{id(info.env)}_"
