"""Describes in one sentence, for the author of a function, why Numba did not compile the function."""

from __future__ import annotations

import itertools
import re
from typing import Any

__all__ = ["describe_error"]

_MAX_LENGTH = 300
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NOT_FIRST = ("File ", "During: ", "There are ", "raised from ", "This error is usually", "To see Python/NumPy", "For more information")
_HEADINGS = ("Failed in nopython mode pipeline", "- Resolution failure for")
_CLASS = r"<class '(?:builtins\.)?([^']+)'>"
_PLACE = re.compile(r"During: \S+ of \S+ at ([^<\s].*?) \((\d+)\)")
#: Patterns of Numba's messages, with their meanings. The first pattern that matches is used.
_KNOWN = (
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
#: Parts of Numba's names for types, and readable words for them.
_TYPES = (
    (r"Module\(<module '([^']+)'[^>]*>\)", r"the module \1"), (r"Literal\[str\]\([^()]*\)", "str"), (r"Literal\[int\]\([^()]*\)", "int64"),
    (r"Poison<(.*)>", r"\1"), (r"<iv=[^>]*>", ""),
    (r"DictType\[undefined,undefined\]", "a dictionary of unknown types"), (r"\bunicode_type\b", "str"),
    (r"\s*\bat 0x[0-9a-f]+", ""), (r"<(?:function|built-in function|class) '?([\w.]+)'?>", r"\1"),
)  # fmt: skip


def describe_error(error: Any) -> str:
    """Return one sentence that describes a Numba error, and the location of the error in parentheses if it is known.

    Numba's whole report is the text of the exception.
    """
    text = _ESCAPES.sub("", str(getattr(error, "msg", error)))
    lines = [line.strip() for line in text.splitlines()]
    joined = " ".join(line for line in lines if line)
    shown = next((match.expand(meaning) for match, meaning in _matches(joined)), None) or _first_sentence(lines, type(error))
    for pattern, word in _TYPES:
        shown = re.sub(pattern, word, shown)
    shown = shown if len(shown) <= _MAX_LENGTH else f"{shown[:_MAX_LENGTH]}..."
    return shown + _place(error, joined)


def _place(error: Any, text: str) -> str:
    """Return the location of an error in parentheses; "" if it is unknown. If Numba's location has no file, use one that the text names."""
    place = getattr(error, "loc", None)
    if place is None:
        return ""
    inside = _PLACE.search(text) if place.filename.startswith("<") else None
    return f" ({inside[1]}, line {inside[2]})" if inside else f" ({place.filename}, line {place.line})"


def _matches(text: str) -> Any:
    for pattern, meaning in _KNOWN:
        match = re.search(pattern, text)
        if match is not None:
            yield match, meaning


def _first_sentence(lines: list[str], type_: type) -> str:
    sentences = [line for line in lines if line and not line.startswith(_HEADINGS)]
    kept = itertools.takewhile(lambda line: not line.startswith(_NOT_FIRST), sentences)
    text = " ".join(dict.fromkeys(kept))
    return re.split(r"(?<=\w)\. (?=[A-Z])|\. For ", text)[0] or type_.__name__
