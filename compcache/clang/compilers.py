"""Finds the compiler of a language."""

from __future__ import annotations

import os

from compcache.errors import CompileError
from compcache.record import Record

__all__ = ["LANGUAGES", "Compiler", "find_compiler", "language_of"]

#: By language: the compilers, the first choice first, and the suffixes of files.
LANGUAGES = {
    "c": (("clang",), (".c",)),
    "c++": (("clang++",), (".cpp", ".cc", ".cxx", ".c++", ".C", ".cppm", ".cxxm", ".c++m")),
    "fortran": (("flang", "flang-new"), (".f90", ".f95", ".f03", ".f08", ".f", ".for", ".F90")),
    "rust": (("rustc",), (".rs",)),
}


class Compiler(Record):
    """A runnable compiler: its language, the path of its program, and a stamp that changes with the program."""

    __slots__ = ("language", "path", "stamp")
    language: str
    path: str
    stamp: str


def language_of(path: str) -> str | None:
    """Return the language of a file by its suffix; None if it is none of `LANGUAGES`."""
    ending = os.path.splitext(path)[1]
    return next((language for language, (_, endings) in LANGUAGES.items() if ending in endings), None)


def find_compiler(language: str, cc: str | None = None) -> Compiler:
    """Return the compiler of a language.

    Raises:
        CompileError: it is not installed; the message says what to install.
    """
    if language not in LANGUAGES:
        raise CompileError(f"the language {language!r} is not known; there are {', '.join(map(repr, LANGUAGES))}")
    names = (cc,) if cc else LANGUAGES[language][0]
    for name in names:
        path = _which(name)
        if path is not None:
            status = os.stat(path)
            return Compiler(language, path, f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    raise CompileError(
        f"{language} needs {' or '.join(names)}, which is not installed: install it, or name another compiler that emits LLVM "
        "bitcode (cc=, --cc)"
    )


def _which(name: str) -> str | None:
    """Implement `shutil.which` without its imports."""
    if os.path.dirname(name):
        return os.path.abspath(name) if os.access(name, os.X_OK) and os.path.isfile(name) else None
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None
