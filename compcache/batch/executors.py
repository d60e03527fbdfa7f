"""Runs jobs on the caller's `concurrent.futures.Executor`: threads, processes, or a cluster."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import TYPE_CHECKING, NamedTuple

from compcache.batch.build import Outcome, build_job, failure
from compcache.cache import Cache
from compcache.errors import CompcacheError
from compcache.files import Files, Tree, reraise_interrupt
from compcache.interrupts import suppress
from compcache.publish.atomic_file import make_directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from compcache.batch.jobs import PreparedJob

__all__ = ["Renewable", "run_in_executor", "settings_of_workers"]

_TICK = 0.1
#: How many jobs an executor has at a time, for each of its workers: enough that none waits, few enough that a scheduler with
#: ten thousand jobs is not slower than the jobs.
_WINDOW = 4
_UNKNOWN_WORKERS = 16
#: The number of tries of a job whose worker was lost.
_ATTEMPTS = 2
_lock = threading.Lock()
#: The caches that this process has opened: a process of an executor runs many jobs.
_caches: dict[tuple[tuple[str, Any], ...], Cache] = {}


class _Submitted(NamedTuple):
    """A submitted job, and the number of its attempt."""

    job: PreparedJob
    attempt: int


class Renewable:
    """The caller's executor, or a function that returns one and is called again if the executor breaks.

    What has `submit` and returns futures of `concurrent.futures` is an executor.
    """

    def __init__(self, given: Executor | Callable[[], Executor]) -> None:
        self._open: Callable[[], Executor] | None = None if hasattr(given, "submit") else given
        self._executor: Any = given if self._open is None else self._open()

    @property
    def is_local(self) -> bool:
        """Whether its workers run on this machine, as threads or processes of the standard library."""
        return type(self._executor).__module__.startswith("concurrent.futures")

    @property
    def workers(self) -> int:
        """Return how many jobs it runs at a time, or an estimate."""
        client = getattr(self._executor, "_client", None)
        if client is not None and hasattr(client, "nthreads"):  # Dask
            return sum(client.nthreads().values()) or _UNKNOWN_WORKERS
        known = getattr(self._executor, "_max_workers", None)
        return known if isinstance(known, int) and known > 0 else _UNKNOWN_WORKERS

    def submit(self, *call: Any) -> Future[Outcome]:
        """Return the future of a call; raises what the executor raises."""
        try:
            future: Future[Outcome] = self._executor.submit(*call)
        except BrokenExecutor:
            if self._open is None:
                raise
            self._executor = self._open()
            future = self._executor.submit(*call)
        return future


def run_in_executor(
    executor: Renewable, settings: dict[str, Any], jobs: Sequence[PreparedJob], timeout: float | None, workers: int | None, temporary: str
) -> Iterator[tuple[PreparedJob, Outcome | None]]:
    """Submit the jobs, some at a time; yields each with None when it is submitted, and with its outcome when it has ended.

    A job is lost if the executor returns no outcome for it. After all others have ended, it is submitted once more, alone, because a job
    that kills its worker takes the others of that worker with it. If it is lost again, its outcome is "died". `temporary` is a directory
    that jobs may be able to reach, to report there that they started.
    """
    window = _WINDOW * (workers or executor.workers)
    waiting = deque(_Submitted(job, 1) for job in jobs)
    lost: deque[_Submitted] = deque()
    running: dict[Future[Outcome], _Submitted] = {}
    refused: list[tuple[_Submitted, Outcome]] = []
    starts = _Starts(temporary) if timeout is not None else None
    try:
        while waiting or running or lost:
            if not waiting and not running:
                waiting.append(lost.popleft())
            while waiting and len(running) < window:
                submitted = waiting.popleft()
                job = submitted.job
                yield job, None
                mark = starts.mark(submitted) if starts is not None else ""
                found = _submit(executor, settings, submitted, mark)
                if isinstance(found, Outcome):
                    refused.append((submitted, found))
                else:
                    running[found] = submitted
            ended, refused = [*refused, *_ends(running, starts, timeout)], []
            for submitted, outcome in ended:
                job = submitted.job
                if outcome.kind == "lost" and submitted.attempt < _ATTEMPTS:
                    lost.append(_Submitted(job, submitted.attempt + 1))
                else:
                    yield job, outcome._replace(kind="died") if outcome.kind == "lost" else outcome
    finally:
        for future in running:
            with suppress(Exception):  # of an engine that is gone
                future.cancel()
        if starts is not None:
            starts.close()


def _submit(executor: Renewable, settings: dict[str, Any], submitted: _Submitted, mark: str) -> Future[Outcome] | Outcome:
    """Return the future of a submitted job, or the outcome of a job that cannot be submitted."""
    job = submitted.job
    try:
        return executor.submit(_work, settings, job.payload(), job.functions, mark, submitted.attempt)
    except Exception as error:  # noqa: BLE001 - whatever the engine raises
        reraise_interrupt(error)
        return _lost(job, error)


class _Starts:
    """Records when jobs started. Jobs report it by empty files in the cache directory, because some futures never become RUNNING."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files = _files_above(directory)
        with suppress(OSError):
            make_directories(self._files, directory)
        self._prefix = f"{os.getpid():x}-{os.urandom(6).hex()}-job-"
        self._seen: dict[str, float] = {}

    def mark(self, submitted: _Submitted) -> str:
        """Return the path of the file that the job creates when it starts."""
        return os.path.join(self._directory, f"{self._prefix}{submitted.job.number}-{submitted.attempt}")

    def look(self) -> None:
        """Notice the jobs that have started since."""
        try:
            names = self._files.listdir(self._directory)
        except OSError as error:
            reraise_interrupt(error)
            return
        for name in names:
            if name.startswith(self._prefix):
                self._seen.setdefault(name, time.monotonic())

    def started(self, submitted: _Submitted) -> float | None:
        """Return when the job started; None if it has not, or cannot reach the directory."""
        return self._seen.get(os.path.basename(self.mark(submitted)))

    def close(self) -> None:
        """Remove the files."""
        self.look()
        for name in self._seen:
            with suppress(OSError):
                self._files.unlink(os.path.join(self._directory, name))


