"""Advice in messages, translated from Python calls to commands."""

from __future__ import annotations

import re
import shlex

import click

__all__ = ["translate_advice"]

#: Advice that only a program can follow, and the words that join it to the advice after it.
_FOR_PROGRAMS = re.compile(
    r"Name (?:the function by its|functions by their) content \(an Identity, or Cache\.compile\),"
    r"(?: give the function another name,)? or (\w)"
)
_REMOVAL = re.compile(r"cache\.remove\((?:'([^']*)'|\"([^\"]*)\")\)")
_REMOVE_FIRST = re.compile(rf"Remove the cached code first: {_REMOVAL.pattern}")


def translate_advice(message: str) -> str:
    """Replace the Python calls in the message of a warning or error with commands, and return the message."""
    message = _FOR_PROGRAMS.sub(lambda match: match[1].upper(), message)
    context = click.get_current_context(silent=True)
    if context is not None and any(parameter.name == "replace" for parameter in context.command.params):
        message = _REMOVE_FIRST.sub("Add it with --replace, which removes the older code", message)
    return _REMOVAL.sub(lambda match: f"compcache rm {shlex.quote(match[1] or match[2] or '')}", message)
