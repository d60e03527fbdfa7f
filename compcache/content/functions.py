"""Digests of what functions are: their code, and that of all that they reach in their module, before it is optimized.

Functions of two modules with equal digests do the same, whatever else stands in the modules and whatever CPU they were compiled for. That
two digests differ means little: the compilers of other languages number constants and types by module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build.ir_text import lines_from, references
from compcache.depgraph import DependencyGraph
from compcache.digest import digest
from compcache.formats.index import CONTENT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compcache.build.ir_text import GlobalValues

__all__ = ["exported_content", "symbol_digests"]

_PERSON = b"compcache-fcode"
#: Where something stands in the source: no part of what the code does.
_PLACES = re.compile(r",? !(?:dbg|srcloc|tbaa|tbaa\.struct|heapallocsite) !\d+|^ *#dbg_[^\n]*\n", re.MULTILINE)
_ATTRIBUTES = re.compile(r"#\d+\b")
_METADATA = re.compile(r"!\d")
_TYPE = re.compile(r'%(?:"[^"]*"|[-$.\w]+)')


def exported_content(salt: bytes, code: bytes | None, signature: str) -> bytes:
    """The digest of an exported function, of `CONTENT_SIZE` bytes; zeros where that of its code is not known.

    `salt` stands for what the source says beside its code.
    """
    if code is None:
        return bytes(CONTENT_SIZE)
    return digest([salt, code, signature.encode("utf-8", "surrogatepass")], size=CONTENT_SIZE, person=_PERSON)


def symbol_digests(text: str, values: GlobalValues, data: Mapping[str, bytes]) -> dict[str, bytes]:
    """A digest for each function, variable and alias that a printed module defines.

    Args:
        text: the module.
        values: its functions and variables.
        data: the values of variables that are not in the text.
    """
    texts = _definitions(text, values)
    used = {name: references(definition) for name, definition in texts.items()}
    words = _Words(text)
    whole = _digest([*map(str.encode, lines_from(text, "module asm ")), *data.values()])
    own = {name: _digest([whole, words.meaning(definition).encode("utf-8", "surrogateescape")]) for name, definition in texts.items()}
    found: dict[str, bytes] = {}
    for component in DependencyGraph(used).components():
        reached = {found[other] for name in component for other in used[name] if other in found}
        together = _digest([*sorted([own[name] for name in component]), *sorted(reached)])
        found.update([(name, _digest([own[name], together])) for name in component])
    return found


def _digest(parts: Iterable[bytes]) -> bytes:
    return digest(parts, size=16, person=_PERSON)


def _definitions(text: str, values: GlobalValues) -> dict[str, str]:
    """The text of each definition by its name; functions end in a line of their own, and are in the order of `values`."""
    defined = [function for function in values.functions if not function.is_declaration]
    bodies = []
    for chunk in text.split("\n}\n"):
        start = chunk.rfind("\ndefine ") + 1
        if start or chunk.startswith("define "):
            bodies.append(chunk[start:])
    found = {function.name: body for function, body in zip(defined, bodies, strict=True)}
    for line in lines_from(text, "@"):
        found[references(line)[0]] = line
    return found


class _Words:
    """What numbers and names of types in the text of definitions mean."""

    def __init__(self, text: str) -> None:
        self._attributes = {line.split(" ", 2)[1]: line.partition("=")[2] for line in lines_from(text, "attributes #")}
        self._types = {line.partition(" = ")[0]: line for line in lines_from(text, "%") if " = type " in line}
        self._text = text
        self._metadata: str | None = None

    def meaning(self, definition: str) -> str:
        """The text of a definition in words that mean the same in every module."""
        plain = _ATTRIBUTES.sub(lambda match: self._attributes.get(match[0], match[0]), _PLACES.sub("", definition))
        parts = [plain, *self._types_in(plain)]
        if _METADATA.search(plain):
            if self._metadata is None:
                self._metadata = "\n".join(lines_from(self._text, "!"))
            parts.append(self._metadata)
        return "\0".join(parts)

    def _types_in(self, text: str) -> list[str]:
        """The named types that a text uses, and those that they use."""
        if not self._types:
            return []
        found: dict[str, None] = {}
        waiting = [text]
        while waiting:
            new = [self._types[name] for name in dict.fromkeys(_TYPE.findall(waiting.pop())) if name in self._types]
            new = [line for line in new if line not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return sorted(found)
