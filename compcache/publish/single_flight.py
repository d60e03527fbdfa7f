"""The miss side of `get_or_compile`: one builder at a time, no waiting without a bound, no failure over storage."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compcache.errors import (
    CompcacheError,
    NotCachedError,
    ReentrantCompileError,
    StorageError,
    UndefinedSymbolError,
)
from compcache.publish.locks import wait_lock
from compcache.publish.quarantine import warn_not_stored
from compcache.publish.writer import keep_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compcache.build.source import ModuleSource
    from compcache.cache import Cache
    from compcache.hit.target import TypedCallTarget
    from compcache.linker import BuiltModule

__all__ = ["build_exporting", "compile_once", "single_flight"]

TIMEOUT_VARIABLE = "COMPCACHE_LOCK_TIMEOUT"
_DEFAULT_TIMEOUT = 60.0
#: Nested builds wait only this long: two threads or processes that build A-needs-B and B-needs-A at once would
#: otherwise wait for each other.
_NESTED_TIMEOUT = 0.5


class _Stack(threading.local):
    """The functions that this thread is building, outermost first, as (directory, func_name)."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str]] = []


_building = _Stack()


def compile_once(
    cache: Cache, func_name: str, build: Callable[[], ModuleSource], miss: Exception
) -> TypedCallTarget:
    """Build, publish and load a function, unless another process does so while this one waits."""
    with single_flight(cache, func_name) as look_again:
        if look_again:
            try:
                return cache._load(func_name)
            except CompcacheError as error:
                miss = error
        return _build_and_load(cache, func_name, build, miss)


@contextmanager
def single_flight(cache: Cache, func_name: str) -> Iterator[bool]:
    """Wait, for a bounded time, while others build the function, then be the one who builds it.

    Yields:
        Whether the function may have come into the cache meanwhile.

    Raises:
        ReentrantCompileError: this thread is building it already.
    """
    frame = (cache.path, func_name)
    _refuse_reentry(frame)
    timeout = _timeout(cache)
    if _building.frames:
        timeout = min(timeout, _NESTED_TIMEOUT)
    before = _stored(cache, func_name)

    def published() -> bool:
        return not before.issuperset(_stored(cache, func_name))

    with wait_lock(cache._store, f"compile {func_name}", timeout=timeout, until=published) as owned:
        _building.frames.append(frame)
        try:
            yield owned is not None
        finally:
            _building.frames.pop()


def _stored(cache: Cache, func_name: str) -> set[tuple[bytes, int]]:
    """The realizations whose files are there at this moment; none where the directory cannot be read."""
    store = cache._store
    try:
        return {candidate for candidate in store.find_all(func_name) if store.exists(candidate[0])}
    except StorageError:
        return set()


def _refuse_reentry(frame: tuple[str, str]) -> None:
    if frame in _building.frames:
        func_name = frame[1]
        chain = " -> ".join(name for _, name in [*_building.frames, frame])
        raise ReentrantCompileError(
            f"building {func_name!r} asked for {func_name!r} itself ({chain}): build() must not call get_or_compile for "
            "the function that it builds, nor import a module that does; declare recursive calls in the IR instead",
            func_name=func_name,
        )


def _timeout(cache: Cache) -> float:
    if cache._lock_timeout is not None:
        return cache._lock_timeout
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        return float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        return _DEFAULT_TIMEOUT


def build_exporting(cache: Cache, func_name: str, build: Callable[[], ModuleSource]) -> BuiltModule:
    """The compiled module of a source that must export the function.

    Raises:
        UndefinedSymbolError: it does not.
        CompileError, LinkError, ...: what `Cache.add_module` raises about a source.
    """
    built = cache._build(build())
    names = [name for name, _ in built.functions]
    if func_name not in names:
        shown = ", ".join(map(repr, names[:20])) or "nothing"
        raise UndefinedSymbolError(
            f"build() for {func_name!r} returned a module that exports {shown} but not that function",
            symbols=[func_name],
        )
    return built


def _build_and_load(
    cache: Cache, func_name: str, build: Callable[[], ModuleSource], miss: Exception
) -> TypedCallTarget:
    cache._store.stats.missed(miss)
    built = build_exporting(cache, func_name, build)
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
        _keep(cache, built)  # pruned between its publication and now, or it cannot be read back
    return cache._loader.load(func_name)


def _keep(cache: Cache, built: BuiltModule) -> None:
    keep_in_memory(
        cache._store, built.sections, built.functions, target=built.target, flags=built.flags, key=built.key
    )
