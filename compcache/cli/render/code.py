"""Syntax colours for LLVM assembly and native assembly.

Lines are coloured one by one, by the form of their tokens. A keyword of a later LLVM is a plain word, never an error.
"""

from __future__ import annotations

import re

import click

__all__ = ["highlight"]

_IR = re.compile(
    r"""(?P<comment>;.*)
      | (?P<text>c?"[^"]*")
      | (?P<global>@[-$.\w]+|@"[^"]*")
      | (?P<local>%[-$.\w]+|%"[^"]*")
      | (?P<label>^[-$.\w]+:)
      | (?P<type>\b(?:i\d+|void|half|bfloat|float|double|fp128|x86_fp80|ptr|label|metadata|token)\b)
      | (?P<keyword>\b(?:define|declare|ret|br|switch|call|invoke|load|store|phi|select|getelementptr|alloca|unreachable|[if]cmp
          |f?(?:add|sub|mul|div|neg|rem)|[us]div|[us]rem|shl|[al]shr|and|or|xor|[sz]ext|trunc|fpext|fptrunc|bitcast|[su]itofp
          |fpto[su]i|ptrtoint|inttoptr|extractvalue|insertvalue|extractelement|insertelement|shufflevector|tail|musttail)\b)
      | (?P<number>(?<![\w.])-?\d[\d.]*(?:e[-+]?\d+)?\b)""",
    re.VERBOSE,
)
_ASSEMBLY = re.compile(
    r"""(?P<comment>\#.*|//.*)
      | (?P<text>"[^"]*")
      | (?P<label>^[.$@\w]+:)
      | (?P<directive>^\s+\.[.\w]+)
      | (?P<keyword>^\s+[a-z][.\w]*)
      | (?P<local>%[a-z]\w*)
      | (?P<number>\$?-?\b(?:0x[0-9a-f]+|\d+)\b)""",
    re.VERBOSE,
)
_LANGUAGES = {"llvm": _IR, "asm": _ASSEMBLY}
_STYLES = {
    "comment": {"dim": True}, "text": {"fg": "green"}, "global": {"fg": "cyan"}, "local": {"fg": "yellow"},
    "label": {"bold": True}, "type": {"fg": "blue"}, "keyword": {"fg": "magenta"}, "number": {"fg": "green"},
    "directive": {"dim": True},
}  # fmt: skip


def highlight(line: str, language: str) -> str:
    """Return a line of code with colour codes; `language` is ``llvm`` or ``asm``."""

    def add_colour(match: re.Match[str]) -> str:
        return click.style(match[0], **_STYLES[match.lastgroup or "comment"])  # type: ignore[arg-type]

    return _LANGUAGES[language].sub(add_colour, line)
