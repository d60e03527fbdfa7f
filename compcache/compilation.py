"""The miss side of `get_or_compile`: one builder at a time, no waiting without a bound, no failure over storage."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from compcache.errors import CompcacheError, ReentrantCompileError, StorageError, UndefinedSymbolError
from compcache.locks import wait_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.cache import Cache
    from compcache.linker import BuiltModule
    from compcache.module import ModuleSource
    from compcache.target import TypedCallTarget

__all__ = ["compile_once"]

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
    frame = (cache.path, func_name)
    if frame in _building.frames:
        chain = " -> ".join(name for _, name in [*_building.frames, frame])
        raise ReentrantCompileError(
            f"building {func_name!r} asked for {func_name!r} itself ({chain}): build() must not call get_or_compile for "
            "the function that it builds, nor import a module that does; declare recursive calls in the IR instead",
            func_name=func_name,
        )
    timeout = _timeout(cache)
    if _building.frames:
        timeout = min(timeout, _NESTED_TIMEOUT)
    with wait_lock(cache._store, f"compile {func_name}", timeout=timeout) as owned:
        if owned or owned is False:
            # Somebody else may have been at it while we waited.
            try:
                return cache._load(func_name)
            except CompcacheError as error:
                miss = error
        _building.frames.append(frame)
        try:
            return _build_and_load(cache, func_name, build, miss)
        finally:
            _building.frames.pop()


def _timeout(cache: Cache) -> float:
    if cache._lock_timeout is not None:
        return cache._lock_timeout
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        return float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        return _DEFAULT_TIMEOUT


def _build_and_load(
    cache: Cache, func_name: str, build: Callable[[], ModuleSource], miss: Exception
) -> TypedCallTarget:
    source = build()
    built = cache._build(source)
    names = [name for name, _ in built.functions]
    if func_name not in names:
        shown = ", ".join(map(repr, names[:20])) or "nothing"
        raise UndefinedSymbolError(
            f"build() for {func_name!r} returned a module that exports {shown} but not that function",
            symbols=[func_name],
        )
    _store(cache, func_name, built)
    try:
        return cache._load(func_name)
    except CompcacheError as error:
        error.__context__ = miss
        raise


def _store(cache: Cache, func_name: str, built: BuiltModule) -> None:
    from compcache.cache import warn_not_stored

    try:
        cache._publish(built)
    except StorageError as error:
        if not cache._store.readonly:
            warn_not_stored(func_name, error)
        cache._store.keep_in_memory(built.sections, built.functions, target=built.target, flags=built.flags, key=built.key)
