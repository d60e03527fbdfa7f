"""Finds the compiler of a language."""

from __future__ import annotations

import os

from compcache.errors import CompileError
from compcache.record import Record

__all__ = ["LANGUAGES", "Compiler", "find_compiler", "language_of"]

#: The compilers of each language, in the order in which they are tried, and the suffixes of its files.
LANGUAGES = {
    "c": (("clang",), (".c",)),
    "c++": (("clang++",), (".cpp", ".cc", ".cxx", ".c++", ".C", ".cppm", ".cxxm", ".c++m")),
    "fortran": (("flang", "flang-new"), (".f90", ".f95", ".f03", ".f08", ".f", ".for", ".F90")),
    "rust": (("rustc",), (".rs",)),
}


class Compiler(Record):
    """An installed compiler: its language, the path of its program, and the program's real path, size and modification time as a text."""

    __slots__ = ("language", "path", "stamp")
    language: str
    path: str
    stamp: str


def language_of(path: str) -> str | None:
    """Return the language of a file by its suffix; None if the suffix is not in `LANGUAGES`."""
    ending = os.path.splitext(path)[1]
    return next((language for language, (_, endings) in LANGUAGES.items() if ending in endings), None)


def find_compiler(language: str, cc: str | None = None) -> Compiler:
    """Return the compiler of a language.

    `cc` is a path, or a name to find in PATH. None selects the first installed compiler of the language in `LANGUAGES`.

    Raise `CompileError` if the compiler is not installed, or the language is not supported.
    """
    if language not in LANGUAGES:
        raise CompileError(f"the language {language!r} is not supported: use one of {', '.join(map(repr, LANGUAGES))}")
    names = (cc,) if cc else LANGUAGES[language][0]
    for name in names:
        path = _find_executable(name)
        if path is not None:
            status = os.stat(path)
            return Compiler(language, path, f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    raise CompileError(
        f"the compiler {' or '.join(names)} for {language} is not installed: install the compiler, or choose another compiler that is "
        "built on LLVM (cc=)"
    )


def _find_executable(name: str) -> str | None:
    """Return the absolute path of an executable file; None if it does not exist. `shutil.which` would import more modules."""
    if os.path.dirname(name):
        return os.path.abspath(name) if os.access(name, os.X_OK) and os.path.isfile(name) else None
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None
