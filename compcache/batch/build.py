"""Running one job, in a worker process of the batch or in the caller's executor."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import frontend
from compcache.cache import Cache
from compcache.content.names import freeze
from compcache.content.visible import exported_names
from compcache.errors import CacheWarning, StorageError
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from compcache.batch.jobs import Job
    from compcache.build.source import ModuleSource

__all__ = ["Outcome", "build_job", "failed_outcome", "open_with_settings"]

_MAX_OUTPUT = 8_000  # characters of a traceback in a report
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Outcome(NamedTuple):
    """The outcome of one attempt at a job. `kind` is "built", "cached", "lost", or a `FailedJob.kind`."""

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
        """Return whether the functions of the job are in the cache."""
        return self.kind in ("built", "cached")


def open_with_settings(cache: Cache | str | os.PathLike[str]) -> tuple[Cache, dict[str, Any]]:
    """Open the cache if `cache` is a path. Return the cache, and the arguments with which a child process opens it, secrets included.

    Raise `StorageError` if the cache is read-only. See `Cache` and `compcache.frontend.settings_of` for other exceptions.
    """
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    if opened.readonly:
        raise StorageError(
            f"a batch cannot store modules in the cache {opened.path}, which was opened with readonly=True: open it without this argument",
            path=opened.path,
        )
    return opened, frontend.settings_of(opened, secrets=True)


def build_job(cache: Cache, job: Job, functions: tuple[str, ...]) -> Outcome:
    """Compile and store the functions of a job, unless they are cached or another process compiles them.

    An exception of the job becomes a failed outcome. Warnings of the cache become a part of the outcome.
    """
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        try:
            outcome = _build_functions(cache, job, functions, started)
        except Exception as error:  # noqa: BLE001 - no exception of a job may affect other jobs
            reraise_interrupt(error)
            outcome = failed_outcome(error, functions, started)
    for warning in caught:
        if not issubclass(warning.category, CacheWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, CacheWarning)]
    return outcome._replace(warnings=tuple(messages))


def failed_outcome(error: BaseException, functions: tuple[str, ...], started: float) -> Outcome:
    """Return the outcome of an attempt that raised an exception; `started` is its start on `time.perf_counter`."""
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Outcome(
        "error",
        functions,
        seconds=time.perf_counter() - started,
        message=f"{message}{_error_location(error)}",
        error=type(error).__name__,
        output=text[-_MAX_OUTPUT:],
    )


def _error_location(error: BaseException) -> str:
    """Describe the last frame of the traceback that is outside this package, by file, line and function; "" without such a frame."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((_PACKAGE, "<frozen"))]
    if not frames:
        return ""
    last_frame = frames[-1]
    return f" ({os.path.basename(last_frame.filename)}, line {last_frame.lineno}, in {last_frame.name})"


def _build_functions(cache: Cache, job: Job, functions: tuple[str, ...], started: float) -> Outcome:
    """Compile and store a job unless it is cached, and return the outcome "built" or "cached". Raise the errors of the job.

    `functions` is empty if only `build` or LLVM can determine the names. `started` is the start on `time.perf_counter`.
    """
    known_source = job.given_source()
    if functions:
        if known_source is not None:
            frontend.check_sources(cache, functions, known_source, "it is compiled again")
        elif frontend.is_checking() and frontend.find_stored(cache, functions) is not None:
            frontend.check_sources(cache, functions, job.source(), "the cached code is used")
        added = frontend.add_missing(cache, functions, job.source, source=known_source)
    else:
        source = job.source()
        names = _exported_names(source)
        if not names:
            module = cache.module(cache.add_module(source))
            return Outcome("built", (), (module.module_id,), time.perf_counter() - started, module.size)
        frontend.check_sources(cache, names, source, "it is compiled again")
        added = frontend.add_missing(cache, names, lambda: source, source=source)
    kind = "cached" if added.was_cached else "built"
    return Outcome(kind, added.functions, added.module_ids, time.perf_counter() - started, added.size)


def _exported_names(source: ModuleSource) -> tuple[str, ...]:
    """Return the names of the functions that a source exports. See `freeze` and `exported_names` for the exceptions."""
    return tuple(source.functions) if source.functions is not None else exported_names(freeze(source).ir)
