"""Jobs of a batch, in a form that can be sent to another process."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compcache.build.source import ModuleSource, check_name
from compcache.content.names import content_digest, frozen, source_of
from compcache.content.visible import names_without_llvm, weak_definitions
from compcache.digest import is_content_name
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compcache.identity import Identity

__all__ = ["ConflictingJobsError", "Job", "PreparedJob", "conflict", "prepare_jobs"]


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of batch compilation.

    Args:
        func_name: the function that the job compiles, or its `Identity`: the job is skipped if the cache holds it. None stands
            for all functions that a `ModuleSource` exports.
        build: a `ModuleSource`, or a function that returns one or LLVM code. The function is called in a worker process, which
            finds it by module and name: it must be importable, or defined in the main script; a `functools.partial` of such
            a function, or text ``"package.module:attribute"``, works too.
        args: positional arguments for that function; they must be picklable.
        label: the name of the job in progress and reports; None for the name of its function.
    """

    func_name: str | Identity | None
    build: ModuleSource | Callable[..., Any] | str
    args: tuple[Any, ...] = ()
    label: str | None = None

    def source(self) -> ModuleSource:
        """Return the source; calls `build` if it is a function."""
        identity = None if isinstance(self.func_name, str) else self.func_name
        given: Any = self.build
        if not isinstance(given, ModuleSource):
            given = (_resolve(given) if isinstance(given, str) else given)(*self.args)
        return source_of(given, self.name or "a job", identity)

    def given_source(self) -> ModuleSource | None:
        """Return the source, if it is there without a call."""
        return self.source() if isinstance(self.build, ModuleSource) else None

    @property
    def name(self) -> str | None:
        """The func_name, or None if none is given."""
        name = self.func_name
        return name if name is None or isinstance(name, str) else name.func_name


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job of a batch: its number, its displayed name, and its functions if these are known in advance."""

    number: int
    name: str
    functions: tuple[str, ...]
    job: Job

    def payload(self) -> bytes:
        """Return the job pickled for another process.

        Raises:
            TypeError: it cannot be pickled; the message says what to do.
        """
        try:
            return pickle.dumps(self.job, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError) as error:
            reraise_interrupt(error)
            raise TypeError(
                f"job {self.name!r} cannot be sent to a worker process ({error}): build must be a function at the top "
                "level of a module, and arguments and globals must be picklable"
            ) from error


def prepare_jobs(jobs: Iterable[Any]) -> list[PreparedJob]:
    """Number the jobs and find their functions if that needs no LLVM.

    Raises:
        TypeError: one of them is not a job; the message says which.
        ConflictingJobsError: two of them define a function, with different code.
    """
    prepared = [_prepare(number, item) for number, item in enumerate(jobs)]
    _require_one_source_each(prepared)
    return prepared


class ConflictingJobsError(ValueError):
    """Raised if two jobs of a batch define a plain name with different code, because the name can stand for only one of them."""


def _require_one_source_each(jobs: Iterable[PreparedJob]) -> None:
    known: dict[str, tuple[PreparedJob, bytes]] = {}
    for job in jobs:
        source = job.job.given_source()
        if source is None:
            continue
        now = content_digest(frozen(source))
        giving_way = weak_definitions(source.ir) if source.functions is None and isinstance(source.ir, (str, bytes)) else frozenset()
        for name in job.functions:
            if name in giving_way or is_content_name(name):
                continue
            other, digest = known.setdefault(name, (job, now))
            if digest != now:
                raise ConflictingJobsError(conflict(name, other.name, job.name))


def conflict(function: str, first: str, second: str) -> str:
    """Return the message about two jobs that define the same function, by their names."""
    return f"function {function!r} is defined by {first} and by {second}, with different code: give one of them another name"


def _prepare(number: int, item: Any) -> PreparedJob:
    job = _as_job(number, item)
    functions = (job.name,) if job.name is not None else _exports(job)
    return PreparedJob(number, _name(number, job, functions), functions, job)


def _as_job(number: int, item: Any) -> Job:
    if isinstance(item, tuple) and len(item) in (2, 3):
        item = Job(*item)
    if isinstance(item, ModuleSource):
        item = Job(None, item)
    if not isinstance(item, Job):
        raise TypeError(
            f"job {number} is a {type(item).__name__}; a job is a compcache.ModuleSource, a compcache.batch.Job, or a "
            "tuple (func_name, build) or (func_name, build, args)"
        )
    if item.func_name is not None:
        check_name(item.name, "func_name")
    if isinstance(item.build, ModuleSource):
        return replace(item, build=frozen(item.build))
    if not isinstance(item.build, str) and not callable(item.build):
        raise TypeError(f"job {number}: build is a {type(item.build).__name__}, not a ModuleSource or a function")
    return item


def _exports(job: Job) -> tuple[str, ...]:
    """Return the functions that a job's module will export; empty if finding them needs LLVM."""
    source = job.build
    if not isinstance(source, ModuleSource):
        return ()
    if source.functions is not None:
        return tuple(source.functions)
    ir = source.ir
    return names_without_llvm(ir) or () if isinstance(ir, (str, bytes)) else ()


def _name(number: int, job: Job, functions: tuple[str, ...]) -> str:
    known = job.label or (job.func_name if isinstance(job.func_name, str | None) else job.func_name.label)
    if known is not None:
        return known
    if not functions:
        return f"job {number}"
    return functions[0] + (f" and {len(functions) - 1} more" if len(functions) > 1 else "")


def _resolve(reference: str) -> Any:
    """Return the object that ``package.module:attribute`` names."""
    from importlib import import_module

    module, colon, attribute = reference.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"{reference!r} is not of the form 'package.module:attribute'")
    return functools.reduce(getattr, attribute.split("."), import_module(module))
