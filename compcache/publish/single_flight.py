"""The miss side of `get_or_compile`: one builder at a time, bounded waits, storage failures do not fail the call."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, overload

from compcache.content.names import source_of
from compcache.errors import (
    CompcacheError,
    NotCachedError,
    ReentrantCompileError,
    StorageError,
    UndefinedSymbolError,
)
from compcache.files import reraise_interrupt
from compcache.publish.locks import claim
from compcache.publish.quarantine import warn_not_stored
from compcache.publish.staleness import maker_digest
from compcache.publish.writer import keep_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.hit.target import TypedCallTarget
    from compcache.identity import Identity
    from compcache.linker import BuiltModule
    from compcache.remote.client import Inquiry

__all__ = ["Addition", "add_missing", "compile_once", "ensure_compiled", "find_fetched", "find_stored"]

TIMEOUT_VARIABLE = "COMPCACHE_LOCK_TIMEOUT"
_DEFAULT_TIMEOUT = 60.0
#: Nested builds wait only this long: two threads or processes that build A-needs-B and B-needs-A at once would
#: otherwise wait for each other.
_NESTED_TIMEOUT = 0.5
#: How long a miss waits for the remote store before it begins to compile.
HEDGE_SECONDS = 0.15


class _Frame(NamedTuple):
    """A function that is being built, and the stack frame that builds it."""

    directory: str
    func_name: str
    builder: FrameType


class _Stack(threading.local):
    """The functions that this thread is building, outermost first."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []


_building = _Stack()


def compile_once(
    cache: Cache, name: str | Identity, func_name: str, build: Callable[[], Any], miss: Exception
) -> TypedCallTarget:
    """Build, publish and load a function, unless another process does so while this one waits.

    `name` is the func_name, or the identity that it derives from.
    """
    if not callable(build):
        raise TypeError(
            f"get_or_compile(): build must be a function that returns the code, not {type(build).__name__}; "
            "compile(code) takes the code itself"
        )
    absent = isinstance(miss, NotCachedError) and miss.__cause__ is None
    with _single_flight(cache, func_name, absent=absent) as look_again:
        if look_again:
            try:
                return cache._load(func_name)
            except CompcacheError as error:
                miss = error
        inquiry = cache._inquire((func_name,))
        if inquiry is not None and inquiry.arrived(HEDGE_SECONDS):
            try:
                return _load_fetched(cache, func_name, miss)
            except CompcacheError as error:
                miss = error
        identity = None if isinstance(name, str) else name
        return _build_and_load(cache, func_name, _Builder(build, func_name, identity), miss, inquiry)


class _Builder:
    """A caller's `build`, its result converted to a `ModuleSource` of the requested function."""

    def __init__(self, build: Callable[[], Any], func_name: str, identity: Identity | None) -> None:
        self._build = build
        self._func_name = func_name
        self._identity = identity
        self.digest = maker_digest(build)

    def __call__(self) -> ModuleSource:
        return source_of(self._build(), self._func_name, self._identity)


def ensure_compiled(cache: Cache, functions: tuple[str, ...], build: Callable[[], ModuleSource]) -> None:
    """Ensure that the functions of one module are in the cache, or at least in memory; loads nothing."""
    with _single_flight(cache, functions[0], absent=False) as look_again:
        if look_again and cache.has(functions[0]):
            return
        cache._store.stats.missed(NotCachedError(f"{functions[0]!r} is not in the cache", func_name=functions[0]))
        inquiry = cache._inquire(functions)
        if inquiry is not None and inquiry.arrived(HEDGE_SECONDS) and all(map(cache.has, functions)):
            return
        built = _build_exporting(cache, functions, build, inquiry)
        if built is not None:
            _store(cache, functions[0], built)


class Addition(NamedTuple):
    """The result of `compcache.frontend.add_missing` or `compcache.frontend.find_stored`: the functions, their modules, and the size of these in bytes.

    `was_cached`: all of them were in the cache, nothing was built.
    """

    functions: tuple[str, ...]
    module_ids: tuple[str, ...]
    size: int
    was_cached: bool


