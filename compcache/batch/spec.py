"""Jobs named on a command line: files of LLVM code, a Python file, or an attribute of a module."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from compcache.batch.jobs import Job
from compcache.build.source import ModuleSource
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SpecError", "read_specs"]

_ATTRIBUTE = "jobs"
_CODE = (".ll", ".bc", ".o", ".a")


class SpecError(ValueError):
    """Raised when a SPEC does not name jobs. The message gives the reason."""


def read_specs(specs: Iterable[str], *, untrusted: bool = False) -> list[Any]:
    """Read the jobs of all SPECs, in order.

    Args:
        specs: paths of ``.ll`` and ``.bc`` files; paths of ``.o`` and ``.a`` files that hold bitcode; paths of Python files, with or
            without ``:attribute`` (by default ``jobs``); or ``package.module:attribute``. The attribute is an iterable of jobs, or a
            function without arguments that returns such an iterable.
        untrusted: try the code of files in a child process first (see `ModuleSource`). Python functions run in this process.

    Raises:
        SpecError: a file, module or attribute does not exist, cannot be read or imported, or does not hold jobs.
    """
    return [job for spec in specs for job in _read_spec(spec, untrusted=untrusted)]


def _read_spec(spec: str, *, untrusted: bool) -> Iterator[Any]:
    """Yield the jobs that one SPEC names. See `read_specs`."""
    suffix = os.path.splitext(spec)[1]
    if suffix in _CODE:
        yield _file_job(spec, text=suffix == ".ll", untrusted=untrusted)
        return
    name, colon, attribute = spec.rpartition(":") if ":" in spec else (spec, "", "")
    if name.endswith(".py"):
        module = _import_file(name)
    elif colon:
        module = _import_module(name, spec)
    else:
        raise SpecError(
            f"{spec!r} is not a valid SPEC: give .ll or .bc files, a Python file with an attribute `jobs`, or package.module:attribute"
        )
    yield from _read_attribute_jobs(module, attribute or _ATTRIBUTE, spec)


def _file_job(path: str, *, text: bool, untrusted: bool) -> Job:
    """Return a job for a file of LLVM assembly if `text` is true, otherwise of bitcode. See `ModuleSource` for `untrusted`.

    Raise `SpecError` if the file cannot be read or decoded.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        reraise_interrupt(error)
        raise SpecError(f"cannot read {path} ({error.strerror or error}): give the path of a readable file") from error
    try:
        return Job(None, ModuleSource(content.decode() if text else content, untrusted=untrusted), label=path)
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not LLVM assembly, which is UTF-8 text ({error}): rename a file of bitcode to .bc") from error


def _import_file(path: str) -> Any:
    """Import a Python file as a top-level module, so that worker processes can import its functions by name. Return the module.

    The file's directory is put first on `sys.path`. Raise `SpecError` if the module cannot be imported from this file.
    """
    if not os.path.isfile(path):
        raise SpecError(f"the file {path} does not exist: correct the path")
    directory, name = os.path.split(os.path.abspath(path))
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise SpecError(f"worker processes cannot import {path}: rename the file to a valid Python module name")
    sys.path.insert(0, directory)
    module = _import_module(stem, path)
    imported = os.path.abspath(getattr(module, "__file__", None) or "")
    if imported != os.path.join(directory, name):
        raise SpecError(f"{path} cannot be imported: a module of the same name was already imported from {imported}; rename the file")
    return module


def _import_module(name: str, spec: str) -> Any:
    """Import a module, with the current directory, if it exists, on the import path. Raise `SpecError` for any exception of the import."""
    with suppress(FileNotFoundError):  # the current directory was removed
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        reraise_interrupt(error)
        raise SpecError(f"{spec} cannot be imported: {type(error).__name__}: {error}") from error


def _read_attribute_jobs(module: Any, attribute: str, spec: str) -> Iterator[Any]:
    """Yield the jobs that an attribute of a module holds, or returns if it is a function. Raise `SpecError` without an iterable of jobs."""
    value = module
    for attribute_name in attribute.split("."):
        if not hasattr(value, attribute_name):
            raise SpecError(f"{spec}: the module {module.__name__} has no attribute {attribute!r}: name the attribute with the jobs")
        value = getattr(value, attribute_name)
    try:
        result = value() if callable(value) else value
        jobs = None if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__") else list(result)
    except (Exception, SystemExit) as error:
        reraise_interrupt(error)
        raise SpecError(f"{spec}: {attribute!r} failed: {type(error).__name__}: {error}") from error
    if jobs is None:
        kind = "None" if result is None else f"an object of type {type(result).__name__}"
        verb, action = ("returned", "return") if callable(value) else ("is", "make it")
        raise SpecError(f"{spec}: {attribute!r} {verb} {kind}, not an iterable of jobs: {action} a list of jobs")
    yield from jobs
