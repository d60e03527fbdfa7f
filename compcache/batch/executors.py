"""Running jobs on the caller's executor: threads, processes, or a cluster."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import TYPE_CHECKING, NamedTuple

from compcache.batch.build import Outcome, build_job, failed_outcome
from compcache.cache import Cache
from compcache.errors import CompcacheError
from compcache.files import Files, Tree
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.atomic_file import make_directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from compcache.batch.jobs import PreparedJob

__all__ = ["RenewableExecutor", "run_in_executor", "worker_settings"]

_TICK = 0.1  # seconds between two looks for jobs that exceed the timeout
#: The number of submitted jobs for each worker. With fewer jobs, workers would be idle. With ten thousand jobs, a scheduler would
#: be slower than the jobs.
_WINDOW = 4
_UNKNOWN_WORKERS = 16
#: The maximum number of submissions of a job that the executor loses.
_ATTEMPTS = 2
#: The key of settings for a directory of the worker, which is not an argument of `Cache`.
_APART = "apart"
_lock = threading.Lock()
#: The caches that this process has opened. A process of an executor runs many jobs, which share them.
_caches: dict[tuple[tuple[str, Any], ...], Cache] = {}


class _Submitted(NamedTuple):
    """A submitted job with the number of this submission, from 1."""

    job: PreparedJob
    attempt: int


class RenewableExecutor:
    """The caller's executor. If the caller gave a function that returns executors, a broken executor is replaced.

    An executor is any object with a method `submit` that returns futures of `concurrent.futures`.
    """

    def __init__(self, executor: Executor | Callable[[], Executor]) -> None:
        self._make_executor: Callable[[], Executor] | None = None if hasattr(executor, "submit") else executor
        self._executor: Any = executor if self._make_executor is None else self._make_executor()

    @property
    def is_local(self) -> bool:
        """Return whether the executor is from `concurrent.futures`, so that its workers run on this machine."""
        return type(self._executor).__module__.startswith("concurrent.futures")

    @property
    def worker_count(self) -> int:
        """Return the number of jobs that the executor runs at a time; an estimate if the executor has no such number."""
        client = getattr(self._executor, "_client", None)
        if client is not None and hasattr(client, "nthreads"):  # Dask
            return sum(client.nthreads().values()) or _UNKNOWN_WORKERS
        max_workers = getattr(self._executor, "_max_workers", None)
        return max_workers if isinstance(max_workers, int) and max_workers > 0 else _UNKNOWN_WORKERS

    def submit(self, *call: Any) -> Future[Outcome]:
        """Submit a call and return its future. If the executor is broken and the caller gave a function, try once with a new executor.

        Exceptions of the executor are not caught otherwise.
        """
        try:
            future: Future[Outcome] = self._executor.submit(*call)
        except BrokenExecutor:
            if self._make_executor is None:
                raise
            self._executor = self._make_executor()
            future = self._executor.submit(*call)
        return future


def run_in_executor(
    executor: RenewableExecutor, settings: dict[str, Any], jobs: Sequence[PreparedJob], timeout: float | None, workers: int | None,
    temporary: str,
) -> Iterator[tuple[PreparedJob, Outcome | None]]:  # fmt: skip
    """Run jobs on an executor. Yield each job with None when it is submitted, and with its outcome when it has ended.

    A job is lost if the executor returns no outcome for it. A job that kills its worker loses the other jobs of that worker, too. Therefore
    a lost job is submitted once more, alone, after all other jobs have ended. The outcome of a job that is lost twice is "died".

    Args:
        executor: the executor.
        settings: the arguments with which a worker opens the cache.
        jobs: the jobs.
        timeout: the seconds that a job may take; None for no limit.
        workers: the number of workers; None for the executor's `worker_count`.
        temporary: a directory in which jobs report their start, if their host has access to it.
    """
    window = _WINDOW * (workers or executor.worker_count)
    pending = deque(_Submitted(job, 1) for job in jobs)
    lost: deque[_Submitted] = deque()
    running: dict[Future[Outcome], _Submitted] = {}
    rejected: list[tuple[_Submitted, Outcome]] = []
    starts = _Starts(temporary) if timeout is not None else None
    try:
        while pending or running or lost:
            if not pending and not running:
                pending.append(lost.popleft())
            while pending and len(running) < window:
                submitted = pending.popleft()
                yield submitted.job, None
                start_file = starts.start_file(submitted) if starts is not None else ""
                result = _submit_job(executor, settings, submitted, start_file)
                if isinstance(result, Outcome):
                    rejected.append((submitted, result))
                else:
                    running[result] = submitted
            ended_jobs, rejected = [*rejected, *_wait_for_ended(running, starts, timeout)], []
            for submitted, outcome in ended_jobs:
                if outcome.kind == "lost" and submitted.attempt < _ATTEMPTS:
                    lost.append(submitted._replace(attempt=submitted.attempt + 1))
                else:
                    yield submitted.job, outcome._replace(kind="died") if outcome.kind == "lost" else outcome
    finally:
        for future in running:
            with suppress(Exception):  # the executor may be gone
                future.cancel()
        if starts is not None:
            starts.close()


def _submit_job(executor: RenewableExecutor, settings: dict[str, Any], submitted: _Submitted, start_file: str) -> Future[Outcome] | Outcome:
    """Submit a job and return its future; return the outcome "lost" if the executor raises an exception."""
    job = submitted.job
    try:
        return executor.submit(_run_job, settings, job.payload(), job.functions, start_file, submitted.attempt)
    except Exception as error:  # noqa: BLE001 - executors may raise any exception
        reraise_interrupt(error)
        return _lost_outcome(job, error)


class _Starts:
    """The start times of jobs. Jobs report their start by empty files in a directory, because some futures never become RUNNING."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files = _open_parent_tree(directory)
        with suppress(OSError):
            make_directories(self._files, directory)
        self._prefix = f"{os.getpid():x}-{os.urandom(6).hex()}-job-"
        self._start_times: dict[str, float] = {}

    def start_file(self, submitted: _Submitted) -> str:
        """Return the path of the file that a job creates when it starts."""
        return os.path.join(self._directory, f"{self._prefix}{submitted.job.number}-{submitted.attempt}")

    def record_starts(self) -> None:
        """Record the current time as the start of each job that has created its file since the last call, if the directory is readable."""
        with suppress(OSError):
            for name in self._files.listdir(self._directory):
                if name.startswith(self._prefix):
                    self._start_times.setdefault(name, time.monotonic())

    def start_time(self, submitted: _Submitted) -> float | None:
        """Return the start of a job on `time.monotonic`; None if the job has not started or cannot reach the directory."""
        return self._start_times.get(os.path.basename(self.start_file(submitted)))

    def close(self) -> None:
        """Remove the files of all jobs that have started. Files that cannot be removed stay."""
        self.record_starts()
        for name in self._start_times:
            with suppress(OSError):
                self._files.unlink(os.path.join(self._directory, name))