def add_missing(cache: Cache, functions: tuple[str, ...], build: Callable[[], ModuleSource]) -> Addition:
    """See `compcache.frontend.add_missing`."""
    if not functions:
        raise ValueError("add_missing needs the name of at least one function")
    found = find_stored(cache, functions)
    if found is not None:
        return found
    with _single_flight(cache, functions[0], absent=False) as look_again:
        found = find_stored(cache, functions) if look_again else None
        if found is not None:
            return found
        inquiry = cache._inquire(functions)
        built = None
        if inquiry is None or not inquiry.arrived(HEDGE_SECONDS) or not all(map(cache.has, functions)):
            built = _build_exporting(cache, functions, build, inquiry)
        if built is None:  # the remote store had it
            found = find_stored(cache, functions)
            if found is not None:
                return found
            built = _build_exporting(cache, functions, build)  # and it was pruned since
        module_id = cache._publish(built)[0]
        names = tuple([name for name, *_ in built.functions])
        return Addition(names, (module_id,), _size_of(cache, bytes.fromhex(module_id)), was_cached=False)


def find_fetched(
    cache: Cache, func_name: str, error: CompcacheError, request: object = None
) -> TypedCallTarget | None:
    """Load a function after asking the remote store for it, as long as a compile waits; None where it does not come.

    `error` is how the look-up in the cache failed; `request` is that of `compcache.frontend.find`.
    """
    if not isinstance(error, (NotCachedError, UndefinedSymbolError)):
        return None
    inquiry = cache._inquire((func_name,))
    if inquiry is None:
        return None
    if not inquiry.arrived(HEDGE_SECONDS):
        inquiry.give_up()
        return None
    try:
        return cache._loader.load(func_name, request=request)
    except CompcacheError:
        return None


def find_stored(cache: Cache, functions: tuple[str, ...]) -> Addition | None:
    """See `compcache.frontend.find_stored`."""
    if not all(map(cache.has, functions)):
        return None
    modules = dict([_first_module(cache, func_name) for func_name in functions])
    return Addition(functions, tuple(filter(None, modules)), sum(modules.values()), was_cached=True)


def _first_module(cache: Cache, func_name: str) -> tuple[str, int]:
    """The id and the size of a module that holds the function; "" and 0 if it was pruned meanwhile."""
    for module_id, _ in cache._store.find(func_name):
        size = _size_of(cache, module_id)
        if size:
            return module_id.hex(), size
    return "", 0


def _size_of(cache: Cache, module_id: bytes) -> int:
    try:
        return cache._store.files.stat(cache._store.module_path(module_id)).st_size
    except OSError as error:
        reraise_interrupt(error)
        return 0


@contextmanager
def _single_flight(cache: Cache, func_name: str, *, absent: bool) -> Iterator[bool]:
    """Wait, for a bounded time, while another thread or process builds the function, then become its builder.

    `absent`: a look-up has just found no realization at all.

    Yields:
        Whether another builder may have published the function since that look-up.

    Raises:
        ReentrantCompileError: this thread is building it already.
    """
    frame = _Frame(cache.path, func_name, sys._getframe(2))
    _refuse_reentry(frame)
    timeout = _timeout(cache)
    if _building.frames:
        timeout = min(timeout, _NESTED_TIMEOUT)
    before: set[tuple[bytes, int]] | None = set() if absent else None
    waited = False

    def published() -> bool:
        nonlocal before, waited
        waited = True
        stored = _stored(cache, func_name)
        before = stored if before is None else before
        return not before.issuperset(stored)

    with claim(cache._store, f"compile {func_name}", timeout=timeout, until=published) as owned:
        try:
            _building.frames.append(frame)
            # A builder that got the lock at once may come after another one that has published and released it.
            yield waited or owned is False or cache._store.index.refresh()
        finally:
            _building.frames = [other for other in _building.frames if other is not frame]


def _stored(cache: Cache, func_name: str) -> set[tuple[bytes, int]]:
    """The realizations whose files exist; an empty set if the directory cannot be read."""
    store = cache._store
    try:
        return {candidate for candidate in store.find_all(func_name) if store.exists(candidate[0])}
    except StorageError:
        return set()


