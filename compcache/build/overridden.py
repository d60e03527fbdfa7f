"""Weak functions and variables that definitions in other files override, as in a linker.

A weak definition that another file overrides becomes a declaration, and is imported. Inline functions and templates of C++ are equal in all
files, so their definitions, which have the linkages ``linkonce_odr`` and ``weak_odr`` in comdats, are kept. Constants of C have the linkage
``weak_odr`` without a comdat, and inline functions with the attribute ``weak`` have the linkage ``weak`` in a comdat.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build.entry_points import read_head
from compcache.build.exports import OVERRIDDEN
from compcache.build.ir_text import quote, referenced_name, without_name
from compcache.build.llvm_types import split_type, split_words
from compcache.build.pic import ADDRESS_OF, ALIAS, FUNCTION_TYPE, NAME, WORDS

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["weak_definitions", "with_bodies_for_aliases", "without_comdat", "without_overridden"]

_WEAK = r'(?:weak|linkonce|weak_odr(?!(?:[^"\n]|"[^"\n]*")*? comdat))'
_FUNCTION = re.compile(rf'^define {_WEAK} ((?:[^@"\n]|"[^"\n]*")*)({NAME})\(([^\n]*)$', re.MULTILINE)
_VARIABLE = re.compile(rf"^({NAME}) = {_WEAK} ({WORDS})(global|constant) ([^\n]*)$", re.MULTILINE)
_COMDAT = re.compile(r',? comdat(?:\(\$(?:"[^"\n]*"|[^)\n]*)\))?|("[^"\n]*")')
_REFERENCE = re.compile(rf'{NAME}|"[^"\n]*"')
_LABEL = re.compile(rf'(?<=\bblockaddress\(){NAME}(?=,)|"[^"\n]*"')
#: Words between linkage and type that are removed, because internal definitions and declarations do not have them.
_VISIBILITY_WORDS = re.compile(r"\b(?:dso_local|dso_preemptable|hidden|protected|default) ")
_ALIAS_WORDS = re.compile(r"\b(?:hidden|protected|thread_local(?:\(\w+\))?) ")


def weak_definitions(text: str) -> frozenset[str]:
    """Return the exported names of the definitions in a printed module with a weak linkage, which other files may override."""
    if " weak" not in text and " linkonce " not in text:
        return frozenset()
    functions = [referenced_name(match[2]) for match in _FUNCTION.finditer(text)]
    aliases = [_exported_name(match) for match in ALIAS.finditer(text) if match[2].startswith("weak ")]
    return frozenset([*functions, *aliases, *[_exported_name(match) for match in _VARIABLE.finditer(text)]])


def _exported_name(variable: re.Match[str]) -> str:
    """Return the name under which other modules import a variable; for a thread-local one, that of the function with its address."""
    return (ADDRESS_OF if "thread_local" in variable[2] else "") + referenced_name(variable[1])


def with_bodies_for_aliases(text: str) -> str:
    """Return a printed module in which aliases refer to the bodies of weak definitions, as in an object file.

    A weak definition that an alias refers to becomes a weak alias too.
    """
    if " alias " not in text and " ifunc " not in text:
        return text
    meant = [referenced_name(token) for match in ALIAS.finditer(text) for token in _REFERENCE.findall(match[5]) if token[0] == "@"]
    names = weak_definitions(text).intersection([*meant, *[ADDRESS_OF + name for name in meant]])
    return _Rewriting(names, keep=True).rewrite(text) if names else text


def without_overridden(text: str, names: Collection[str]) -> str:
    """Replace the weak definitions `names` in a printed module with declarations, and return the new text.

    Their bodies become internal definitions with different names. Labels of functions, and other aliases, refer to these, as in an object
    file.
    """
    return _Rewriting(names, keep=False).rewrite(text)


class _Rewriting:
    """Gives the bodies of weak definitions names of their own. With `keep`, the definitions become aliases instead of declarations."""

    def __init__(self, names: Collection[str], *, keep: bool) -> None:
        self._names = names
        self._keep = keep
        # A definition of an archive may be rewritten twice: first it becomes an alias, then a declaration.
        self._prefix = f"{OVERRIDDEN}{'-' if keep else '.'}"
        self._added: list[str] = []  # the lines of the declarations or aliases
        self._bodies: dict[str, str] = {}  # what a reference means in aliases and labels, if that is not the symbol

    def rewrite(self, text: str) -> str:
        """Return the new text of a printed module."""
        changed = _VARIABLE.sub(self._replace_variable, _FUNCTION.sub(self._replace_function, text))
        changed = ALIAS.sub(self._replace_alias, _LABEL.sub(self._body_of, changed))
        return "\n".join([changed, *self._added, ""])

    def _body_of(self, reference: re.Match[str]) -> str:
        """Return what a reference in an alias or a label means."""
        return self._bodies.get(reference[0], reference[0])

    def _replace_function(self, match: re.Match[str]) -> str:
        """Return the first line of an overridden function as that of an internal one, and add its replacement; leave other functions."""
        if referenced_name(match[2]) not in self._names:
            return match[0]
        words = _VISIBILITY_WORDS.sub("", match[1])
        head, types, result, _ = read_head(f"{words}{match[2]}({match[3]}")
        declaration = f"declare {words}{match[2]}({', '.join(map(without_name, head.parameters))})"
        body = self._move_body(match[2], match[1], f"{result} ({', '.join(types)})", declaration)
        return f"define internal {words}{body}({without_comdat(match[3])}"

    def _replace_variable(self, match: re.Match[str]) -> str:
        """Return the line of an overridden variable as that of an internal one, and add its replacement; leave other variables."""
        if _exported_name(match) not in self._names:
            return match[0]
        words, value_type = _VISIBILITY_WORDS.sub("", match[2]) + match[3], split_type(split_words(match[4]))[0]
        body = self._move_body(match[1], match[2], value_type, f"{match[1]} = external {words} {value_type}")
        return f"{body} = internal {words} {without_comdat(match[4])}"

    def _move_body(self, token: str, words: str, value_type: str, declaration: str) -> str:
        """Return the reference to the body of the definition `token`, and add the declaration or alias that replaces it."""
        body = self._bodies[token] = f"@{quote(self._prefix + referenced_name(token))}"
        alias = f"{token} = weak {''.join(_ALIAS_WORDS.findall(words))}alias {value_type}, ptr {body}"
        self._added.append(alias if self._keep else declaration)
        return body

    def _replace_alias(self, match: re.Match[str]) -> str:
        """Return an alias that refers to bodies; "" for an overridden alias, whose declaration is added."""
        if self._keep or not match[2].startswith("weak ") or _exported_name(match) not in self._names:
            return match[0].removesuffix(match[5]) + _REFERENCE.sub(self._body_of, match[5])
        function = FUNCTION_TYPE.fullmatch(match[4])
        variable = f"{match[1]} = external {_VISIBILITY_WORDS.sub('', match[2].removeprefix('weak '))}global {match[4]}"
        self._added.append(f"declare {function[1]} {match[1]}{function[2]}" if function else variable)
        return ""


def without_comdat(text: str) -> str:
    """Return a definition's line, or the part behind its name, without its comdat."""
    return _COMDAT.sub(r"\1", text)
