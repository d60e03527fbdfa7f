"""Jobs of a batch, in a form that can be sent to another process."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compcache.build.source import ModuleSource, check_name
from compcache.content.names import content_digest, freeze, source_of
from compcache.content.visible import names_of_weak_functions, names_without_llvm
from compcache.digest import is_content_name
from compcache.interrupts import reraise_interrupt
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.identity import Identity

__all__ = ["ConflictingJobsError", "Job", "PreparedJob", "prepare_jobs"]


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of batch compilation.

    Args:
        func_name: the name or the `Identity` of the function that the job compiles. The job is skipped if the function is cached.
            None: all functions that a `ModuleSource` exports.
        build: a `ModuleSource`, or a function that returns a `ModuleSource` or LLVM code. A worker process finds the function by
            module and name, and calls it. The function must be importable or defined in the main script. `build` may also be a
            `functools.partial` of such a function, or text of the form ``"package.module:attribute"``.
        args: picklable positional arguments for the function.
        label: the name of the job in progress and reports; None for the name of its first function, or its number if that is unknown.
    """

    func_name: str | Identity | None
    build: ModuleSource | Callable[..., Any] | str
    args: tuple[Any, ...] = ()
    label: str | None = None

    def source(self) -> ModuleSource:
        """Return the source, by calling `build` if it is a function. Exceptions of the call and of imports are not caught."""
        identity = None if isinstance(self.func_name, str) else self.func_name
        build: Any = _import_reference(self.build) if isinstance(self.build, str) else self.build
        built = build if isinstance(build, ModuleSource) else build(*self.args)
        return source_of(built, self.name or "a job", identity)

    def given_source(self) -> ModuleSource | None:
        """Return the source if `build` is a `ModuleSource`; None if it is a function."""
        return self.source() if isinstance(self.build, ModuleSource) else None

    @property
    def name(self) -> str | None:
        """Return the name of the function, not of the job; None if `func_name` is None."""
        name = self.func_name
        return name if name is None or isinstance(name, str) else name.func_name


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job of a batch with its name in reports. `functions` is empty if the functions are not known before the job runs."""

    number: int
    label: str
    functions: tuple[str, ...]
    job: Job

    def payload(self) -> bytes:
        """Return the job as a pickle for another process. Raise `TypeError` if the job cannot be pickled. The message says what to do."""
        try:
            return pickle.dumps(self.job, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError) as error:
            reraise_interrupt(error)
            raise TypeError(
                f"job {self.label!r} cannot be sent to a worker process: {error}; pass a function at the top level of a module as build, "
                "and picklable arguments and globals"
            ) from error


def prepare_jobs(jobs: Iterable[Any]) -> list[PreparedJob]:
    """Return the jobs with numbers from 0, and with their functions unless finding the functions requires LLVM.

    Raises:
        TypeError, InvalidNameError: an item is not a job, or its name is not valid. The message names the item.
        CompileError: the llvmlite module of a job is closed.
        ConflictingJobsError: two jobs with different sources define a function of the same plain name.
    """
    prepared = [_prepare_job(number, item) for number, item in enumerate(jobs)]
    _require_no_conflicts(prepared)
    return prepared


class ConflictingJobsError(ValueError):
    """Raised when two jobs of a batch with different sources define a function of the same plain name."""


def _require_no_conflicts(jobs: Iterable[PreparedJob]) -> None:
    """Raise `ConflictingJobsError` if two jobs with different sources define the same plain name. Weak definitions may differ.

    Whole sources are compared: two sources that differ in another function conflict, too. See `freeze` for other exceptions.
    """
    definitions: dict[str, tuple[PreparedJob, bytes]] = {}
    for job in jobs:
        source = job.job.given_source()
        if source is None:
            continue
        digest = content_digest(freeze(source))
        weak = names_of_weak_functions(source.ir) if source.functions is None and isinstance(source.ir, str) else frozenset()
        for name in job.functions:
            if name in weak or is_content_name(name):
                continue
            earlier_job, earlier_digest = definitions.setdefault(name, (job, digest))
            if earlier_digest != digest:
                raise ConflictingJobsError(
                    f"function {name!r} is defined by job {earlier_job.number} ({earlier_job.label!r}) and by job {job.number} "
                    f"({job.label!r}), whose sources differ: give the function another name in one job, or leave it out of one source"
                )


def _prepare_job(number: int, item: Any) -> PreparedJob:
    """Return an item of a batch as a job with its number, its name in reports, and its functions.

    Raise `TypeError` if the item is not a job, or `InvalidNameError` if the name of its function is not valid.
    See `freeze` for other exceptions.
    """
    job = _as_job(number, item)
    functions = (job.name,) if job.name is not None else _exported_names(job)
    return PreparedJob(number, _label_in_reports(number, job, functions), functions, job)


def _as_job(number: int, item: Any) -> Job:
    """Return an item of a batch as a job with a frozen source.

    Raise `TypeError` if the item is not a job, or `InvalidNameError` if its function's name is not valid. See `freeze` for others.
    """
    if isinstance(item, tuple) and len(item) in (2, 3):
        item = Job(*item)
    if isinstance(item, ModuleSource):
        item = Job(None, item)
    if not isinstance(item, Job):
        raise TypeError(
            f"job {number} is of type {type(item).__name__}, not a job: give a compcache.ModuleSource, a compcache.batch.Job, or a "
            "tuple (func_name, build) or (func_name, build, args)"
        )
    if item.func_name is not None:
        check_name(item.name, "func_name")
    if isinstance(item.build, ModuleSource):
        return replace(item, build=freeze(item.build))
    if not isinstance(item.build, str) and not callable(item.build):
        raise TypeError(
            f"job {number}: build must be a ModuleSource, a function or its name ('package.module:function'), "
            f"not {type(item.build).__name__}"
        )
    return item


def _exported_names(job: Job) -> tuple[str, ...]:
    """Return the functions that the source of a job exports; empty if `build` is a function, or if finding the functions requires LLVM."""
    source = job.build
    if not isinstance(source, ModuleSource):
        return ()
    return tuple(source.functions) if source.functions is not None else names_without_llvm(source.ir) or ()


def _label_in_reports(number: int, job: Job, functions: tuple[str, ...]) -> str:
    """Return the name of a job in reports: its label, the name of its function, its first export, or its number."""
    name = job.label or (job.func_name if isinstance(job.func_name, str | None) else job.func_name.label)
    if name is not None:
        return name
    return join_first(functions, 1) or f"job {number}"


def _import_reference(reference: str) -> Any:
    """Return the object that ``package.module:attribute`` names. Raise `ValueError` for another form, or the errors of importing it."""
    from importlib import import_module

    module, colon, attribute = reference.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"build {reference!r} is not a valid reference: write 'package.module:attribute'")
    return functools.reduce(getattr, attribute.split("."), import_module(module))