def _refuse_reentry(frame: _Frame) -> None:
    if frame[:2] in [other[:2] for other in _building.frames]:
        _forget_interrupted()
    if frame[:2] in [other[:2] for other in _building.frames]:
        func_name = frame.func_name
        chain = " -> ".join(name for _, name, _ in [*_building.frames, frame])
        raise ReentrantCompileError(
            f"building {func_name!r} asked for {func_name!r} itself ({chain}): build() must not call get_or_compile for "
            "the function that it builds, nor import a module that does; declare recursive calls in the IR instead",
            func_name=func_name,
        )


def _forget_interrupted() -> None:
    """Drop builds that no longer run: an interrupt may come between the end of a build and its removal here."""
    running = set()
    caller: FrameType | None = sys._getframe()
    while caller is not None:
        running.add(id(caller))
        caller = caller.f_back
    _building.frames = [frame for frame in _building.frames if id(frame.builder) in running]


def _timeout(cache: Cache) -> float:
    if cache._lock_timeout is not None:
        return cache._lock_timeout
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        return float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        return _DEFAULT_TIMEOUT


def _load_fetched(cache: Cache, func_name: str, miss: Exception) -> TypedCallTarget:
    """Load a function that was just downloaded from the remote store; it counts as a miss of this cache."""
    target: TypedCallTarget = cache._loader.load(func_name)
    cache._store.stats.missed(miss)
    return target


@overload
def _build_exporting(cache: Cache, functions: tuple[str, ...], build: Callable[[], ModuleSource]) -> BuiltModule: ...
@overload
def _build_exporting(
    cache: Cache, functions: tuple[str, ...], build: Callable[[], ModuleSource], inquiry: Inquiry | None
) -> BuiltModule | None: ...
def _build_exporting(
    cache: Cache, functions: tuple[str, ...], build: Callable[[], ModuleSource], inquiry: Inquiry | None = None
) -> BuiltModule | None:
    """Compile a source that must export these functions; None if they came from the remote store.

    The store's answer does not interrupt `build`: it is looked at again before code is generated.

    Raises:
        UndefinedSymbolError: it does not export one.
        CompileError, LinkError, ...: as in `Cache.add_module`.
    """
    source = build()
    if inquiry is not None:
        if inquiry.arrived() and all(map(cache.has, functions)):
            return None
        inquiry.give_up()
    built = cache._build(source, getattr(build, "digest", ""))
    names = [name for name, *_ in built.functions]
    missing = [name for name in functions if name not in names]
    if missing:
        shown = ", ".join(map(repr, names[:20])) or "nothing"
        raise UndefinedSymbolError(
            f"build() for {functions[0]!r} returned a module that exports {shown} but not "
            f"{'that function' if len(functions) == 1 else repr(missing[0])}",
            symbols=missing,
        )
    return built


def _build_and_load(
    cache: Cache, func_name: str, build: Callable[[], ModuleSource], miss: Exception, inquiry: Inquiry | None
) -> TypedCallTarget:
    cache._store.stats.missed(miss)
    built = _build_exporting(cache, (func_name,), build, inquiry)
    if built is None:
        try:
            return cache._loader.load(func_name)
        except CompcacheError:
            built = _build_exporting(cache, (func_name,), build)  # the remote module cannot be used here
    _store(cache, func_name, built)
    try:
        return _load_built(cache, func_name, built)
    except CompcacheError as error:
        error.__context__ = miss
        raise


def _store(cache: Cache, func_name: str, built: BuiltModule) -> None:
    try:
        cache._publish(built)
    except StorageError as error:
        if not cache._store.readonly:
            warn_not_stored(func_name, error)
        _keep(cache, built)


def _load_built(cache: Cache, func_name: str, built: BuiltModule) -> TypedCallTarget:
    try:
        return cache._loader.load(func_name)
    except (NotCachedError, StorageError):
        _keep(cache, built)  # pruned since its publication, or unreadable
    return cache._loader.load(func_name)


def _keep(cache: Cache, built: BuiltModule) -> None:
    keep_in_memory(
        cache._store, built.sections, built.functions, target=built.target, flags=built.flags, key=built.key
    )
