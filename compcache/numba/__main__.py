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
        SystemExit: the program's file cannot be read (status 2), there is no such module, a directory or archive has no `__main__`
            (status 1), or the program has raised it.
    """
    if {"-h", "--help"}.intersection(arguments[:2]):
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
    # The module stays in `sys.modules` after the program has run: threads, exit handlers and pickles use it.
    main_module = sys.modules["__main__"] = type(sys)("__main__")
    vars(main_module)["__builtins__"] = __builtins__
    if is_module:
        _run_module(program[0], ["-m", *program[1:]])
    else:
        _run_file(program, vars(main_module))
    return 0


def _install_or_warn(directory: str | None) -> None:
    """Install the lazy backend. If the cache cannot be used, issue a `CacheWarning`: the program then runs with Numba alone."""
    from compcache.numba import install

    try:
        install(directory, lazy=True)
    except Exception as error:
        from compcache.errors import CompcacheError
        from compcache.interrupts import reraise_interrupt
        from compcache.warning import warn

        reraise_interrupt(error)
        if not isinstance(error, CompcacheError):
            raise
        warn(f"functions of Numba are not cached: {error}")


def _print_program_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an exception that ends the program, with the traceback that Python would print: without the frames of this module."""
    rest = traceback
    while rest is not None:
        if rest.tb_frame.f_globals is globals():
            traceback = rest.tb_next
        rest = rest.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _run_module(name: str, arguments: list[str]) -> None:
    """Run a module as Python does for `-m`, or the module `__main__` of the first directory on the path, in the present `__main__`.

    `arguments` become `sys.argv`. The first argument is "-m", in whose place Python puts the module's file, or a directory or an archive.
    Raise `SystemExit` if there is no such module.
    """
    import runpy

    sys.argv = arguments
    runpy._run_module_as_main(name, alter_argv=arguments[0] == "-m")  # type: ignore[attr-defined]


def _run_file(arguments: list[str], names: dict[str, Any]) -> None:
    """Run a Python file, directory or zip archive as the main program. `arguments` begin with its path, `names` are its globals.

    Raise `SystemExit` if a file cannot be read, or a directory or archive has no `__main__`. The reason is printed to stderr.
    """
    import os
    from importlib.machinery import SourceFileLoader

    path = os.path.abspath(arguments[0])
    is_importable = _is_importable(path)
    directory = path if is_importable else os.path.dirname(os.path.realpath(path))
    code = None if is_importable else _compile_file(arguments[0], path)
    if not sys.flags.safe_path:
        sys.path[0] = directory
    elif is_importable:
        sys.path.insert(0, directory)
    if code is None:
        _run_module("__main__", arguments)
        return
    sys.argv = arguments
    names.update({"__file__": path, "__loader__": SourceFileLoader("__main__", path), "__cached__": None})
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
