"""Implements ``python -m compcache.numba run PROGRAM ...``: runs a program that uses Numba, without importing Numba first."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["main"]

_USAGE = """\
usage: python -m compcache.numba run [--dir DIRECTORY] PROGRAM [ARGUMENT ...]
       python -m compcache.numba run [--dir DIRECTORY] -m MODULE [ARGUMENT ...]

Runs a program whose modules say `from numba import njit` with compcache.numba.install(lazy=True): functions compiled
earlier are called without importing Numba."""


def main(arguments: list[str]) -> int:
    """Run a program with the lazy backend installed.

    Returns:
        0 for success; 2 if the arguments are invalid, after the usage was printed to stderr.
    """
    if arguments[:1] in (["--help"], ["-h"]):
        print(_USAGE)  # noqa: T201 - the user requested it
        return 0
    rest = arguments[1:]
    directory = None
    if rest[:1] == ["--dir"]:
        directory, rest = (rest[1] if rest[1:] else None), rest[2:]
    is_module = rest[:1] == ["-m"]
    rest = rest[1:] if is_module else rest
    if arguments[:1] != ["run"] or not rest or (directory is None and "--dir" in arguments[1:2]):
        print(_USAGE, file=sys.stderr)  # noqa: T201 - a command
        return 2
    from compcache.numba import install

    install(directory, lazy=True)
    sys.excepthook = _print_program_error
    if is_module:
        sys.argv = rest
        sys.path[0] = ""
        from runpy import run_module

        run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        _run_file(rest)
    return 0


def _print_program_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an exception that ends the program. The traceback begins with the first frame of the program."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _run_file(arguments: list[str]) -> None:
    """Run a Python file, directory or archive as the main program. Exit with status 2 if the file cannot be read."""
    import os

    sys.argv = arguments
    path = arguments[0]
    if _is_importable(path):
        from runpy import run_path

        del sys.path[0]  # `run_path` inserts the program's own directory
        run_path(path, run_name="__main__")
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"python -m compcache.numba run: {error}", file=sys.stderr)  # noqa: T201 - a command
        raise SystemExit(2) from None
    path = os.path.abspath(path)
    sys.path[0] = os.path.dirname(path)
    main_module = type(sys)("__main__")
    vars(main_module).update({"__file__": path, "__builtins__": __builtins__, "__spec__": None, "__cached__": None})
    sys.modules["__main__"] = main_module
    from compcache.numba.lazy._dispatch import compile_source

    # Only `compile` has a message for NUL bytes.
    code = compile(source, path, "exec", dont_inherit=True) if b"\0" in source else compile_source(source, path)
    exec(code, vars(main_module))  # noqa: S102 - the command runs programs


def _is_importable(path: str) -> bool:
    """Return whether a program is a directory or a zip archive. Return False if the file cannot be read."""
    import os

    if os.path.isdir(path):
        return True
    try:
        with open(path, "rb") as file:
            first = file.read(2)
    except OSError:
        return False
    if first not in (b"PK", b"#!"):
        return False
    from zipfile import is_zipfile

    return is_zipfile(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
