"""Weak functions that give way to definitions in other files, as they do when files are linked.

A weak definition that another file overrides becomes a declaration, which is then imported like any other. C++'s inline functions and
templates (``weak_odr``) are equal in all files, and stay.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build.ir_text import parse_head, quote, unquote

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["weak_functions", "without_overridden"]

_NAME = r'@(?:"(?P<quoted>[^"\n]*)"|(?P<plain>[-\w.$]+))'
_FUNCTION = re.compile(rf"^define weak (?P<words>(?:(?!@)[^\n])*){_NAME}\((?P<rest>[^\n]*)$", re.MULTILINE)
_ALIAS = re.compile(rf"^{_NAME} = weak (?:[a-z_]+ )*alias (?P<type>[^\n]*\)), ptr (?P<target>[^\n]*)$", re.MULTILINE)
#: What may stand between linkage and type, and neither an internal function nor a declaration needs.
_WORDS = re.compile(r"\b(?:dso_local|dso_preemptable|hidden|protected|default) ")
_MERGED = " comdat"
_OWN = "compcache.weak."


def weak_functions(text: str) -> frozenset[str]:
    """Return the functions of a printed module, and the aliases of functions, that a definition in another file overrides."""
    if " weak " not in text:
        return frozenset()
    found = [match for match in _FUNCTION.finditer(text) if _MERGED not in match["rest"]]
    return frozenset([_name(match) for match in (*found, *_ALIAS.finditer(text))])


def without_overridden(text: str, names: Collection[str]) -> str:
    """Return the module's text with declarations in place of these weak functions, which another module defines."""
    declared: list[str] = []

    def function(match: re.Match[str]) -> str:
        if _name(match) not in names or _MERGED in match["rest"]:
            return match[0]
        words = _WORDS.sub("", match["words"])
        head = parse_head(f"{words}@{quote(_name(match))}({match['rest']}")
        parameters = ", ".join([parameter.rpartition(" %")[0] or parameter for parameter in head.parameters])
        declared.append(f"declare {words}@{quote(_name(match))}({parameters})")
        return f"define internal {words}@{quote(_OWN + _name(match))}({match['rest']}"

    def alias(match: re.Match[str]) -> str:
        if _name(match) not in names:
            return match[0]
        result, _, parameters = match["type"].partition(" (")
        declared.append(f"declare {result} @{quote(_name(match))}({parameters}")
        return ""

    changed = _ALIAS.sub(alias, _FUNCTION.sub(function, text))
    return "\n".join([changed, *declared, ""])


def _name(match: re.Match[str]) -> str:
    return unquote(match["quoted"]) if match["quoted"] is not None else match["plain"]