def _open_parent_tree(directory: str) -> Tree:
    """Return a `Tree` of a directory's parent, which follows no links below the parent."""
    return Tree(Files(), os.path.dirname(directory))


def worker_settings(settings: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return the settings with which workers open `directory` on their hosts, and which make them upload what they build (`_APART`)."""
    return {**settings, "path": directory, "trust": False, _APART: True}


def _run_job(settings: dict[str, Any], payload: bytes, functions: tuple[str, ...], start_file: str, _attempt: int) -> Outcome:
    """Run one job, in a process or thread of the executor.

    Catch every `Exception`, so an exception of the future comes from the executor. Create `start_file` at the start unless it is "".
    `_attempt` makes repeated calls different, because some schedulers run equal calls only once.
    """
    started = time.perf_counter()
    try:
        if start_file:
            with suppress(OSError):
                files = _open_parent_tree(os.path.dirname(start_file))
                files.close(files.open(start_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
        job = pickle.loads(payload)  # noqa: S301 - from the caller of compile_many
        settings = settings.copy()
        is_apart = settings.pop(_APART, False)
        with _lock:
            key = tuple(settings.items())
            cache = _caches.get(key)
            if cache is None:
                cache = _caches[key] = Cache(**settings)
        outcome = build_job(cache, job, functions)
        if outcome.kind == "built" and is_apart:
            _upload_results(cache, outcome)
    except Exception as error:  # noqa: BLE001 - jobs and the hosts that they run on may fail in any way
        reraise_interrupt(error)
        return failed_outcome(error, functions, started)
    return outcome


def _upload_results(cache: Cache, outcome: Outcome) -> None:
    """Upload functions built in the directory of a worker, where processes on other hosts cannot find them.

    Do nothing if the cache has no remote store to write to. Ignore errors of the upload.
    """
    remote = cache.remote
    if remote is not None and remote.writes:
        with suppress(CompcacheError):
            cache.push(outcome.functions)


def _wait_for_ended(
    running: dict[Future[Outcome], _Submitted], starts: _Starts | None, timeout: float | None
) -> Iterator[tuple[_Submitted, Outcome]]:
    """Yield the jobs that have ended, and remove them from `running`. Wait for the first job.

    With a timeout, wait at most `_TICK` seconds, and cancel the jobs that have exceeded the timeout (`_cancel_expired`).
    """
    if not running:
        return
    finished, _ = wait(running, None if timeout is None else _TICK, FIRST_COMPLETED)
    for future in finished:
        submitted = running.pop(future)
        yield submitted, _future_outcome(future, submitted.job)
    if starts is not None and timeout is not None:
        starts.record_starts()
        yield from _cancel_expired(running, starts, timeout)


def _future_outcome(future: Future[Outcome], job: PreparedJob) -> Outcome:
    """Return the outcome of a job that has ended. An exception of its future means that the executor has lost the job."""
    if future.cancelled():
        return Outcome("lost", job.functions, message="the executor cancelled the job", error="CancelledError")
    error = future.exception()
    return future.result() if error is None else _lost_outcome(job, error)


def _lost_outcome(job: PreparedJob, error: BaseException) -> Outcome:
    """Return the outcome "lost" of a job, with the exception that its executor raised."""
    message = f"the executor lost the job: {type(error).__name__}: {error}"
    return Outcome("lost", job.functions, message=message, error=type(error).__name__, output=str(error))


def _cancel_expired(running: dict[Future[Outcome], _Submitted], starts: _Starts, timeout: float) -> Iterator[tuple[_Submitted, Outcome]]:
    """Cancel the jobs that have run for more than `timeout` seconds, remove them from `running`, and yield them with their outcomes.

    Cancelling ends a running job only on some executors. Errors of cancelling are ignored.
    """
    now = time.monotonic()
    for future, submitted in list(running.items()):
        started = starts.start_time(submitted)
        if started is not None and now - started > timeout:
            del running[future]
            with suppress(Exception):  # executors that cannot cancel, such as Parsl, raise an exception
                future.cancel()
            message = f"the job did not finish within {timeout:g} s: allow a longer timeout; the executor may still be running the job"
            yield submitted, Outcome("timeout", submitted.job.functions, seconds=now - started, message=message)
