"""Runs jobs on the caller's `concurrent.futures.Executor`: threads, processes, or a cluster."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import TYPE_CHECKING

from compcache.batch.build import Outcome, build_job, failure
from compcache.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor
    from typing import Any

    from compcache.batch.jobs import PreparedJob

__all__ = ["run_in_executor"]

_TICK = 0.1
_lock = threading.Lock()
#: The caches that this process has opened: a process of an executor runs many jobs.
_caches: dict[tuple[tuple[str, Any], ...], Cache] = {}


def run_in_executor(
    executor: Executor, settings: dict[str, Any], jobs: Sequence[PreparedJob], timeout: float | None
) -> Iterator[tuple[PreparedJob, Outcome | None]]:
    """Submit the jobs; yields each with None when it is submitted, and with its outcome when it has ended.

    A job that was lost because the executor broke has the outcome "died".
    """
    running: dict[Future[Outcome], PreparedJob] = {}
    try:
        for job in jobs:
            yield job, None
            started = time.perf_counter()
            try:
                future = executor.submit(_work, settings, job.payload(), job.functions)
            except BrokenExecutor as error:
                yield job, _lost(job, error)
            except TypeError as error:
                yield job, failure(error, job.functions, started)
            else:
                running[future] = job
        yield from _ends(running, timeout)
    finally:
        for future in running:
            future.cancel()


def _work(settings: dict[str, Any], payload: bytes, functions: tuple[str, ...]) -> Outcome:
    """Run one job, in a process or thread of the executor."""
    job = pickle.loads(payload)  # noqa: S301 - from the caller of compile_many
    with _lock:
        key = tuple(settings.items())
        cache = _caches.get(key)
        if cache is None:
            cache = _caches[key] = Cache(**settings)
    return build_job(cache, job, functions)


def _ends(
    running: dict[Future[Outcome], PreparedJob], timeout: float | None
) -> Iterator[tuple[PreparedJob, Outcome]]:
    seen: dict[Future[Outcome], float] = {}
    while running:
        done, _ = wait(running, None if timeout is None else _TICK, FIRST_COMPLETED)
        for future in done:
            job = running.pop(future)
            yield job, _outcome(future, job)
        if timeout is not None:
            yield from _expired(running, seen, timeout)


def _outcome(future: Future[Outcome], job: PreparedJob) -> Outcome:
    started = time.perf_counter()
    if future.cancelled():
        return Outcome("error", job.functions, message="the executor cancelled it", error="CancelledError")
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor):
        return _lost(job, error)
    return failure(error, job.functions, started)


def _lost(job: PreparedJob, error: BaseException) -> Outcome:
    return Outcome("died", job.functions, message=f"the executor broke: {error}", output=str(error))


def _expired(
    running: dict[Future[Outcome], PreparedJob], seen: dict[Future[Outcome], float], timeout: float
) -> Iterator[tuple[PreparedJob, Outcome]]:
    """Give up jobs that exceed `timeout`; only the executor could end them."""
    now = time.monotonic()
    for future, job in list(running.items()):
        if future.running() and now - seen.setdefault(future, now) > timeout:
            del running[future]
            message = (
                f"it did not finish within {timeout:g} s and was given up; the executor is still running it"
            )
            yield job, Outcome("timeout", job.functions, seconds=now - seen[future], message=message)
