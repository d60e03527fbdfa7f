"""Implements ``python -m compcache.numba run PROGRAM ...``: runs a program that uses Numba, without importing Numba first."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = ["main"]

_USAGE = """\
usage: python -m compcache.numba run [--dir DIRECTORY] PROGRAM [ARGUMENT ...]
       python -m compcache.numba run [--dir DIRECTORY] -m MODULE [ARGUMENT ...]

Runs a program whose modules say `from numba import njit` with compcache.numba.install(lazy=True). Functions that were
compiled earlier are called without importing Numba."""


def main(arguments: list[str]) -> int:
    """Run a program with the lazy backend installed.

    Args:
        arguments: the command-line arguments after the name of the command.

    Returns:
        0 after the program has ended, or after the help was printed. 2 if the arguments are invalid; the usage is printed to stderr.

    Raises:
        SystemExit: the program's file cannot be read (status 2), a directory or archive has no `__main__` (status 1), or the program has
            raised it.
    """
    if arguments[:1] in (["--help"], ["-h"]):
        print(_USAGE)  # noqa: T201 - the user requested it
        return 0
    program = arguments[1:]
    directory = None
    if program[:1] == ["--dir"]:
        directory, program = (program[1] if program[1:] else None), program[2:]
    is_module = program[:1] == ["-m"]
    program = program[1:] if is_module else program
    if arguments[:1] != ["run"] or not program:
        print(_USAGE, file=sys.stderr)  # noqa: T201 - a command
        return 2
    _install_or_warn(directory)
    from compcache.numba.lazy.garbage import freeze_start

    freeze_start()
    sys.excepthook = _print_program_error
    if is_module:
        sys.argv = program
        from runpy import run_module

        run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        _run_file(program)
    return 0


def _install_or_warn(directory: str | None) -> None:
    """Install the lazy backend. If the cache cannot be used, issue a `CacheWarning`: the program then runs with Numba alone."""
    from compcache.numba import install

    try:
        install(directory, lazy=True)
    except Exception as error:
        from compcache.errors import CacheWarning, CompcacheError
        from compcache.interrupts import reraise_interrupt

        reraise_interrupt(error)
        if not isinstance(error, CompcacheError):
            raise
        import warnings

        warnings.warn(f"functions of Numba are not cached: {error}", CacheWarning, stacklevel=1)


def _print_program_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an exception that ends the program. The traceback begins with the first frame of the program."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _run_file(arguments: list[str]) -> None:
    """Run a Python file, directory or zip archive as the main program. `arguments` begin with its path.

    Raise `SystemExit` if a file cannot be read, or a directory or archive has no `__main__`. The reason is printed to stderr.
    """
    import os

    sys.argv = arguments
    path = os.path.abspath(arguments[0])
    main_module = type(sys)("__main__")
    names = vars(main_module)
    names.update({"__file__": path, "__builtins__": __builtins__, "__spec__": None, "__cached__": None})
    if _is_importable(path):
        from pkgutil import get_importer

        spec: Any = get_importer(path).find_spec("__main__")  # type: ignore[union-attr]
        if spec is None:
            print(f"python -m compcache.numba run: can't find '__main__' module in {arguments[0]!r}", file=sys.stderr)  # noqa: T201
            raise SystemExit(1)
        names.update({"__file__": spec.origin, "__spec__": spec, "__loader__": spec.loader, "__package__": "", "__cached__": spec.cached})
        code = spec.loader.get_code("__main__")
        directory = path
        if sys.flags.safe_path:
            sys.path.insert(0, directory)
    else:
        code = _compile_file(arguments[0], path)
        directory = os.path.dirname(os.path.realpath(path))
    if not sys.flags.safe_path:
        sys.path[0] = directory
    sys.modules["__main__"] = main_module
    exec(code, names)  # noqa: S102 - the command runs programs


def _compile_file(given_path: str, path: str) -> Any:
    """Return the code of a Python file, in which `path` names the file. Raise `SystemExit` if the file cannot be read, and print why."""
    try:
        with open(given_path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"python -m compcache.numba run: cannot read the program: {error}", file=sys.stderr)  # noqa: T201 - a command
        raise SystemExit(2) from None
    from compcache.numba.lazy._dispatch import compile_source

    # Only `compile` has a message for NUL bytes.
    return compile(source, path, "exec") if b"\0" in source else compile_source(source, path)


def _is_importable(path: str) -> bool:
    """Return whether a path is a directory or a zip archive, which can be imported. The result is False for an unreadable file."""
    import os

    if os.path.isdir(path):
        return True
    try:
        with open(path, "rb") as file:
            magic = file.read(2)
    except OSError:
        return False
    if magic not in (b"PK", b"#!"):  # an executable archive begins with the line that names its interpreter
        return False
    from zipfile import is_zipfile

    return is_zipfile(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
