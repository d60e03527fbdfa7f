"""What messages advise, in the words of the command line: the package speaks to programs."""

from __future__ import annotations

import re
import shlex

__all__ = ["in_commands"]

#: What only a program can do, with what joins it to the rest.
_OF_PROGRAMS = re.compile(r"Name it by its content \(an Identity, or Cache\.compile\), or (?:give it another name, or )?(\w)")
_REMOVAL = re.compile(r"cache\.remove\((?:'([^']*)'|\"([^\"]*)\")\)")


def in_commands(message: str) -> str:
    """The message of a warning or an error with commands in place of calls."""
    message = _OF_PROGRAMS.sub(lambda match: match[1].upper(), message)
    return _REMOVAL.sub(lambda match: f"compcache rm {shlex.quote(match[1] or match[2] or '')}", message)
