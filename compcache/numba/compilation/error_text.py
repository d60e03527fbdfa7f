"""Shortens Numba's error for a function that it did not compile to one sentence."""

from __future__ import annotations

import itertools
import re
from typing import Any

from compcache.wording import shorten

__all__ = ["describe_error"]

_MAX_LENGTH = 300
_COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")
#: The beginnings of the lines that follow the first sentence of a message.
_DETAILS = ("File ", "During: ", "There are ", "raised from ", "This error is usually", "To see Python/NumPy", "For more information")
_HEADINGS = ("Failed in nopython mode pipeline", "- Resolution failure for")
_LOCATION = re.compile(r"During: \S+ of \S+ at ([^<\s].*?) \((\d+)\)")


def describe_error(error: Any) -> str:
    """Return the first sentence of a Numba error, and the location of the error in parentheses if it is known.

    The sentence is cut after 300 characters. Numba's full report is the text of the exception.
    """
    report = _COLOR_CODES.sub("", str(getattr(error, "msg", error)))
    lines = [line.strip() for line in report.splitlines()]
    text = " ".join(line for line in lines if line)
    return shorten(_first_sentence(lines, type(error)), _MAX_LENGTH) + _format_location(error, text)


def _format_location(error: Any, text: str) -> str:
    """Return the location of an error in parentheses, or "" if the location is unknown.

    If Numba's location has no file, the location comes from the text of the error, if the text contains one.
    """
    location = getattr(error, "loc", None)
    if location is None:
        return ""
    match = _LOCATION.search(text) if location.filename.startswith("<") else None
    return f" ({match[1]}, line {match[2]})" if match else f" ({location.filename}, line {location.line})"


def _first_sentence(lines: list[str], error_class: type) -> str:
    """Return the first sentence of Numba's message without headings, or the name of the error's class if there is no sentence."""
    message = [line for line in lines if line and not line.startswith(_HEADINGS)]
    beginning = itertools.takewhile(lambda line: not line.startswith(_DETAILS), message)
    text = " ".join(dict.fromkeys(beginning))
    return re.split(r"(?<=\w)\. (?=[A-Z])|\. For ", text)[0] or error_class.__name__
