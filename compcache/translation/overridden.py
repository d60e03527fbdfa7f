"""Weak functions that definitions in other files override, as in a linker.

A weak definition that another file overrides becomes a declaration, and is imported. Inline functions and templates of C++ (``weak_odr``)
are equal in all files, so their definitions are kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build.ir_text import parse_head, quote, referenced_name, unquote, without_name
from compcache.build.pic import ALIAS

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["weak_functions", "without_overridden"]

_NAME = r'@(?:"(?P<quoted>[^"\n]*)"|(?P<plain>[-\w.$]+))'
_FUNCTION = re.compile(rf"^define weak (?P<words>(?:(?!@)[^\n])*){_NAME}\((?P<rest>[^\n]*)$", re.MULTILINE)
#: Words between linkage and type that are removed, because internal functions and declarations do not have them.
_WORDS = re.compile(r"\b(?:dso_local|dso_preemptable|hidden|protected|default) ")
_MERGED = " comdat"
_OWN = "compcache.weak."


def weak_functions(text: str) -> frozenset[str]:
    """Return the names of a printed module's functions and aliases of functions with the linkage ``weak``, which other files may override.

    Functions in comdats are left out, because a linker merges them.
    """
    if " weak " not in text:
        return frozenset()
    functions = [_matched_name(match) for match in _FUNCTION.finditer(text) if _MERGED not in match["rest"]]
    return frozenset([*functions, *[referenced_name(match[1]) for match in ALIAS.finditer(text) if _is_weak_function(match)]])


def without_overridden(text: str, names: Collection[str]) -> str:
    """Replace the weak functions and aliases `names` in a printed module with declarations, and return the new text.

    The definitions of these functions become internal functions with different names. Functions in comdats are unchanged.
    """
    declared: list[str] = []

    def replace_function(match: re.Match[str]) -> str:
        """Return an overridden function as an internal one, and add its declaration to `declared`; other functions are unchanged."""
        if _matched_name(match) not in names or _MERGED in match["rest"]:
            return match[0]
        words = _WORDS.sub("", match["words"])
        parsed = parse_head(f"{words}@{quote(_matched_name(match))}({match['rest']}")
        parameters = ", ".join(map(without_name, parsed.parameters))
        declared.append(f"declare {words}@{quote(_matched_name(match))}({parameters})")
        return f"define internal {words}@{quote(_OWN + _matched_name(match))}({match['rest']}"

    def remove_alias(match: re.Match[str]) -> str:
        """Return "" for an overridden alias, and add its declaration to `declared`; other aliases are unchanged."""
        if referenced_name(match[1]) not in names or not _is_weak_function(match):
            return match[0]
        result, _, parameters = match[4].partition(" (")
        declared.append(f"declare {result} {match[1]}({parameters}")
        return ""

    changed = ALIAS.sub(remove_alias, _FUNCTION.sub(replace_function, text))
    return "\n".join([changed, *declared, ""])


def _is_weak_function(alias: re.Match[str]) -> bool:
    """Return whether a match of `ALIAS` is an alias of a function with the linkage ``weak``."""
    return alias[2].startswith("weak ") and alias[3] == "alias" and alias[4].endswith(")")


def _matched_name(match: re.Match[str]) -> str:
    """Return the name of the function that a match contains, without quotes."""
    return unquote(match["quoted"]) if match["quoted"] is not None else match["plain"]
