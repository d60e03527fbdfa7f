"""Running a batch: skip cached jobs, distribute and retry the other jobs, report."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

from compcache import frontend
from compcache.batch import worker as worker_module
from compcache.batch.build import Outcome, open_with_settings
from compcache.batch.executors import RenewableExecutor, run_in_executor, worker_settings
from compcache.batch.jobs import prepare_jobs
from compcache.batch.pool import WorkerPool
from compcache.batch.progress import progress_display
from compcache.batch.reports import BatchInterrupted, BatchProgress, BatchReport, BuiltJob, CachedJob, FailedJob
from compcache.errors import CacheWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from concurrent.futures import Executor

    from compcache.batch.jobs import PreparedJob
    from compcache.cache import Cache

    #: Jobs with their outcomes.
    _Ended = list[tuple[PreparedJob, Outcome]]

__all__ = ["compile_many"]

#: Errors after which a job is retried: another job of the batch may add the symbol, or a definition with the right type.
_RETRIED_ERRORS = ("UndefinedSymbolError", "SignatureMismatchError")


def compile_many(
    cache: Cache | str | os.PathLike[str],
    jobs: Iterable[Any],
    *,
    workers: int | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    timeout: float | None = None,
    progress: Callable[[BatchProgress], object] | bool | None = None,
    worker_directory: str | os.PathLike[str] | None = None,
) -> BatchReport:
    """Compile many modules in several processes, and store them.

    Jobs whose functions are cached are skipped, so that an interrupted batch continues where it stopped. Functions in a remote store are
    fetched first, with one request for all jobs. A worker process that dies or exceeds `timeout` affects only its own job, which is
    tried once more, alone. A job that needs a function of another job is tried again after the other job was built.

    Args:
        cache: an open cache, or its directory.
        jobs: `ModuleSource` objects, `Job` objects, or tuples (func_name, build) and (func_name, build, args).
        workers: the number of processes; None: one process for each CPU that this process may use. With `executor`: the number of its
            workers, for executors that do not report it.
        executor: submit the jobs to this executor instead of starting processes. It is an object with the method `submit` of
            `concurrent.futures.Executor`, or a function that returns a new executor and is called again when the executor is broken.
            Most executors cannot stop a job that exceeds `timeout`: it is reported, but keeps running. A job that the executor loses
            is submitted once more. If it is lost again, it runs in a process of the batch, or has failed if the executor is a cluster.
        timeout: the seconds that one attempt at a job may take; None for no limit.
        progress: a function that is called with a `BatchProgress` after every start and end of a job. True shows a bar on a
            terminal, and plain lines elsewhere, on standard error.
        worker_directory: with `executor`, the cache directory of each worker on its own host, for hosts that do not share `cache`.
            Compiled modules are uploaded to the remote store of `cache` if its mode is ``write``.

    Returns:
        The built, the cached and the failed jobs. A failed job raises no exception.

    Raises:
        TypeError: an item of `jobs` is not a job.
        InvalidNameError: the name of a job's function is not valid.
        CompileError: the llvmlite module of a job is closed.
        ValueError: `workers` is less than 1, `timeout` is not more than 0, or `worker_directory` is given without `executor`.
        ConflictingJobsError: two jobs with different sources define a function of the same plain name (a `ValueError`).
        RuntimeError: the main script called this function when a worker process imported it.
        StorageError: the cache is read-only.
        BatchInterrupted: Ctrl-C was pressed (a `KeyboardInterrupt`). Its `report` covers the jobs that had ended.
    """
    _check_call(workers, timeout, executor, worker_directory)
    batch = _Batch(prepare_jobs(jobs), progress_display(progress))
    opened, settings = open_with_settings(cache)
    pool = WorkerPool(settings, workers, timeout)
    try:
        with batch.display:
            missing = batch.skip_cached(opened)
            if executor is not None and missing:
                missing = _run_on_executor(batch, RenewableExecutor(executor), opened, missing, timeout, workers, worker_directory)
            batch.run(pool, missing)
    except KeyboardInterrupt as interrupt:
        raise BatchInterrupted(batch.report(interrupted=True)) from interrupt
    finally:
        pool.close()
        if opened is not cache:
            opened.close()
    return batch.report()


def _check_call(workers: int | None, timeout: float | None, executor: object, worker_directory: object) -> None:
    """Raise the `RuntimeError` and `ValueError` of `compile_many`, which describes the arguments."""
    if worker_module.is_worker:
        raise RuntimeError(
            "compile_many was called by the main script while a worker process imported it for the function of a job: "
            'call compile_many under `if __name__ == "__main__":`'
        )
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if timeout is not None and not timeout > 0:  # also refuses NaN
        raise ValueError(f"timeout must be more than 0 seconds, not {timeout}")
    if worker_directory is not None and executor is None:
        raise ValueError("worker_directory is given without executor: pass the executor whose workers use this directory")


def _run_on_executor(
    batch: _Batch,
    executor: RenewableExecutor,
    cache: Cache,
    jobs: list[PreparedJob],
    timeout: float | None,
    workers: int | None,
    worker_directory: str | os.PathLike[str] | None,
) -> list[PreparedJob]:
    """Run jobs on an executor, and return the jobs that the batch's own processes must run. See `compile_many` for the arguments.

    With a local executor, these are the jobs that it lost, and the jobs that lack a function of another job. With a cluster, the result is
    empty: a lost job has failed, because it must not run on this machine, and a job that lacks a function is submitted again. See
    `settings_of` for the exceptions.
    """
    settings = frontend.settings_of(cache)
    if worker_directory is not None:
        settings = worker_settings(settings, os.fspath(worker_directory))
    temporary = frontend.temporary_directory(cache)

    def run_once(jobs: list[PreparedJob], *, unrecorded: Collection[str] = ()) -> tuple[_Ended, _Ended]:
        """Run the jobs on the executor, and return what `_Batch.record_final` returns."""
        return batch.record_final(run_in_executor(executor, settings, jobs, timeout, workers, temporary), unrecorded=unrecorded)

    if executor.is_local:
        lost, unsatisfied = run_once(jobs, unrecorded=("died",))
        return [job for job, _ in (*lost, *unsatisfied)]

    batch.repeat(jobs, lambda jobs: run_once(jobs)[1])
    return []


def _find_cached(cache: Cache, job: PreparedJob) -> Outcome | None:
    """Return the outcome "cached" if the cache contains the job's functions, compiled from the job's source if it is given; else None.

    A job without names must run, and so must a job without a given source if sources are compared (`frontend.is_checking`).
    """
    started = time.perf_counter()
    source = job.job.given_source()
    if not job.functions or (source is None and frontend.is_checking()):
        return None
    stored = frontend.find_stored(cache, job.functions, source=source)
    if stored is None:
        return None
    return Outcome("cached", job.functions, stored.module_ids, time.perf_counter() - started, stored.size)


class _Batch:
    """The state of a batch: running jobs, attempts, and records of the jobs that have ended."""

    def __init__(self, jobs: list[PreparedJob], display: Any) -> None:
        self.jobs = jobs
        self.display = display
        self._started = time.perf_counter()
        self._ended: dict[int, BuiltJob | CachedJob | FailedJob] = {}
        self._counts: Counter[str] = Counter()
        self._attempts: Counter[int] = Counter()
        self._running: dict[int, str] = {}

    def skip_cached(self, cache: Cache) -> list[PreparedJob]:
        """Record the jobs that are cached, also after their functions were requested from the remote store. Return the other jobs."""
        missing = self._record_cached(cache, self.jobs)
        if cache.prefetch([name for job in missing for name in job.functions], plain=False):
            missing = self._record_cached(cache, missing)
        return missing

    def _record_cached(self, cache: Cache, jobs: list[PreparedJob]) -> list[PreparedJob]:
        """Record the jobs that are cached, and return the jobs that are not cached."""
        missing = []
        for job in jobs:
            outcome = _find_cached(cache, job)
            if outcome is None:
                missing.append(job)
            else:
                self.record(job, outcome)
        return missing

    def run(self, pool: WorkerPool, jobs: list[PreparedJob]) -> None:
        """Run the jobs in a pool and record them. Repeat jobs whose workers died, and jobs that lack functions of other jobs."""

        def run_once(jobs: list[PreparedJob]) -> _Ended:
            """Run the jobs, then each job that died or timed out once more, alone. Return the jobs whose imports are not compiled yet."""
            died, unsatisfied = self.record_final(pool.run(jobs), unrecorded=("died", "timeout"))
            for job, _ in died:
                unsatisfied += self.record_final(pool.run_alone(job), unrecorded=())[1]
            return unsatisfied

        self.repeat(jobs, run_once)

    def repeat(self, jobs: list[PreparedJob], run_once: Callable[[list[PreparedJob]], _Ended]) -> None:
        """Run jobs. Run those that lack functions of other jobs again, until a round builds nothing; then record them as failed.

        `run_once` runs jobs, records outcomes, and returns the jobs that lack functions with their outcomes.
        """
        while jobs:
            built = self._counts["built"]
            unsatisfied = run_once(jobs)
            if self._counts["built"] == built:
                for job, outcome in unsatisfied:
                    self.record(job, outcome)
                return
            jobs = [job for job, _ in unsatisfied]

    def record_final(self, events: Iterator[tuple[PreparedJob, Outcome | None]], *, unrecorded: Collection[str]) -> tuple[_Ended, _Ended]:
        """Record the outcomes of jobs, except of jobs that may run again. `events` has None as the outcome of a job that starts.

        Returns:
            The jobs whose outcomes are of an `unrecorded` kind, and the jobs with an error that another job may remedy, with the outcomes.
        """
        lost, unsatisfied = [], []
        for job, outcome in self._ended_jobs(events):
            if outcome.kind in unrecorded:
                lost.append((job, outcome))
            elif outcome.error in _RETRIED_ERRORS:
                unsatisfied.append((job, outcome))
            else:
                self.record(job, outcome)
        return lost, unsatisfied

    def _ended_jobs(self, events: Iterator[tuple[PreparedJob, Outcome | None]]) -> Iterator[tuple[PreparedJob, Outcome]]:
        """Yield the jobs that have ended. Count the attempts of jobs that start, and show them as running."""
        for job, outcome in events:
            if outcome is None:
                self._attempts[job.number] += 1
                self._running[job.number] = job.label
                self._show_progress(None)
            else:
                self._running.pop(job.number, None)
                yield job, outcome

    def record(self, job: PreparedJob, outcome: Outcome) -> None:
        """Record and show the outcome of a job, and issue its warnings."""
        for text in outcome.warnings:
            warnings.warn(f"{job.label}: {text}", CacheWarning, stacklevel=5)
        record = _job_record(job, outcome, max(1, self._attempts[job.number]))
        self._ended[job.number] = record
        self._counts[outcome.kind if outcome.is_done else "failed"] += 1
        self._show_progress(record)

    def _show_progress(self, ended: BuiltJob | CachedJob | FailedJob | None) -> None:
        """Show the progress. `ended` is the record of the job that has just ended; None after the start of a job."""
        counts = self._counts
        seconds = time.perf_counter() - self._started
        running = tuple(self._running.values())
        self.display(BatchProgress(len(self.jobs), counts["built"], counts["cached"], counts["failed"], running, ended, seconds))

    def report(self, *, interrupted: bool = False) -> BatchReport:
        """Return the report of the jobs that have ended. `interrupted` is whether the batch was interrupted."""
        records = [self._ended[number] for number in sorted(self._ended)]
        return BatchReport(
            tuple([record for record in records if isinstance(record, BuiltJob)]),
            tuple([record for record in records if isinstance(record, CachedJob)]),
            tuple([record for record in records if isinstance(record, FailedJob)]),
            time.perf_counter() - self._started,
            interrupted,
        )


def _job_record(job: PreparedJob, outcome: Outcome, attempts: int) -> BuiltJob | CachedJob | FailedJob:
    """Return the record of a job for the report."""
    functions = outcome.functions or job.functions
    if outcome.kind == "built":
        return BuiltJob(job.label, functions, outcome.module_ids[0], outcome.seconds, outcome.bytes, attempts)
    if outcome.kind == "cached":
        return CachedJob(job.label, functions, outcome.module_ids, outcome.seconds, outcome.bytes)
    return FailedJob(
        job.label, functions, outcome.kind, outcome.message, outcome.seconds, error=outcome.error, signal=outcome.signal,
        exit_status=outcome.exit_status, output=outcome.output, attempts=attempts,
    )  # fmt: skip
