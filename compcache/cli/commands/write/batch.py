"""``compcache batch``: compile many modules in several processes."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from compcache.cli.completion import complete_files
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import is_quiet, print_message, print_text
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from compcache.batch import BatchReport

__all__ = ["command"]

_FAILED = 1
_INTERRUPTED = 130


@click.command("batch")
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True, shell_complete=complete_files)
@click.option("-j", "--workers", type=click.IntRange(1), metavar="N", help="The number of processes. Default: one for each usable CPU.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="The time limit of one job. Default: no limit.")
@click.option(
    "--untrusted", is_flag=True,
    help="Compile the code of files in a child process first, with time and memory limits, because it may crash LLVM.",
)  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS", help="Run the jobs on the Dask cluster at this address, like tcp://host:8786.")
@click.option(
    "--worker-dir", metavar="DIR",
    help="With --scheduler: the cache directory on each worker's host. $COMPCACHE_REMOTE receives the compiled modules.",
)  # fmt: skip
@click.option("--link", metavar="SET", help="Link the functions of all jobs into one image of this name, unless the batch was interrupted.")
@json_option
@pass_session
def command(
    session: Session, specs: tuple[str, ...], workers: int | None, timeout: float | None, untrusted: bool, scheduler: str | None,
    worker_dir: str | None, link: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Compile many modules in several processes. Modules in the cache are skipped.

    Each SPEC is an LLVM assembly or bitcode file (.ll, .bc), a Python file (its attribute "jobs", or FILE.py:ATTRIBUTE),
    or package.module:attribute. The attribute is an iterable of jobs, or a function that returns an iterable. A job is a
    compcache.ModuleSource, a compcache.batch.Job, or a tuple (func_name, build[, args]).

    A job that fails does not affect other jobs. An interrupted batch can be started again. The exit status is 0 if every
    module is in the cache at the end, 1 if a job failed, and 130 after Ctrl-C.
    """
    from compcache.batch import BatchInterrupted, ConflictingJobsError, compile_many
    from compcache.batch.spec import SpecError, read_specs
    from compcache.errors import CompcacheError

    try:
        jobs = read_specs(specs, untrusted=untrusted)
    except SpecError as error:
        raise click.UsageError(str(error)) from error
    if worker_dir is not None and scheduler is None:
        raise click.UsageError("--worker-dir requires --scheduler: it is a directory on the hosts of a cluster")
    with session.open_or_create() as cache, _open_cluster(scheduler) as executor:
        try:
            report = compile_many(
                cache, jobs, workers=workers, executor=executor, timeout=timeout, progress=not is_quiet(), worker_directory=worker_dir
            )
        except (TypeError, ValueError) as error:
            if isinstance(error, CompcacheError) and not isinstance(error, ConflictingJobsError):
                raise
            raise click.UsageError(str(error)) from error
        except BatchInterrupted as interrupt:
            report = interrupt.report
        if link is not None and not report.interrupted:
            names = [job.functions for job in report.built] + [job.functions for job in report.cached]
            cache.link([name for functions in names for name in functions], into=link)
    _print_report(report, as_json=as_json)
    if report.interrupted:
        return _INTERRUPTED
    return _FAILED if report.failed else 0


@contextmanager
def _open_cluster(address: str | None) -> Iterator[Executor | None]:
    """Yield the executor of the Dask cluster at an address, and close the connection at the end; None without an address.

    Raises:
        click.UsageError: Dask is not installed.
        click.ClickException: no scheduler answers.
    """
    if address is None:
        yield None
        return
    try:
        client_type: Any = import_module("distributed").Client
    except ImportError as error:
        raise click.UsageError("--scheduler requires Dask: pip install distributed") from error
    try:
        client = client_type(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise click.ClickException(f"no Dask scheduler answers at {address} ({error}): start one, or correct --scheduler") from error
    with client:
        yield client.get_executor()


def _print_report(report: BatchReport, *, as_json: bool) -> None:
    """Print the report of a batch, as JSON if `as_json` is true. With -q, first print the failures, which no progress has shown."""
    if is_quiet():
        for record in report.failed:
            print_message("error", f"{record.name}: {record.message}")
    if as_json:
        print_json(report.as_dict())
    else:
        print_text(str(report))
