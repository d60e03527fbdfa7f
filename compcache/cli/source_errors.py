"""The errors of files as messages, with options in place of Python parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.errors import CompcacheError, UndefinedSymbolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["common_error_lines", "error_lines"]

#: Parameters of `ModuleSource` and the options that set them.
_OPTIONS = {
    "imports": "--import", "globals": "--global", "libraries": "--library", "archives": "--archive", "functions": "--export",
    "cpu": "--cpu", "features": "--features", "targets": "--targets", "optimize": "--optimize", "cc": "--cc",
}  # fmt: skip
_OPTION = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\[[^\]]*\])?")
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


def error_lines(files: Sequence[str], errors: Mapping[int, Exception]) -> list[str]:
    """Return a message for each file with an error. Undefined symbols come last, because other files with errors may define them."""
    ordered = sorted(errors, key=lambda number: (isinstance(errors[number], UndefinedSymbolError), number))
    return [f"{files[number]}: {_error_text(errors[number])}" for number in ordered]
