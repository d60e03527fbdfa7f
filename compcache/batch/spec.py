"""Reads the jobs that a command line names: files of LLVM code, a Python file, or an attribute of a module."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from compcache.batch.jobs import Job
from compcache.build.source import ModuleSource
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SpecError", "read_specs"]

_ATTRIBUTE = "jobs"
_CODE = (".ll", ".bc", ".o", ".a")


class SpecError(ValueError):
    """Raised when a SPEC does not name jobs; the message says why."""


def read_specs(specs: Iterable[str], *, untrusted: bool = False) -> list[Any]:
    """Read the jobs of all SPECs, in order.

    Args:
        specs: paths of ``.ll`` and ``.bc`` files, of ``.o`` and ``.a`` files that hold bitcode; of Python files, with or without
            ``:attribute`` (``jobs`` is the default attribute); or ``package.module:attribute``. The attribute is an iterable of jobs, or
            a function without arguments that returns one.

        untrusted: try the code of files in a child process first (see `ModuleSource`). Functions of Python are run.

    Raises:
        SpecError: the file, module or attribute does not exist, or holds no jobs.
    """
    return [job for spec in specs for job in _read(spec, untrusted=untrusted)]


def _read(spec: str, *, untrusted: bool) -> Iterator[Any]:
    suffix = os.path.splitext(spec)[1]
    if suffix in _CODE:
        yield _file_job(spec, text=suffix == ".ll", untrusted=untrusted)
        return
    place, colon, attribute = spec.rpartition(":") if ":" in spec else (spec, "", "")
    if place.endswith(".py"):
        module = _import_file(place)
    elif colon:
        module = _import_module(place, spec)
    else:
        raise SpecError(
            f"{spec!r} is not a valid SPEC: give .ll or .bc files, a Python file with an attribute `jobs`, or package.module:attribute"
        )
    yield from _jobs_of(module, attribute or _ATTRIBUTE, spec)


def _file_job(path: str, *, text: bool, untrusted: bool) -> Job:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        reraise_interrupt(error)
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    try:
        return Job(None, ModuleSource(content.decode() if text else content, untrusted=untrusted), label=path)
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not LLVM assembly: {error}") from error


def _import_file(path: str) -> Any:
    """Import a Python file as the module of its name, so that worker processes can import its functions."""
    if not os.path.isfile(path):
        raise SpecError(f"file {path} does not exist")
    directory, name = os.path.split(os.path.abspath(path))
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise SpecError(f"{path}: worker processes import this file; rename it to a valid Python module name")
    sys.path.insert(0, directory)
    module = _import_module(stem, path)
    found = os.path.abspath(getattr(module, "__file__", None) or "")
    if found != os.path.join(directory, name):
        raise SpecError(f"{path}: a module of the same name was already imported from {found}; rename the file")
    return module


def _import_module(name: str, spec: str) -> Any:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        reraise_interrupt(error)
        raise SpecError(f"{spec} cannot be imported: {type(error).__name__}: {error}") from error


def _jobs_of(module: Any, attribute: str, spec: str) -> Iterator[Any]:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise SpecError(f"{spec}: {module.__name__} has no attribute {attribute!r} that yields the jobs")
        value = getattr(value, part)
    try:
        found = value() if callable(value) else value
        jobs = None if isinstance(found, (str, bytes)) or not hasattr(found, "__iter__") else list(found)
    except Exception as error:
        reraise_interrupt(error)
        raise SpecError(f"{spec}: {attribute!r} failed: {type(error).__name__}: {error}") from error
    if jobs is None:
        raise SpecError(f"{spec}: {attribute!r} is or returns a {type(found).__name__}, not an iterable of jobs")
    yield from jobs
