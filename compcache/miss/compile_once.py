"""The miss path of `get_or_compile`: one builder at a time, bounded waits, and no failures because of storage errors."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from compcache.content.names import source_of
from compcache.errors import CompcacheError, CompileError, NotCachedError, StorageError, UndefinedSymbolError
from compcache.hit.miss import unfit_function
from compcache.interrupts import suppress
from compcache.miss.claim import note_modules, note_use, single_flight
from compcache.miss.held import keep_received
from compcache.miss.publication import publish_built, publish_or_keep
from compcache.miss.retarget import accept_own_llvm, load_retargeted
from compcache.miss.staleness import names_with_other_source
from compcache.publish.writer import keep_in_memory
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from compcache.build.source import ModuleSource
    from compcache.formats.built_module import BuiltModule
    from compcache.hit.loader import Accept
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.remote.client import Inquiry
    from compcache.session import Session

_Result = TypeVar("_Result")

__all__ = ["Addition", "add_missing", "compile_missing", "compile_once", "fetch_and_load", "fetch_soon", "find_addition"]

#: For how many seconds a miss waits for the remote store before it compiles, if no longer compile time is known.
HEDGE_SECONDS = 0.15
#: The maximum number of calls of `build` while other processes remove functions that it needs.
_MOST_BUILDS = 8


def compile_once(session: Session, name: str | Identity, func_name: str, build: Callable[[], Any], miss: Exception) -> TypedCallTarget:
    """Build, publish and load a function, or load it if another process publishes it first.

    Args:
        session: the cache.
        name: the func_name, or the identity that it derives from.
        func_name: the function.
        build: returns the code of the function.
        miss: the exception that the look-up raised.

    Raises:
        TypeError: `build` is not callable.
        CompileError, LinkError, ...: the errors of `Cache.get_or_compile`.
    """
    if not callable(build):
        raise TypeError(
            f"get_or_compile(): build must be a function that returns the code, not {type(build).__name__}; "
            "compile(code) takes the code itself"
        )
    target = _compile_once(session, name, func_name, build, miss)
    note_use(session.store.root, target)
    return target


def _compile_once(session: Session, name: str | Identity, func_name: str, build: Callable[[], Any], miss: Exception) -> TypedCallTarget:
    """Load a function that was stored meanwhile, fetch it, or build it. `miss` is the error of the look-up. Errors: see `compile_once`."""
    is_absent = isinstance(miss, NotCachedError) and miss.__cause__ is None
    with single_flight(session, func_name, absent=is_absent) as may_be_stored:
        if may_be_stored:
            try:
                return _load_stored_function(session, func_name)
            except CompcacheError as error:
                miss = error
        with _inquire(session, (func_name,)) as inquiry:
            if inquiry is not None and inquiry.wait_for_functions(HEDGE_SECONDS):
                try:
                    target: TypedCallTarget = session.loader.load(func_name)
                except CompcacheError as error:
                    miss = error
                else:
                    session.store.stats.missed(miss)
                    return target
            identity = None if isinstance(name, str) else name
            session.store.stats.missed(miss)
            return _build_and_use(
                session,
                (func_name,),
                lambda: source_of(build(), func_name, identity),
                inquiry,
                fetched=partial(_try_load, session, func_name),
                use=partial(_publish_and_load, session, func_name, miss),
            )


@contextmanager
def _inquire(session: Session, names: tuple[str, ...]) -> Iterator[Inquiry | None]:
    """Request functions from the remote store before they are compiled. Other hosts wait for them until the context ends.

    Yields:
        The inquiry, or None if there is nothing to request or no store accepts requests.
    """
    inquiry = session.inquire(names, compiles=True)
    try:
        yield inquiry
    finally:
        if inquiry is not None:
            inquiry.close()


def compile_missing(
    session: Session, find_missing: Callable[[], tuple[str, ...]], build: Callable[[tuple[str, ...]], ModuleSource]
) -> bool:
    """Compile and store the missing functions of one source, without loading them. A module that cannot be stored is kept in memory.

    Args:
        session: the cache.
        find_missing: returns the missing functions. It is called again after the remote store has answered.
        build: returns a source that exports the functions that it is called with.

    Returns:
        Whether any functions were compiled.

    Raises:
        CompileError, LinkError, ...: the errors of `build` and of `Cache.add_module`.
    """
    functions = find_missing()
    if not functions:
        return False
    session.store.stats.missed(NotCachedError.of(functions[0], session.store.root))
    with _inquire(session, functions) as inquiry:
        if inquiry is not None and inquiry.wait_for_functions(HEDGE_SECONDS):
            functions = find_missing()
            if not functions:
                return False

        def publish(built: BuiltModule) -> bool:
            """Store the compiled module. Return True, because functions were compiled."""
            publish_or_keep(session, functions[0], built)
            return True

        def fetched() -> bool | None:
            """Return None while functions are missing, then False, because nothing was compiled."""
            return None if find_missing() else False

        return _build_and_use(session, functions, lambda: build(functions), inquiry, fetched=fetched, use=publish)


class Addition(NamedTuple):
    """The result of `compcache.frontend.add_missing` and `compcache.frontend.find_stored`.

    Attributes:
        functions: the names of the functions.
        module_ids: the ids of their modules.
        size: the size of the modules in bytes.
        was_cached: whether the cache had all of the functions, so that nothing was built.
    """

    functions: tuple[str, ...]
    module_ids: tuple[str, ...]
    size: int
    was_cached: bool


def add_missing(
    session: Session, functions: tuple[str, ...], build: Callable[[], ModuleSource], source: ModuleSource | None = None
) -> Addition:
    """Implement `compcache.frontend.add_missing`, which describes the arguments and the exceptions."""
    if not functions:
        raise ValueError("add_missing() requires the name of at least one function")
    addition = _add_missing(session, functions, build, source)
    note_modules(session.store.root, map(bytes.fromhex, addition.module_ids))
    return addition


def _add_missing(session: Session, functions: tuple[str, ...], build: Callable[[], ModuleSource], source: ModuleSource | None) -> Addition:
    """Return the stored functions, or build and store them. Exceptions: see `add_missing`."""
    stored = _find_complete(session, functions, source)
    if stored is not None:
        return stored
    with single_flight(session, functions[0], absent=False) as may_be_stored:
        stored = _find_complete(session, functions, source) if may_be_stored else None
        if stored is not None:
            return stored
        with _inquire(session, functions) as inquiry:
            if inquiry is not None and inquiry.wait_for_functions(HEDGE_SECONDS):
                stored = _find_complete(session, functions)
                if stored is not None:
                    return stored
            return _build_and_use(
                session, functions, build, inquiry, fetched=partial(_find_complete, session, functions), use=partial(_publish, session)
            )


def _find_complete(session: Session, functions: tuple[str, ...], source: ModuleSource | None = None) -> Addition | None:
    """Return the stored functions as `find_addition` does. Once a load of the cache has met a missing import, require their imports, too.

    Otherwise a function that lost an import would count as stored forever, and no `build` would provide the import again.
    """
    stored = find_addition(session, functions, source)
    if stored is not None and session.store.met_missing_import and any(map(session.loader.lacks_import, functions)):
        return None
    return stored


def _publish(session: Session, built: BuiltModule) -> Addition:
    """Store a built module, and return what was added. Raise `StorageError` if the module could not be stored."""
    module_id = publish_built(session, [built])[0][0]
    names = tuple([name for name, *_ in built.functions])
    return Addition(names, (module_id,), _module_size(session, bytes.fromhex(module_id)), was_cached=False)


def fetch_and_load(session: Session, func_name: str, error: CompcacheError, accept: Accept | None = None) -> TypedCallTarget | None:
    """Fetch a function from the remote store and load it.

    `error` is the exception of the look-up in the cache, and `accept` the parameter of `Loader.load`.

    Returns:
        The call target, or None if the function is not fetched in the time that compiling takes, or cannot be loaded. Nothing is fetched
        if `error` is not about a missing function.
    """
    if not isinstance(error, (NotCachedError, UndefinedSymbolError)) or not fetch_soon(session, func_name):
        return None
    return _try_load(session, func_name, accept)


def fetch_soon(session: Session, name: str) -> bool:
    """Fetch a name from the remote store, and return whether it was fetched in time.

    The wait is that of `Inquiry.wait_for_functions` with `HEDGE_SECONDS`.
    """
    inquiry = session.inquire((name,))
    if inquiry is None:
        return False
    if inquiry.wait_for_functions(HEDGE_SECONDS):
        return bool(inquiry.fetched)
    inquiry.record_late_answer()
    inquiry.close()
    return False


def find_addition(session: Session, functions: tuple[str, ...], source: ModuleSource | None = None) -> Addition | None:
    """Return the stored functions, or None if one is missing or was compiled from another source. See `compcache.frontend.find_stored`."""
    if not all(map(session.has, functions)):
        return None
    if source is not None and names_with_other_source(session.store, functions, source):
        return None
    modules = dict([_first_module(session, func_name) for func_name in functions])
    return Addition(functions, tuple(filter(None, modules)), sum(modules.values()), was_cached=True)


def _first_module(session: Session, func_name: str) -> tuple[str, int]:
    """Return the id and the size in bytes of a module that contains the function, or "" and 0 if there is no such module now."""
    for module_id, _ in session.store.find(func_name):
        size = _module_size(session, module_id)
        if size:
            return module_id.hex(), size
    return "", 0


def _module_size(session: Session, module_id: bytes) -> int:
    """Return the size of a stored module in bytes, or 0 if it does not exist."""
    with suppress(OSError):
        return session.store.status_of(module_id)[0]
    return 0


def _load_stored_function(session: Session, func_name: str) -> TypedCallTarget:
    """Load a stored function, and count a hit. Compile it for this host if necessary, and count a miss, too. See `Cache.get_target`."""
    started = perf_counter()
    try:
        target: TypedCallTarget = session.loader.load(func_name)
    except CompcacheError as error:
        if not session.retargets or unfit_function(error, func_name) is None:
            raise
        target = load_retargeted(session, func_name, None, None, error)
        session.store.stats.missed(error)
    session.store.stats.hit(func_name, target._context.module.module_id, perf_counter() - started)
    return target


def _build_and_use(
    session: Session, functions: tuple[str, ...], build: Callable[[], ModuleSource], inquiry: Inquiry | None, *,
    fetched: Callable[[], _Result | None], use: Callable[[BuiltModule], _Result],
) -> _Result:  # fmt: skip
    """Build and compile a source that must export these functions, and return the result of `use` for the module.

    If other processes remove functions that the code needs before `use` returns, `build` is called again, at most `_MOST_BUILDS` times. The
    remote store's answer does not interrupt `build`. If the store has provided the functions before code is generated, the result of
    `fetched` is returned, unless it is None. The same holds if the cache accepts code of this process's LLVM from now on
    (`accept_own_llvm`).

    Raises:
        UndefinedSymbolError: the source does not export one of the functions, or nothing defines a symbol although `build` was called
            once more.
        CompileError, LinkError, ...: the errors of `Cache.add_module` and of `use`.
    """
    stored = fetched() if session.store.min_llvm and accept_own_llvm(session.store) else None
    if stored is not None:
        return stored
    needs: tuple[str, ...] = ()
    builds = 0
    while True:
        source = build()
        builds += 1
        are_needs_met = all(map(session.can_import, needs))
        if inquiry is not None:
            fetched_result = fetched() if inquiry.wait_for_functions() else None
            if fetched_result is not None:
                return fetched_result
            inquiry.record_late_answer()
        try:
            return use(_compile_exporting(session, functions, source, inquiry))
        except UndefinedSymbolError as error:
            if builds == _MOST_BUILDS or not are_needs_met or not error.symbols or not set(functions).isdisjoint(error.symbols):
                raise
            needs = error.symbols
        inquiry = None


def _compile_exporting(session: Session, functions: tuple[str, ...], source: ModuleSource, inquiry: Inquiry | None) -> BuiltModule:
    """Compile a source that must export these functions, and record the time in `inquiry`, if there is one.

    Raises:
        UndefinedSymbolError: the source does not export one of the functions.
        CompileError, LinkError, ...: the errors of `Cache.add_module`.
    """
    from compcache.miss.build import build_source  # imports LLVM, which functions of the remote store do not need

    try:
        built = _retry_with_received(session, partial(build_source, session, source))
    except CompileError as error:
        raise CompileError(f"the code of {functions[0]!r} cannot be compiled: {error}") from error
    if inquiry is not None:
        inquiry.record_compilation(built.seconds)
    names = [name for name, *_ in built.functions]
    missing = [name for name in functions if name not in names]
    if missing:
        exported_text = join_first(map(repr, names), 20)
        raise UndefinedSymbolError(
            f"build() for {functions[0]!r} returned a module that does not export {missing[0]!r} (exported: {exported_text}): export each "
            "requested function",
            symbols=missing,
        )
    return built


def _retry_with_received(session: Session, action: Callable[[], _Result]) -> _Result:
    """Call an action, and return its result. If it misses functions that this thread's builds received, keep them in memory and retry.

    Raise `UndefinedSymbolError` if a function is missing that no build of this thread has received.
    """
    names: set[str] = set()
    while True:
        try:
            return action()
        except UndefinedSymbolError as error:
            if names.issuperset(error.symbols) or not keep_received(session, error.symbols):
                raise
            names.update(error.symbols)


def _try_load(session: Session, func_name: str, accept: Accept | None = None) -> TypedCallTarget | None:
    """Load a function that was fetched from the remote store. Return None if it cannot be loaded."""
    try:
        target: TypedCallTarget = session.loader.load(func_name, accept=accept)
    except CompcacheError:
        return None
    return target


def _publish_and_load(session: Session, func_name: str, miss: Exception, built: BuiltModule) -> TypedCallTarget:
    """Publish the built module, load its function, and return the call target. See `Loader.load` for the exceptions.

    If other processes have removed the module, or functions that the build received, keep them in memory.
    """
    publish_or_keep(session, func_name, built)
    load: Callable[[], TypedCallTarget] = partial(session.loader.load, func_name)
    try:
        try:
            return _retry_with_received(session, load)
        except (NotCachedError, StorageError):
            keep_in_memory(session.store, built)  # removed since its publication, or unreadable
        return _retry_with_received(session, load)
    except CompcacheError as error:
        error.__context__ = miss
        raise
