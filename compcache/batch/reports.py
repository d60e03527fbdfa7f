"""The report of a batch: a frozen record for each job, and a record for the whole batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from compcache.errors import CompcacheError
from compcache.wording import join_first

__all__ = ["BatchFailedError", "BatchInterrupted", "BatchProgress", "BatchReport", "BuiltJob", "CachedJob", "FailedJob"]

_SHOWN = 10  # failures in the message of an exception


@dataclass(frozen=True, slots=True)
class BuiltJob:
    """A job that was compiled and stored.

    Attributes:
        name: the name of the job.
        functions: the functions that the job compiled.
        module_id: the module that realizes the functions.
        seconds: the time from the start to the end of the job, in the process that compiled it.
        size: the size of the module in bytes.
        attempts: the number of attempts; 2 if the first attempt failed.
    """

    name: str
    functions: tuple[str, ...]
    module_id: str
    seconds: float
    size: int
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job whose functions were already in the cache.

    Attributes:
        name: the name of the job.
        functions: the functions of the job.
        module_ids: the modules that hold the functions.
        seconds: the time of the look-up.
        size: the total size of the modules in bytes.
    """

    name: str
    functions: tuple[str, ...]
    module_ids: tuple[str, ...]
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that could not be compiled or stored.

    Attributes:
        name: the name of the job.
        functions: the functions that the job should compile; empty if they are not known.
        kind: "error" (an exception), "died" (the process of the job ended) or "timeout".
        message: the reason as text. For an exception, it includes the line of code that raised it.
        seconds: the time from the start to the end of the job.
        size: always 0, because nothing was stored.
        error: the name of the exception's class; None without an exception.
        signal: the name of the signal that ended the process; None without a signal.
        exit_status: the exit status of the process; None if it did not exit by itself.
        output: the end of the output of the process, or the traceback of the exception.
        attempts: the number of attempts.
    """

    name: str
    functions: tuple[str, ...]
    kind: str
    message: str
    seconds: float
    size: int = 0
    error: str | None = None
    signal: str | None = None
    exit_status: int | None = None
    output: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The results of a batch. Each tuple is in the order of the jobs.

    Attributes:
        built: the jobs that were compiled.
        cached: the jobs whose functions were already in the cache.
        failed: the jobs that failed.
        seconds: the time of the whole batch.
        interrupted: whether Ctrl-C ended the batch.
    """

    built: tuple[BuiltJob, ...]
    cached: tuple[CachedJob, ...]
    failed: tuple[FailedJob, ...]
    seconds: float
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Return whether the functions of every job are in the cache."""
        return not self.failed and not self.interrupted

    @property
    def size(self) -> int:
        """Return the total size of the built modules in bytes."""
        return sum(job.size for job in self.built)

    def raise_for_failures(self) -> None:
        """Raise `BatchFailedError` if a job failed. The message names the first failed jobs with their reasons."""
        if self.failed:
            raise BatchFailedError(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict of values that `json` can write."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        counts = f"{len(self.built)} built, {len(self.cached)} cached, {len(self.failed)} failed"
        ending = ", interrupted" if self.interrupted else ""
        return f"{counts}{ending} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The state of a batch, which the function `progress` receives after every start and every end of a job.

    Attributes:
        total: the number of jobs.
        built: the number of jobs that were compiled.
        cached: the number of jobs whose functions were already in the cache.
        failed: the number of jobs that failed.
        running: the names of the jobs that are being compiled.
        last: the record of the job that has just ended; None after the start of a job.
        seconds: the time since the start of the batch.
    """

    total: int
    built: int
    cached: int
    failed: int
    running: tuple[str, ...]
    last: BuiltJob | CachedJob | FailedJob | None
    seconds: float

    @property
    def done(self) -> int:
        """Return the number of jobs that have ended."""
        return self.built + self.cached + self.failed

    @property
    def rate(self) -> float:
        """Return the jobs per second, without cached jobs; 0 at the start."""
        return (self.built + self.failed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Return the estimated remaining time in seconds; None before the first job has been compiled or has failed."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


class BatchInterrupted(KeyboardInterrupt):
    """Raised when Ctrl-C ends a batch. `report` covers the jobs that had ended before."""

    def __init__(self, report: BatchReport) -> None:
        super().__init__(f"the batch was interrupted: {report}")
        self.report = report


class BatchFailedError(CompcacheError, RuntimeError):
    """Raised by `BatchReport.raise_for_failures` when a job failed. `report` is the report of the batch."""

    def __init__(self, report: BatchReport) -> None:
        failed = report.failed
        lines = [f"{job.name}: {job.message}" for job in failed]
        jobs = len(failed) + len(report.built) + len(report.cached)
        super().__init__(f"{len(failed)} of {jobs} jobs failed:\n  " + join_first(lines, _SHOWN, "\n  "))
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.report,)