def _files_above(directory: str) -> Tree:
    """Return the files of the directory above this one in the cache. No link leads out of the cache."""
    return Tree(Files(), os.path.dirname(directory))


def settings_of_workers(settings: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return the settings with which workers open a directory of their own. Their hosts check who can write to it."""
    return {**settings, "path": directory, "trust": False}


def _work(settings: dict[str, Any], payload: bytes, functions: tuple[str, ...], mark: str, _attempt: int) -> Outcome:
    """Run one job, in a process or thread of the executor. It raises nothing, so that any exception of the future comes from the executor.

    `mark` is the file to create at the start. The attempt is an argument because some schedulers take equal calls for one.
    """
    started = time.perf_counter()
    try:
        if mark:
            with suppress(OSError):
                files = _files_above(os.path.dirname(mark))
                files.close(files.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
        job = pickle.loads(payload)  # noqa: S301 - from the caller of compile_many
        with _lock:
            key = tuple(settings.items())
            cache = _caches.get(key)
            if cache is None:
                cache = _caches[key] = Cache(**settings)
        outcome = build_job(cache, job, functions)
        if outcome.kind == "built" and settings["trust"] is False:
            _share(cache, outcome)
    except Exception as error:  # noqa: BLE001 - of this job, or of the place where it runs
        reraise_interrupt(error)
        return failure(error, functions, started)
    return outcome


def _share(cache: Cache, outcome: Outcome) -> None:
    """Upload what was built in a worker's own directory, which no other process could find."""
    remote = cache.remote
    if remote is not None and remote.writes:
        with suppress(CompcacheError):
            cache.push(outcome.functions)


def _ends(
    running: dict[Future[Outcome], _Submitted], starts: _Starts | None, timeout: float | None
) -> Iterator[tuple[_Submitted, Outcome]]:
    """Wait until some of the jobs have ended."""
    if not running:
        return
    done, _ = wait(running, None if timeout is None else _TICK, FIRST_COMPLETED)
    for future in done:
        submitted = running.pop(future)
        yield submitted, _outcome(future, submitted.job)
    if starts is not None and timeout is not None:
        starts.look()
        yield from _expired(running, starts, timeout)


def _outcome(future: Future[Outcome], job: PreparedJob) -> Outcome:
    """Return the outcome of a job. `_work` raises nothing, so any exception means that the executor has lost the job."""
    if future.cancelled():
        return Outcome("lost", job.functions, message="the executor cancelled it", error="CancelledError")
    error = future.exception()
    return future.result() if error is None else _lost(job, error)


def _lost(job: PreparedJob, error: BaseException) -> Outcome:
    message = f"the executor lost the job: {type(error).__name__}: {error}"
    return Outcome("lost", job.functions, message=message, error=type(error).__name__, output=str(error))


def _expired(running: dict[Future[Outcome], _Submitted], starts: _Starts, timeout: float) -> Iterator[tuple[_Submitted, Outcome]]:
    """Give up jobs that exceed `timeout`; only the executor could end them."""
    now = time.monotonic()
    for future, submitted in list(running.items()):
        since = starts.started(submitted)
        if since is not None and now - since > timeout:
            del running[future]
            with suppress(Exception):  # of an engine that cannot, as Parsl
                future.cancel()  # which ends it where the engine can
            message = f"the job did not finish within {timeout:g} s; the executor may still be running it"
            yield submitted, Outcome("timeout", submitted.job.functions, seconds=now - since, message=message)
