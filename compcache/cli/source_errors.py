"""The errors of files as messages: with options in place of Python parameters, and one message for files that only lack other files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from compcache.errors import CompcacheError, UndefinedSymbolError
from compcache.interrupts import reraise_interrupt
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["common_error_lines", "error_lines"]

_MOST_NAMED = 8  # files on a line of output
#: Parameters of `ModuleSource` and the options that set them.
_OPTIONS = {
    "imports": "--import", "globals": "--global", "libraries": "--library", "archives": "--archive", "functions": "--export",
    "cpu": "--cpu", "features": "--features", "targets": "--targets", "optimize": "--optimize", "cc": "--cc",
}  # fmt: skip
_OPTION = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\[[^\]]*\])?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"'([^']*)'")
#: The reference to a member of a group in an error message.
_SOURCE = re.compile(r"\bsource (\d+)(?: \([^)\n]*\))?")


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


def error_lines(files: Sequence[str], errors: Mapping[int, Exception]) -> Iterator[str]:
    """Yield a message for each file with its own error, and one message for all files that only lack definitions in such files."""
    dependents = _dependent_files(files, errors)
    for number, error in sorted(errors.items()):
        if number not in dependents:
            yield f"{files[number]}: {_error_text(error)}"
    if dependents:
        names = [files[number] for number in sorted(dependents)]
        subject = "1 other file needs" if len(names) == 1 else f"{len(names)} other files need"
        yield f"{subject} definitions of the files above: {join_first(names, _MOST_NAMED)}"


def _dependent_files(files: Sequence[str], errors: Mapping[int, Exception]) -> set[int]:
    """Return the positions of files whose only errors are undefined symbols that other failed files seem to define.

    A failed file cannot be parsed. A file seems to define a symbol if it contains the name, and the symbol is not undefined in it.
    Return an empty set if all files would be in the result.
    """
    missing = {number: error.symbols for number, error in errors.items() if isinstance(error, UndefinedSymbolError) and error.symbols}
    if len(errors) == 1 or not missing:
        return set()
    from compcache.images.libraries import demangle

    words = {number: _read_words(files[number]) for number in errors}

    def is_defined_elsewhere(symbol: str) -> bool:
        """Return whether a file that has no error about a symbol contains the symbol's name."""
        qualified_name, _, _ = demangle(symbol).partition("(")
        _, _, last_part = qualified_name.rpartition(":")
        names = {symbol.lower(), symbol.lower().strip("_"), last_part.lower()}
        return any(symbol not in missing.get(number, ()) and not content.isdisjoint(names) for number, content in words.items())

    dependents = {number for number, symbols in missing.items() if all(map(is_defined_elsewhere, symbols))}
    return dependents if len(dependents) < len(errors) else set()


def _read_words(path: str) -> frozenset[str]:
    """Return the words of a file in lower case, because Fortran ignores case; empty for a file that cannot be read."""
    try:
        content = b"" if path == "-" else Path(path).read_bytes()
    except OSError as error:
        reraise_interrupt(error)
        content = b""
    return frozenset([word.decode().lower() for word in _WORD.findall(content)])
