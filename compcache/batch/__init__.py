"""Batch compilation: many jobs in several processes, where no job affects another.

`compile_many` skips cached jobs, compiles the other jobs in worker processes, and reports the result of every job. The files of this
package: `jobs` (the forms of jobs), `build` (running one job, in any process), `worker` and `pool` (processes that may die), `executors`
(executors of the caller), `reports`, `progress`, `spec` (jobs on the command line), `run` (the whole batch).
"""

from __future__ import annotations

from compcache.batch.jobs import ConflictingJobsError, Job
from compcache.batch.reports import BatchFailedError, BatchInterrupted, BatchProgress, BatchReport, BuiltJob, CachedJob, FailedJob
from compcache.batch.run import compile_many

__all__ = [
    "BatchFailedError", "BatchInterrupted", "BatchProgress", "BatchReport", "BuiltJob", "CachedJob", "ConflictingJobsError", "FailedJob",
    "Job", "compile_many",
]  # fmt: skip
