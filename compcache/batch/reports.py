"""The report of a batch: one frozen record for each job, and one for the whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from compcache.errors import CompcacheError

__all__ = ["BatchFailedError", "BatchInterrupted", "BatchProgress", "BatchReport", "BuiltJob", "CachedJob", "FailedJob"]

_SHOWN = 10  # failures that an exception lists


@dataclass(frozen=True, slots=True)
class BuiltJob:
    """A job that was compiled and stored.

    Attributes:
        name: the job's.
        functions: those that it compiled.
        module_id: its module.
        seconds: the time from its start to its end, in the process that compiled it.
        size: that of the module's file, in bytes.
        attempts: 2 if the first one failed.
    """

    name: str
    functions: tuple[str, ...]
    module_id: str
    seconds: float
    size: int
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job whose functions the cache held already.

    Attributes:
        name: the job's.
        functions: those that it has.
        module_ids: the modules that hold them.
        seconds: the time of the look-up.
        size: that of the modules' files, in bytes.
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
        name: the job's.
        functions: those that it was to compile.
        kind: "error" (an exception), "died" (its process ended) or "timeout".
        message: the reason in words; of an exception, also where it was raised.
        seconds: the time from its start to its end.
        size: 0: nothing was stored.
        error: the class of the exception.
        signal: the signal that ended its process.
        exit_status: with which its process ended.
        output: the end of the process's output, or the traceback of the exception.
        attempts: how often it was tried.
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
    """The results of all jobs, in the order of the jobs.

    Attributes:
        built: those that were compiled.
        cached: those whose functions were there.
        failed: those that failed.
        seconds: the time of the whole batch.
        interrupted: whether Ctrl-C ended it.
    """

    built: tuple[BuiltJob, ...]
    cached: tuple[CachedJob, ...]
    failed: tuple[FailedJob, ...]
    seconds: float
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether every job's functions are in the cache now."""
        return not self.failed and not self.interrupted

    @property
    def size(self) -> int:
        """The size of the modules built, in bytes."""
        return sum(job.size for job in self.built)

    def raise_for_failures(self) -> None:
        """Raise if a job failed.

        Raises:
            BatchFailedError: names the failed jobs and the reasons; its `report` is this report.
        """
        if self.failed:
            raise BatchFailedError(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for `json`."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        counts = f"{len(self.built)} built, {len(self.cached)} cached, {len(self.failed)} failed"
        ending = ", interrupted" if self.interrupted else ""
        return f"{counts}{ending} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The state of a batch, passed to `progress` after every start and every end of a job.

    Attributes:
        total: the number of jobs.
        built: how many were compiled.
        cached: how many were there already.
        failed: how many failed.
        running: the names of the jobs that are being compiled.
        last: the record of the job that has just ended, if one has.
        seconds: how long the batch has taken.
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
        """The number of jobs that have ended."""
        return self.built + self.cached + self.failed

    @property
    def rate(self) -> float:
        """Jobs per second, not counting cached ones."""
        return (self.built + self.failed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """The estimated time left, in seconds."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


class BatchInterrupted(KeyboardInterrupt):
    """Raised when Ctrl-C ends a batch; `report` covers the jobs that had ended by then."""

    def __init__(self, report: BatchReport) -> None:
        super().__init__(f"the batch was interrupted: {report}")
        self.report = report


class BatchFailedError(CompcacheError, RuntimeError):
    """Raised by `BatchReport.raise_for_failures`; `report` is that report."""

    def __init__(self, report: BatchReport) -> None:
        failed = report.failed
        shown = [f"{job.name}: {job.message}" for job in failed[:_SHOWN]]
        more = [f"and {len(failed) - _SHOWN} more"] if len(failed) > _SHOWN else []
        jobs = len(failed) + len(report.built) + len(report.cached)
        super().__init__("\n  ".join([f"{len(failed)} of {jobs} jobs failed:", *shown, *more]))
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.report,)
