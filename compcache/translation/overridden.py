"""Weak functions that definitions in other files override, as in a linker.

A weak definition that another file overrides becomes a declaration, and is imported. Inline functions and templates of C++ (``weak_odr``)
are equal in all files, so their definitions are kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build.exports import OVERRIDDEN
from compcache.build.ir_text import parse_head, quote, referenced_name, without_name
from compcache.build.pic import ALIAS

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["weak_functions", "without_overridden"]

_NAME = r'@(?:"[^"\n]*"|[-\w.$]+)'
#: A weak function that is in no comdat.
_FUNCTION = re.compile(rf'^define weak ((?:(?!@)[^\n])*)({_NAME})\(((?:(?! comdat)[^"\n]|"[^"\n]*")*)$', re.MULTILINE)
_LABEL = re.compile(rf"(?<=\bblockaddress\(){_NAME}(?=,)")
#: Words between linkage and type that are removed, because internal functions and declarations do not have them.
_WORDS = re.compile(r"\b(?:dso_local|dso_preemptable|hidden|protected|default) ")


def weak_functions(text: str) -> frozenset[str]:
    """Return the names of a printed module's functions and aliases of functions with the linkage ``weak``, which other files may override.

    Functions in comdats are left out, because a linker merges them.
    """
    if " weak " not in text:
        return frozenset()
    matches = [match[2] for match in _FUNCTION.finditer(text)] + [match[1] for match in ALIAS.finditer(text) if _is_weak_function(match)]
    return frozenset(map(referenced_name, matches))


def without_overridden(text: str, names: Collection[str]) -> str:
    """Replace the weak functions and aliases `names` in a printed module with declarations, and return the new text.

    The definitions of these functions become internal functions with different names. Labels and other aliases then refer to the internal
    functions, as in an object file. Functions in comdats are unchanged.
    """
    declared: list[str] = []
    bodies: dict[str, str] = {}  # references to the bodies of overridden functions, by those to the functions

    def replace_function(match: re.Match[str]) -> str:
        """Return the first line of an overridden function as that of an internal one. The first line of any other function is unchanged.

        The declaration of the overridden function is added to `declared`, and the reference to the internal one to `bodies`.
        """
        name = referenced_name(match[2])
        if name not in names:
            return match[0]
        words = _WORDS.sub("", match[1])
        parameters = ", ".join(map(without_name, parse_head(f"{words}{match[2]}({match[3]}").parameters))
        declared.append(f"declare {words}{match[2]}({parameters})")
        bodies[match[2]] = f"@{quote(OVERRIDDEN + name)}"
        return f"define internal {words}{bodies[match[2]]}({match[3]}"

    def replace_alias(match: re.Match[str]) -> str:
        """Return "" for an overridden alias, and add its declaration to `declared`. Let another alias refer to its function's body."""
        if referenced_name(match[1]) not in names or not _is_weak_function(match):
            return match[0].removesuffix(match[5]) + bodies.get(match[5], match[5])
        result, _, parameters = match[4].partition(" (")
        declared.append(f"declare {result} {match[1]}({parameters}")
        return ""

    changed = _LABEL.sub(lambda match: bodies.get(match[0], match[0]), _FUNCTION.sub(replace_function, text))
    return "\n".join([ALIAS.sub(replace_alias, changed), *declared, ""])


def _is_weak_function(alias: re.Match[str]) -> bool:
    """Return whether a match of `ALIAS` is an alias of a function with the linkage ``weak``."""
    return alias[2].startswith("weak ") and alias[3] == "alias" and alias[4].endswith(")")
