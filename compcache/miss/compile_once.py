"""The miss path of `get_or_compile`: one builder at a time, bounded waits, and no failures because of storage errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, overload

from compcache.content.names import source_of
from compcache.errors import CompcacheError, CompileError, NotCachedError, StorageError, UndefinedSymbolError
from compcache.files import reraise_interrupt
from compcache.miss.claim import note_use, single_flight
from compcache.miss.held import keep_received
from compcache.miss.load import load
from compcache.miss.publication import publish_built
from compcache.miss.staleness import maker_digest, names_with_other_source
from compcache.publish.quarantine import warn_not_stored
from compcache.publish.writer import keep_in_memory

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

__all__ = ["Addition", "add_missing", "compile_missing", "compile_once", "fetch_and_load", "fetch_soon", "find_stored"]

#: For how many seconds a miss waits for the remote store before it compiles, if the compile time is unknown.
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
    is_absent = isinstance(miss, NotCachedError) and miss.__cause__ is None
    with single_flight(session, func_name, absent=is_absent) as may_be_stored:
        if may_be_stored:
            try:
                return load(session, func_name)
            except CompcacheError as error:
                miss = error
        with _inquire(session, (func_name,)) as inquiry:
            if inquiry is not None and inquiry.wait_for_functions(HEDGE_SECONDS):
                try:
                    return _load_fetched(session, func_name, miss)
                except CompcacheError as error:
                    miss = error
            identity = None if isinstance(name, str) else name
            return _build_and_load(session, func_name, _Builder(session, build, func_name, identity), miss, inquiry)


@contextmanager
def _inquire(session: Session, names: tuple[str, ...]) -> Iterator[Inquiry | None]:
    """Request functions from the remote store before they are compiled. Other hosts wait for them until the context ends.

    Yields:
        The inquiry, or None if there is nothing to request or no store may be asked.
    """
    inquiry = session.inquire(names, compiles=True)
    try:
        yield inquiry
    finally:
        if inquiry is not None:
            inquiry.close()


class _Builder:
    """A caller's `build`. A call converts its result to a `ModuleSource` of the requested function.

    Attributes:
        needs: the functions that were missing when the result of the last call was loaded.
        provides: whether the cache had all functions of `needs` when `build` returned.
        digest: a digest of the code of `build`.
    """

    def __init__(self, session: Session, build: Callable[[], Any], func_name: str, identity: Identity | None) -> None:
        self.needs: tuple[str, ...] = ()
        self.provides = True
        self._has = session.has
        self._build = build
        self._func_name = func_name
        self._identity = identity
        self.digest = maker_digest(build)

    def __call__(self) -> ModuleSource:
        built = self._build()
        self.provides = all(map(self._has, self.needs))
        return source_of(built, self._func_name, self._identity)


def compile_missing(
    session: Session, find_missing: Callable[[], tuple[str, ...]], build: Callable[[tuple[str, ...]], ModuleSource]
) -> bool:
    """Compile and store the missing functions of one source, without loading them. If they cannot be stored, keep them in memory.

    Args:
        session: the cache.
        find_missing: returns the missing functions. It is called again after the remote store has answered.
        build: returns a source that exports the functions that it is called with.

    Returns:
        Whether any functions were compiled.
    """
    functions = find_missing()
    if not functions:
        return False
    session.store.stats.missed(NotCachedError(f"{functions[0]!r} is not in the cache", func_name=functions[0]))
    with _inquire(session, functions) as inquiry:
        if inquiry is not None and inquiry.wait_for_functions(HEDGE_SECONDS):
            functions = find_missing()
            if not functions:
                return False
        built = _build_exporting(session, functions, lambda: build(functions), inquiry)
        if built is not None:
            _publish_or_keep(session, functions[0], built)
    return built is not None


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
    """Implement `compcache.frontend.add_missing`.

    Raises:
        ValueError: `functions` is empty.
    """
    if not functions:
        raise ValueError("add_missing() requires the name of at least one function")
    found = find_stored(session, functions, source)
    if found is not None:
        return found
    with single_flight(session, functions[0], absent=False) as may_be_stored:
        found = find_stored(session, functions, source) if may_be_stored else None
        if found is not None:
            return found
        with _inquire(session, functions) as inquiry:
            built = None
            if inquiry is None or not inquiry.wait_for_functions(HEDGE_SECONDS) or not all(map(session.has, functions)):
                built = _build_exporting(session, functions, build, inquiry)
            if built is None:  # the remote store had the functions
                found = find_stored(session, functions)
                if found is not None:
                    return found
                built = _build_exporting(session, functions, build)  # the functions were removed since
            module_id = publish_built(session, [built])[0][0]
        names = tuple([name for name, *_ in built.functions])
        return Addition(names, (module_id,), _size_of(session, bytes.fromhex(module_id)), was_cached=False)


def fetch_and_load(session: Session, func_name: str, error: CompcacheError, accept: Accept | None = None) -> TypedCallTarget | None:
    """Fetch a function from the remote store and load it.

    Args:
        session: the cache.
        func_name: the function.
        error: the exception that the look-up in the cache raised.
        accept: the parameter of `Loader.load`.

    Returns:
        The call target, or None if the function is not fetched in the time that compiling takes, or cannot be loaded.
    """
    if not isinstance(error, (NotCachedError, UndefinedSymbolError)):
        return None
    if not fetch_soon(session, func_name):
        return None
    try:
        return session.loader.load(func_name, accept=accept)
    except CompcacheError:
        return None


def fetch_soon(session: Session, name: str) -> bool:
    """Return whether a name could be fetched from the remote store in the time that compiling the function would take."""
    inquiry = session.inquire((name,))
    if inquiry is None:
        return False
    if inquiry.wait_for_functions(HEDGE_SECONDS):
        return bool(inquiry.fetched)
    inquiry.record_late_answer()
    inquiry.close()
    return False


def find_stored(session: Session, functions: tuple[str, ...], source: ModuleSource | None = None) -> Addition | None:
    """Implement `compcache.frontend.find_stored`."""
    if not all(map(session.has, functions)) or (source is not None and names_with_other_source(session.store, functions, source)):
        return None
    modules = dict([_first_module(session, func_name) for func_name in functions])
    return Addition(functions, tuple(filter(None, modules)), sum(modules.values()), was_cached=True)


def _first_module(session: Session, func_name: str) -> tuple[str, int]:
    """Return the id and the size in bytes of a module that contains the function, or "" and 0 if there is no such module now."""
    for module_id, _ in session.store.find(func_name):
        size = _size_of(session, module_id)
        if size:
            return module_id.hex(), size
    return "", 0


def _size_of(session: Session, module_id: bytes) -> int:
    """Return the size of a stored module in bytes, or 0 if it does not exist."""
    try:
        return session.store.status_of(module_id)[0]
    except OSError as error:
        reraise_interrupt(error)
        return 0


def _load_fetched(session: Session, func_name: str, miss: Exception) -> TypedCallTarget:
    """Load a function that was just fetched from the remote store, and count a miss of this cache."""
    target: TypedCallTarget = session.loader.load(func_name)
    session.store.stats.missed(miss)
    return target


@overload
def _build_exporting(session: Session, functions: tuple[str, ...], build: Callable[[], ModuleSource]) -> BuiltModule: ...
@overload
def _build_exporting(
    session: Session, functions: tuple[str, ...], build: Callable[[], ModuleSource], inquiry: Inquiry | None
) -> BuiltModule | None: ...
def _build_exporting(
    session: Session, functions: tuple[str, ...], build: Callable[[], ModuleSource], inquiry: Inquiry | None = None
) -> BuiltModule | None:
    """Compile a source that must export these functions. Return None if the remote store provides them first.

    The store's answer does not interrupt `build`. It is checked after `build` returns, before code is generated.

    Raises:
        UndefinedSymbolError: the source does not export one of the functions.
        CompileError, LinkError, ...: the errors of `Cache.add_module`.
    """
    source = build()
    if inquiry is not None:
        if inquiry.wait_for_functions() and all(map(session.has, functions)):
            return None
        inquiry.record_late_answer()
    from compcache.miss.build import build_source  # imports LLVM, which functions of the remote store do not need

    try:
        built = build_source(session, source, getattr(build, "digest", ""))
    except CompileError as error:
        raise CompileError(f"build() for {functions[0]!r} returned code that cannot be compiled: {error}") from error
    if inquiry is not None:
        inquiry.record_compilation(built.seconds)
    names = [name for name, *_ in built.functions]
    missing = [name for name in functions if name not in names]
    if missing:
        shown = ", ".join(map(repr, names[:20])) or "nothing"
        raise UndefinedSymbolError(
            f"build() for {functions[0]!r} returned a module that exports {shown} but not "
            f"{'that function' if len(functions) == 1 else repr(missing[0])}; it must export each requested function",
            symbols=missing,
        )
    return built


def _build_and_load(session: Session, func_name: str, build: _Builder, miss: Exception, inquiry: Inquiry | None) -> TypedCallTarget:
    """Build and load a function, or load it from the module that the remote store provides first."""
    session.store.stats.missed(miss)
    built = _build_exporting(session, (func_name,), build, inquiry)
    if built is None:
        try:
            return session.loader.load(func_name)
        except CompcacheError:
            built = _build_exporting(session, (func_name,), build)  # this host cannot use the remote module
    try:
        return _load_rebuilding(session, func_name, build, built)
    except CompcacheError as error:
        error.__context__ = miss
        raise


def _load_rebuilding(session: Session, func_name: str, build: _Builder, built: BuiltModule) -> TypedCallTarget:
    """Publish the built module and load its function. If other processes have removed its callees, build it again."""
    for _ in range(_MOST_BUILDS - 1):
        try:
            return _load_built(session, func_name, _publish_or_keep(session, func_name, built))
        except UndefinedSymbolError as error:
            if not build.provides:
                raise
            build.needs = error.symbols
        built = _build_exporting(session, (func_name,), build)
    return _load_built(session, func_name, _publish_or_keep(session, func_name, built))


def _publish_or_keep(session: Session, func_name: str, built: BuiltModule) -> BuiltModule:
    """Publish a module and return it. If it cannot be stored, issue a warning and keep the module in memory."""
    try:
        publish_built(session, [built])
    except StorageError as error:
        if not session.store.readonly:
            warn_not_stored(func_name, error)
        _keep_in_memory(session, built)
    return built


def _load_built(session: Session, func_name: str, built: BuiltModule) -> TypedCallTarget:
    """Load the built function. If other processes have removed its module or its callees, load them from memory."""
    for _ in range(2):
        try:
            return session.loader.load(func_name)
        except (NotCachedError, StorageError):
            _keep_in_memory(session, built)  # removed since its publication, or unreadable
        except UndefinedSymbolError as error:
            if not keep_received(session, error.symbols):
                raise
    return session.loader.load(func_name)


def _keep_in_memory(session: Session, built: BuiltModule) -> None:
    keep_in_memory(session.store, built)
