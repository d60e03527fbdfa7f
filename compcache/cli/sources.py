"""Reading files of code for a command: LLVM code as it is, source files through their compilers, and the errors of each file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compcache.build.source import ModuleSource
from compcache.cli.output import ProgressBar, print_message
from compcache.errors import CompcacheError, CompileError, UndefinedSymbolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from compcache.clang.compile_commands import CompileCommand
    from compcache.clang.units import Unit

__all__ = ["Reading", "common_error_lines", "error_lines", "read_commands"]

#: Line starts that occur in LLVM assembly and hardly in other text.
_CODE = re.compile(
    rb"^\s*(?:define |declare |target (?:triple|datalayout) |source_filename |module asm |[@$%][^ ]+ = |!\d+ = )", re.MULTILINE
)
_HEAD = 4096  # bytes of a file searched for NUL bytes
#: Parameters of `ModuleSource` and the options that set them.
_OPTIONS = {
    "imports": "--import", "globals": "--global", "libraries": "--library", "archives": "--archive", "functions": "--export",
    "cpu": "--cpu", "features": "--features", "targets": "--targets", "optimize": "--optimize", "cc": "--cc",
}  # fmt: skip
_OPTION = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\[[^\]]*\])?")
_QUOTED = re.compile(r"'([^']*)'")
#: The reference to a member of a group in an error message.
_SOURCE = re.compile(r"\bsource (\d+)(?: \([^)\n]*\))?")


class Reading:
    """An iterable that reads each file, compiles it if necessary, and yields its source.

    Iterating fills `numbers`, the positions of the files whose sources were yielded, and `errors`, the errors of the other files by
    position. The caller adds the errors that concern several files to `common_errors`.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        options: dict[str, Any],
        cc: str | None,
        flags: tuple[str, ...] | None,
        commands: Mapping[str, CompileCommand] | None,
        bar: ProgressBar,
    ) -> None:
        self.files, self._options, self._cc, self._flags, self._commands, self._bar = files, options, cc, flags, commands, bar
        self.numbers: list[int] = []
        self.errors: dict[int, Exception] = {}
        self.common_errors: list[str] = []

    def __iter__(self) -> Iterator[ModuleSource]:
        """Yield the sources of the files that can be read and compiled, and show the progress."""
        for number, path in enumerate(self.files):
            self._bar.update(number, len(self.files))
            try:
                unit = _make_unit(path, self._cc, self._flags, self._commands)
                source = _compile_file(unit, self._options) if unit is not None else ModuleSource(_read_code(path), **self._options)
            except (CompcacheError, OSError) as error:
                self.errors[number] = error
                continue
            self.numbers.append(number)
            yield source


def read_commands(database: str) -> dict[str, CompileCommand]:
    """Return the first compile command of each file in a compilation database, by path. Warn of files with several commands.

    Raise `click.UsageError` if the database cannot be read or has no usable file.
    """
    from compcache.clang.compile_commands import read_compile_commands

    try:
        commands = read_compile_commands(database)
    except (OSError, CompileError) as error:
        cause = str(error)
        if isinstance(error, OSError):
            path = error.filename or database
            cause = f"{path} cannot be read ({error.strerror or error}): name a compile_commands.json, or the directory that contains it"
        raise click.UsageError(f"--compile-commands: {cause}") from error
    by_path: dict[str, CompileCommand] = {}
    for command in commands:
        if by_path.setdefault(command.path, command) is not command:
            print_message("warning", f"{database} has several commands for {os.path.relpath(command.path)}: the first command is used")
    if not by_path:
        raise click.UsageError(f"--compile-commands: {database} has no files in C, C++ or Fortran: name another database")
    return by_path


def _make_unit(path: str, cc: str | None, flags: tuple[str, ...] | None, commands: Mapping[str, CompileCommand] | None) -> Unit | None:
    """Return the compilation of a source file; None for a file of LLVM code.

    Raise `CompileError` if the file is assembly, or the compile commands have no entry for it; see `make_unit` for other exceptions.
    """
    from compcache.clang.compilers import language_of

    if path.endswith((".s", ".S", ".asm")):
        raise CompileError(
            "this is native assembly, not LLVM code: assemble it (clang -c), put the object into a static library (ar rcs), and add the "
            "file that calls it with --archive LIBRARY"
        )
    if path == "-" or language_of(path) is None:
        return None
    from compcache.clang.units import make_unit

    if commands is None:
        return make_unit(Path(path), flags, cc)
    command = commands.get(os.path.abspath(path))
    if command is None:
        raise CompileError("the compile commands have no entry for this file: add it without --compile-commands, with its flags after --")
    return make_unit(Path(command.name), (*command.flags, *(flags or ())), cc or command.compiler, directory=command.directory)


def _compile_file(unit: Unit, options: dict[str, Any]) -> ModuleSource:
    """Compile a source file to bitcode, and return it as the source of a module. See `preprocess` and `translate` for the exceptions."""
    from compcache.clang.run import identity_of_unit, makers_of_unit, preprocess, translate
    from compcache.clang.runtimes import add_runtime_libraries

    translation = preprocess(unit)
    code, options = add_runtime_libraries(unit, translate(unit, translation), options)
    return ModuleSource(code, identity=identity_of_unit(unit, translation), makers=makers_of_unit(translation), **options)


def _read_code(path: str) -> bytes:
    """Return the content of a file of LLVM code; of standard input for "-".

    Raise `OSError` if the file cannot be read, or `CompileError` if it is text that is not LLVM assembly, and its extension is not .ll.
    """
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as file:
        content = file.read()
    ending = os.path.splitext(path)[1]
    is_text = b"\0" not in content[:_HEAD] and not content.startswith(b"BC")
    if ending != ".ll" and is_text and not _CODE.search(content):
        from compcache.clang.compilers import LANGUAGES

        endings_text = " ".join([ending for _, endings in LANGUAGES.values() for ending in endings])
        name = f"the extension {ending!r}" if ending else "its name without an extension"
        raise CompileError(f"the file is not LLVM code, and {name} does not identify its language; known extensions: {endings_text}")
    return content


def _error_text(error: Exception) -> str:
    """Return the message of an error about files, with command-line options in place of Python parameters."""
    if isinstance(error, OSError) and not isinstance(error, CompcacheError):
        return f"cannot be read: {error.strerror or error}"
    text = str(error).replace("imports/globals name", "imports= and globals= name")
    return _OPTION.sub(_option_text, text).replace("<string>:", "line ")


def _option_text(match: re.Match[str]) -> str:
    """Return the command-line option for a Python parameter in a message, once for each value in the message."""
    option = _OPTIONS[match[1]]
    values = _QUOTED.findall(match[2] or "")
    return " ".join([f"{option} {value}" for value in values]) or option


def common_error_lines(error: Exception, files: Sequence[str]) -> list[str]:
    """Return the message of an error that concerns several files, by lines. `files` are the paths of the sources that were added."""
    return [_SOURCE.sub(lambda match: files[int(match[1])], line.strip()) for line in _error_text(error).splitlines()]


def error_lines(files: Sequence[str], errors: Mapping[int, Exception]) -> list[str]:
    """Return a message for each file with an error. Undefined symbols come last, because other files with errors may define them."""
    ordered = sorted(errors, key=lambda number: (isinstance(errors[number], UndefinedSymbolError), number))
    return [f"{files[number]}: {_error_text(errors[number])}" for number in ordered]
