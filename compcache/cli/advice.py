"""The advice in messages, for the command line: the package words it for programs."""

from __future__ import annotations

import re
import shlex

import click

__all__ = ["in_commands"]

#: Advice that only a program can follow, with its conjunction.
_OF_PROGRAMS = re.compile(r"Name it by its content \(an Identity, or Cache\.compile\),(?: give it another name,)? or (\w)")
_REMOVAL = re.compile(r"cache\.remove\((?:'([^']*)'|\"([^\"]*)\")\)")
_FIRST = re.compile(rf"Remove the cached code first: {_REMOVAL.pattern}")


def in_commands(message: str) -> str:
    """Return the message of a warning or an error with commands in place of Python calls."""
    message = _OF_PROGRAMS.sub(lambda match: match[1].upper(), message)
    context = click.get_current_context(silent=True)
    if context is not None and any(parameter.name == "replace" for parameter in context.command.params):
        message = _FIRST.sub("Add it with --replace, which removes the older code", message)
    return _REMOVAL.sub(lambda match: f"compcache rm {shlex.quote(match[1] or match[2] or '')}", message)
