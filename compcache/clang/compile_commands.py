"""Reads compilation databases of CMake, Meson and Bear, which contain the compiler's command for each file of a project.

The format is described in Clang's documentation, "JSON Compilation Database Format Specification".
"""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.clang.compilers import language_of
from compcache.errors import CompileError
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CompileCommand", "read_compile_commands"]

_NAME = "compile_commands.json"
_LANGUAGES = ("c", "c++", "fortran")
#: Programs that run the compiler whose name is the next word of the command.
_LAUNCHERS = frozenset(("ccache", "sccache", "distcc", "icecc"))
#: Flags that select the output of a compiler (an object, a list of headers for make) and its file. `_OUTPUT_OPTIONS` have a value, in the
#: same or the next word.
_OUTPUT_FLAGS = frozenset(("-c", "-MD", "-MMD", "-MP", "-MG", "-MV", "--"))
_OUTPUT_OPTIONS = ("-o", "-MF", "-MT", "-MQ", "-MJ")
#: GNU compilers, which cannot write LLVM bitcode. The cache compiles with clang instead.
_GNU = re.compile(r"(?:.*-)?(?:cc|c\+\+|gcc|g\+\+|gfortran|c89|c99)(?:-[\d.]+)?\Z")


class CompileCommand(NamedTuple):
    """The command that compiles a file.

    `path` is the file's absolute path, `name` its name in the command, `directory` the working directory of the command. `compiler` is None
    for GNU compilers. `flags` do not contain the flags that select the output and its file.
    """

    path: str
    name: str
    directory: str
    compiler: str | None
    flags: tuple[str, ...]


def read_compile_commands(path: str | os.PathLike[str]) -> tuple[CompileCommand, ...]:
    """Return the commands for files in C, C++ and Fortran, in the order of the database, without duplicates.

    Args:
        path: the database, or the directory that contains it as ``compile_commands.json``.

    Raises:
        CompileError: the file is not a compilation database. The message names the invalid entry by its number.
        OSError: the file cannot be read.
    """
    path = os.fspath(path)
    path = os.path.join(path, _NAME) if os.path.isdir(path) else path
    with open(path, "rb") as file:
        content = file.read()
    try:
        entries = json.loads(content)
    except ValueError as error:
        reraise_interrupt(error)
        raise CompileError(f"{path} is not a compilation database ({error}): write it again, for example with CMake") from error
    if not isinstance(entries, list):
        raise CompileError(f"{path} is not a compilation database: the JSON text must be a list of entries")
    base_directory = os.path.dirname(os.path.abspath(path))
    commands = [_read_entry(entry, base_directory, f"entry {number} of {path}") for number, entry in enumerate(entries)]
    return tuple(dict.fromkeys([command for command in commands if language_of(command.path) in _LANGUAGES]))


def _read_entry(entry: Any, base_directory: str, label: str) -> CompileCommand:
    """Return an entry of a compilation database. Raise `CompileError` with `label` if the entry is malformed."""
    if not isinstance(entry, dict):
        raise CompileError(f"{label} must be a JSON object")
    name, directory = entry.get("file"), entry.get("directory", base_directory)
    if not isinstance(name, str):
        raise CompileError(f'the key "file" of {label} must be the name of a file, not {type(name).__name__}')
    if not isinstance(directory, str):
        raise CompileError(f'the key "directory" of {label} must be the path of a directory, not {type(directory).__name__}')
    words = _split_command(entry, f"{label} ({name})")
    while len(words) > 1 and os.path.basename(words[0]) in _LAUNCHERS:
        del words[0]
    directory = os.path.normpath(os.path.join(base_directory, directory))
    path = os.path.normpath(os.path.join(directory, name))
    is_gnu = _GNU.match(os.path.basename(words[0])) is not None
    compiler = words[0] if not os.path.dirname(words[0]) else os.path.join(directory, words[0])
    flags = tuple(_code_flags(words[1:], path, directory))
    if is_gnu:  # with -Werror, warnings that only clang gives would be errors
        flags = tuple([flag for flag in flags if not flag.startswith("-Werror")])
    return CompileCommand(path, name, directory, None if is_gnu else compiler, flags)


def _split_command(entry: dict[str, Any], label: str) -> list[str]:
    """Return the words of an entry's command, at least one. Raise `CompileError` with `label` if the entry has no valid command."""
    words = entry.get("arguments")
    if words is None and isinstance(entry.get("command"), str):
        try:
            words = shlex.split(entry["command"])
        except ValueError as error:
            reraise_interrupt(error)
            raise CompileError(
                f"{label} has a command that cannot be split into words ({error}): correct its quotes and backslashes"
            ) from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise CompileError(f"{label} must contain the command as a list of strings `arguments` or a string `command`")
    return list(words)


def _code_flags(words: Iterable[str], path: str, directory: str) -> Iterator[str]:
    """Yield the words of a command that affect the generated code. Skip the flags for the output, and the name of the source file."""
    remaining = iter(words)
    for word in remaining:
        if word in _OUTPUT_OPTIONS:
            next(remaining, None)
        elif word.startswith("-"):
            if word not in _OUTPUT_FLAGS and not word.startswith(_OUTPUT_OPTIONS):
                yield word
        elif os.path.normpath(os.path.join(directory, word)) != path:
            yield word
