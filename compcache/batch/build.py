"""Doing one job, in whichever process: the batch's own workers, or somebody's executor."""

from __future__ import annotations

import time
import traceback
import warnings
from typing import TYPE_CHECKING, NamedTuple

from compcache.batch.jobs import read_exports
from compcache.cache import Cache
from compcache.errors import CacheWarning, StorageError
from compcache.publish.single_flight import build_exporting, single_flight

if TYPE_CHECKING:
    import os

    from compcache.batch.jobs import Job
    from compcache.build.source import ModuleSource

__all__ = ["CacheSettings", "Outcome", "build_job", "failure", "find_cached", "open_cache", "settings_of"]

_MAX_OUTPUT = 8_000


class CacheSettings(NamedTuple):
    """How to open in another process the cache that the caller has open in this one."""

    path: str
    verify: bool
    signing_key: bytes | None
    allow_pickle: bool
    max_size: int | None
    lock_timeout: float | None


class Outcome(NamedTuple):
    """How one attempt at a job ended: `kind` is built, cached, or one of those of `FailedJob`."""

    kind: str
    functions: tuple[str, ...] = ()
    module_ids: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes: int = 0
    message: str = ""
    error: str | None = None
    signal: str | None = None
    exit_status: int | None = None
    output: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the functions of the job are in the cache."""
        return self.kind in ("built", "cached")


def settings_of(cache: Cache | str | os.PathLike[str]) -> tuple[Cache, CacheSettings]:
    """The cache, and how another process opens it.

    Raises:
        StorageError: it is read-only.
    """
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    store = opened._store
    if store.readonly:
        raise StorageError(
            f"the cache {opened.path} was opened with readonly=True: a batch has nowhere to put what it compiles",
            path=opened.path,
        )
    return opened, CacheSettings(
        opened.path,
        store.verify,
        store.signing_key,
        opened._loader.allow_pickle,
        opened._max_size,
        opened._lock_timeout,
    )


def open_cache(settings: CacheSettings) -> Cache:
    """The cache; it is trusted because the caller's process has checked or vouched for it."""
    return Cache(
        settings.path,
        verify=settings.verify,
        signing_key=settings.signing_key,
        trust=True,
        allow_pickle=settings.allow_pickle,
        max_size=settings.max_size,
        lock_timeout=settings.lock_timeout,
    )


def find_cached(cache: Cache, functions: tuple[str, ...], started: float) -> Outcome | None:
    """The outcome "cached" where this host can use a realization of every one of these functions."""
    if not functions or not all(map(cache.has, functions)):
        return None
    found = dict([_first_module(cache, func_name) for func_name in functions])
    seconds = time.perf_counter() - started
    return Outcome("cached", functions, tuple(filter(None, found)), seconds, sum(found.values()))


def _first_module(cache: Cache, func_name: str) -> tuple[str, int]:
    """The id and the size of a module that holds the function; nothing where it was pruned at this moment."""
    for module_id, _ in cache._store.find(func_name):
        size = _size_of(cache, module_id)
        if size:
            return module_id.hex(), size
    return "", 0


def _size_of(cache: Cache, module_id: bytes) -> int:
    try:
        return cache._store.files.stat(cache._store.module_path(module_id)).st_size
    except OSError:
        return 0


def build_job(cache: Cache, job: Job, functions: tuple[str, ...]) -> Outcome:
    """Compile and store what a job is for, unless it is there or comes while another process builds it."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        try:
            outcome = _build(cache, job, functions, started)
        except Exception as error:  # noqa: BLE001 - whatever a job does wrong is its own failure
            outcome = failure(error, functions, started)
    for warning in caught:
        if not issubclass(warning.category, CacheWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    shown = [str(warning.message) for warning in caught if issubclass(warning.category, CacheWarning)]
    return outcome._replace(warnings=tuple(shown))


def failure(error: BaseException, functions: tuple[str, ...], started: float) -> Outcome:
    """The outcome of an attempt that raised."""
    text = "".join(traceback.format_exception(error))
    return Outcome(
        "error",
        functions,
        seconds=time.perf_counter() - started,
        message=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
        error=type(error).__name__,
        output=text[-_MAX_OUTPUT:],
    )


def _build(cache: Cache, job: Job, functions: tuple[str, ...], started: float) -> Outcome:
    if not functions:
        return _build_unnamed(cache, job, started)
    with single_flight(cache, functions[0]):
        cached = find_cached(cache, functions, started)
        if cached is not None:
            return cached
        if job.func_name is not None:
            built = build_exporting(cache, job.func_name, job.source)
        else:
            built = cache._build(job.source())
        return _published(cache, cache._publish(built), [name for name, _ in built.functions], started)


def _build_unnamed(cache: Cache, job: Job, started: float) -> Outcome:
    """A job whose functions are known only now: its source comes from a function, or is bitcode."""
    source = job.source()
    names = _exports(source)
    cached = find_cached(cache, names, started)
    if cached is not None:
        return cached
    built = cache._build(source)
    return _published(cache, cache._publish(built), [name for name, _ in built.functions], started)


def _exports(source: ModuleSource) -> tuple[str, ...]:
    if source.functions is not None:
        return tuple(source.functions)
    from compcache.build import codegen

    with codegen.new_context() as context, codegen.parse(source.ir, context) as module:
        return read_exports(str(module))


def _published(cache: Cache, module_id: str, names: tuple[str, ...] | list[str], started: float) -> Outcome:
    size = _size_of(cache, bytes.fromhex(module_id))
    return Outcome("built", tuple(names), (module_id,), time.perf_counter() - started, size)
