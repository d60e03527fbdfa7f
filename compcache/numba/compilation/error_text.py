"""Describes in one sentence, for the author of a function, why Numba did not compile the function."""

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
_CLASS = r"<class '(?:builtins\.)?([^']+)'>"
_LOCATION = re.compile(r"During: \S+ of \S+ at ([^<\s].*?) \((\d+)\)")
#: Patterns of Numba's messages, with their meanings. The first pattern that matches is used.
_KNOWN_MESSAGES = (
    (r"No implementation of function Function\((.*?)\) found for signature: >>> <unknown function>\((.*?)\) There (?:is|are)",
     r"Numba has no implementation of '\1' for (\2)"),
    (r"No implementation of function Function\(.*?\) found for signature: >>> (?:impl_|ol_)?(\S+?)\((.*?)\) There (?:is|are)",
     r"Numba has no implementation of '\1' for (\2)"),
    (r"Invalid use of .*? with (?:argument|parameter)s? (?:of type\(s\): )?\((.*?)\)(?= [A-Z]|$)", r"a call with arguments of the types (\1) is not possible"),  # noqa: E501
    (r"Cannot unify (.+?) and (.+?) for '([^'.]+)[^']*'", r"the variable '\3' is \1 in one place and \2 in another"),
    (r"Unknown attribute '([^']+)' of type (.+?)(?: File \"| During: |$)", r"\2 has no attribute '\1'"),
    (r"<class 'numba\.core\.ir\.UndefinedType'>", "it uses a name that is not defined"),
    (r"Cannot determine Numba type of <class 'function'>", "it uses a plain Python function, which is not decorated with njit"),
    (r"Cannot determine Numba type of <class 'builtin_function_or_method'>", "it uses a built-in function that Numba does not support"),
    (r"Untyped global name '([^']+)': .*?" + _CLASS, r"it uses '\1', a '\2', which Numba cannot compile"),
    (r"Untyped global name '([^']+)'", r"it uses '\1', whose type Numba does not know"),
    (r"Cannot determine Numba type of " + _CLASS, r"it uses a '\1', which Numba cannot compile"),
    (r"global name '([^']+)' is not defined|NameError: name '([^']+)' is not defined", r"the name '\1\2' is not defined"),
    (r"Use of unsupported opcode \((\w+)\)", r"it uses a feature of Python that Numba does not support (the instruction \1)"),
    (r"[Nn]on-precise type (.+?)(?: (?:\[|During|Overload|Rejected)|$)", r"the type of a variable cannot be inferred (\1)"),
)  # fmt: skip
#: Patterns for parts of Numba's type names, with readable replacements.
_READABLE_TYPES = (
    (r"Module\(<module '([^']+)'[^>]*>\)", r"the module \1"), (r"Literal\[str\]\([^()]*\)", "str"), (r"Literal\[int\]\([^()]*\)", "int64"),
    (r"Poison<(.*)>", r"\1"), (r"<iv=[^>]*>", ""),
    (r"DictType\[undefined,undefined\]", "a dictionary of unknown types"), (r"\bunicode_type\b", "str"),
    (r"\s*\bat 0x[0-9a-f]+", ""), (r"<(?:function|built-in function|class) '?([\w.]+)'?>", r"\1"),
)  # fmt: skip


def describe_error(error: Any) -> str:
    """Return one sentence that describes a Numba error, and the location of the error in parentheses if it is known.

    The sentence is cut after 300 characters. Numba's full report is the text of the exception.
    """
    report = _COLOR_CODES.sub("", str(getattr(error, "msg", error)))
    lines = [line.strip() for line in report.splitlines()]
    text = " ".join(line for line in lines if line)
    sentence = _explain_known_message(text) or _first_sentence(lines, type(error))
    for pattern, word in _READABLE_TYPES:
        sentence = re.sub(pattern, word, sentence)
    return shorten(sentence, _MAX_LENGTH) + _format_location(error, text)


def _format_location(error: Any, text: str) -> str:
    """Return the location of an error in parentheses, or "" if the location is unknown.

    If Numba's location has no file, the location comes from the text of the error, if the text contains one.
    """
    location = getattr(error, "loc", None)
    if location is None:
        return ""
    match = _LOCATION.search(text) if location.filename.startswith("<") else None
    return f" ({match[1]}, line {match[2]})" if match else f" ({location.filename}, line {location.line})"


def _explain_known_message(text: str) -> str:
    """Return the meaning of Numba's message, or "" if no pattern matches the message."""
    for pattern, meaning in _KNOWN_MESSAGES:
        match = re.search(pattern, text)
        if match is not None:
            return match.expand(meaning)
    return ""


def _first_sentence(lines: list[str], error_class: type) -> str:
    """Return the first sentence of Numba's message without headings, or the name of the error's class if there is no sentence."""
    message = [line for line in lines if line and not line.startswith(_HEADINGS)]
    beginning = itertools.takewhile(lambda line: not line.startswith(_DETAILS), message)
    text = " ".join(dict.fromkeys(beginning))
    return re.split(r"(?<=\w)\. (?=[A-Z])|\. For ", text)[0] or error_class.__name__
