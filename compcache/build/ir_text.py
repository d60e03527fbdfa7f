r"""Reads printed LLVM assembly: which symbols each definition refers to, and what its head declares.

LLVM prints a module in a fixed shape (LLVM Language Reference, "Module Structure"): one line for a global
variable, alias or declaration; a function from a line that starts with ``define`` to a line ``}``. References
to global values are ``@name`` or ``@"quoted name"`` with ``\XX`` for unusual bytes, and nothing else is
written like that outside of string literals. Reading the text is some twenty times faster than walking every
operand through the C API, and sees constant expressions and initializers as well.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ATTACHMENTS", "Definition", "Head", "parse_head", "quote", "read_module", "split_parameters", "symbol_counts", "unquote"]

_NAME = re.compile(r'"([^"]*)"|([-$._A-Za-z0-9]+)')
_REFERENCE = re.compile(r'@(?:"([^"]*)"|([-$._A-Za-z0-9]+))|"[^"]*"')
_ESCAPE = re.compile(r"\\(\\|[0-9A-Fa-f]{2})")
_DECLARATION = re.compile(r"^declare ([^\n]*)$", re.MULTILINE)
_VARIABLE = re.compile(r"^@([^\n]*)$", re.MULTILINE)
_NESTED = re.compile(r'[(\[{<"]')
_PRINTABLE = frozenset(range(32, 127)) - {34, 92}  # no quotes, no backslashes
_PLAIN = re.compile(r"[-$._A-Za-z][-$._A-Za-z0-9]*\Z")
#: Metadata attachments stand between ``declare`` and the linkage of a declaration (`!dbg !7`, `!callback !2`).
ATTACHMENTS = r"(?:![-$._\\A-Za-z0-9]+ !(?:\d+|\w*\([^)]*\)) )*"
_ATTACHMENTS = re.compile(ATTACHMENTS)


class Definition(NamedTuple):
    """One global value: its kind (function, declaration, variable, external), head line and references."""

    kind: str
    head: str
    references: tuple[str, ...]


class Head(NamedTuple):
    """The head of a function: what stands before its name, its parameters' texts, what stands behind them."""

    prefix: str
    parameters: tuple[str, ...]
    suffix: str


def unquote(text: str) -> str:
    """The name that a quoted name's text stands for."""
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(lambda match: "\\" if match[1] == "\\" else chr(int(match[1], 16)), text).encode("latin-1", "surrogateescape")
    return data.decode("utf-8", "surrogateescape")


def quote(name: str) -> str:
    """A name as LLVM assembly writes it behind ``@``."""
    if _PLAIN.match(name):
        return name
    data = name.encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(b) if b in _PRINTABLE else f"\\{b:02X}" for b in data) + '"'


def _references(text: str) -> tuple[str, ...]:
    """The distinct names that `text` refers to, in the order of their first occurrence."""
    if "@" not in text:
        return ()
    if '"' not in text:
        pieces = [_NAME.match(piece) for piece in text.split("@")[1:]]
        return tuple(dict.fromkeys([match[2] for match in pieces if match]))
    names: dict[str, None] = {}
    for match in _REFERENCE.finditer(text):
        name = match[2] if match[2] is not None else match[1]
        if name is not None:
            names[unquote(name)] = None
    return tuple(names)


def read_module(text: str) -> dict[str, Definition]:
    """Every global value of a printed module by name.

    Aliases and ifuncs count as variables: what they refer to is what they resolve to.
    """
    found: dict[str, Definition] = {}
    for chunk in text.split("\n}\n"):  # every function ends like this, and nothing else does
        start = chunk.rfind("\ndefine ") + 1
        if not start and not chunk.startswith("define "):
            continue
        end = chunk.find("\n", start)
        name, *others = _references(chunk[start:])
        found[name] = Definition("function", chunk[start + len("define ") : end].removesuffix("{"), tuple(others))
    for match in _DECLARATION.finditer(text):
        name = _references(match[1])[0]
        found[name] = Definition("declaration", match[1], ())
    for match in _VARIABLE.finditer(text):
        name, *others = _references("@" + match[1])
        head = match[1]
        words = head.partition(" = ")[2].split(" ", 3)
        external = "external" in words or "extern_weak" in words
        found[name] = Definition("external" if external else "variable", head, tuple(others))
    return found


def symbol_counts(text: str) -> dict[str, int]:
    """How often each name is written in a module, its own definition included."""
    counts: dict[str, int] = {}
    for match in _REFERENCE.finditer(text):
        name = match[2] if match[2] is not None else match[1]
        if name is not None:
            name = unquote(name)
            counts[name] = counts.get(name, 0) + 1
    return counts


def parse_head(head: str) -> Head:
    """The parts of a function's head line (without ``define`` or ``declare``), metadata attachments left out."""
    if head.startswith("!"):
        head = _ATTACHMENTS.sub("", head, count=1)
    match = _REFERENCE.search(head)
    while match is not None and not match[0].startswith("@"):
        match = _REFERENCE.search(head, match.end())
    if match is None:
        raise ValueError(f"not the head of a function: {head!r}")
    end = _closing(head, match.end())
    return Head(head[: match.start()].strip(), split_parameters(head[match.end() + 1 : end]), head[end + 1 :])


def _closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    end = text.find(")", start)
    if text.find("(", start + 1, end) < 0 and text.find('"', start, end) < 0:
        return end
    depth = 0
    quoted = False
    for index in range(start, len(text)):
        character = text[index]
        if character == '"':
            quoted = not quoted
        elif not quoted and character in "([{<":
            depth += 1
        elif not quoted and character in ")]}>":
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"unbalanced brackets in {text!r}")


def split_parameters(text: str) -> tuple[str, ...]:
    """The texts between the commas of the outermost level."""
    if not _NESTED.search(text):
        return tuple(text.split(", ")) if text else ()
    parts: list[str] = []
    depth = 0
    quoted = False
    start = 0
    for index, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    return (*parts, last) if last else tuple(parts)
