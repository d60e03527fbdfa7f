"""Batch compilation: many jobs in several processes, where no job affects another.

`compile_many` skips what the cache holds, compiles the rest in worker processes and reports the result of every job.
The files of this package: `jobs` (what is to be done), `build` (doing it, in whichever process), `worker` and `pool`
(processes that may die), `executors` (processes of somebody else), `reports`, `progress`, `spec` (the command line's
way to name jobs), `run` (the conductor).
"""

from __future__ import annotations

from compcache.batch.jobs import Job
from compcache.batch.reports import (
    BatchFailedError,
    BatchInterrupted,
    BatchProgress,
    BatchReport,
    BuiltJob,
    CachedJob,
    FailedJob,
)
from compcache.batch.run import compile_many

__all__ = [
    "BatchFailedError",
    "BatchInterrupted",
    "BatchProgress",
    "BatchReport",
    "BuiltJob",
    "CachedJob",
    "FailedJob",
    "Job",
    "compile_many",
]
