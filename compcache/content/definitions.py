"""Computes digests of the definitions in a printed module. The digest of a definition does not depend on neighbouring definitions.

LLVM numbers attribute groups, metadata and unnamed globals through the whole module, so an edit of one function changes the text of other
functions. For a digest, a definition's text contains its attribute groups, its metadata numbered in the order of occurrence, and the types
that it names. Unnamed globals are named by a digest. Comments are left out.

Definitions that differ in a way which may affect the code must have different digests. An unknown construct anywhere in the module raises
`Unreadable`. Then the digest of each function covers the whole text.

The text has the shape of the LLVM Language Reference, "Module Structure", as LLVM prints it: everything except functions is on one line.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from compcache.build.ir_text import referenced_name, unquote
from compcache.digest import digest
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Definition", "Definitions", "Unreadable", "read_definitions", "without_comments"]

_PERSON = b"compcache-define"
_SIZE = 16
#: A global, the number of an attribute group or of metadata, or a text that may contain these (a string, a quoted name, a comment). Each
#: alternative begins with a different character, which makes the search fast.
_TOKEN = re.compile(r'(@(?:"[^"]*"|[-$._A-Za-z0-9]+)|"[^"]*"|;[^\n]*|#\d+|!\d+)')
_STRING_OR_COMMENT = re.compile(r'"[^"]*"|;[^\n]*')
_STRING = re.compile(r'"([^"]*)"')
_WORD = re.compile(r"[-$.\w]+")
_GLOBAL = re.compile(r'(@(?:"[^"]*"|[-$._A-Za-z0-9]+)) = ((?:[a-z_]+(?:\([^)]*\))? )*?)(global|constant|alias) ')
_TYPE = re.compile(r'(%(?:"[^"]*"|[-$._A-Za-z0-9]+)) = type ')
_TYPE_NAME = re.compile(r'%(?:"[^"]*"|[-$._A-Za-z0-9]+)')
_GROUP = re.compile(r"attributes (#\d+) = (\{.*\})")
_NODE = re.compile(r"(!\d+) = (.*)")
_COMDAT = re.compile(r'\$(?:"[^"]*"|[-$._A-Za-z0-9]+) = comdat any')
#: Prefixes of symbols for section bounds. Code that uses them reaches the members of the section without naming the members.
_BOUNDS = ("__start_", "__stop_")
#: The limits on visits of metadata nodes (about a tenth of a second), in total and for each node. Debug information is large, and many
#: definitions reach most of it. Beyond the limits, a digest of the whole text takes less time.
_MOST_VISITS, _MOST_VISITS_OF_EACH = 50_000, 4


class Unreadable(Exception):  # noqa: N818 - a result within this package, not an error
    """Raised if functions of a module may depend on each other in ways that this parser does not understand."""


class Definition(NamedTuple):
    """A function, a variable, an alias or a declaration.

    Attributes:
        content: a digest of its text.
        mentions: the keys of the globals that it names.
        is_declared: whether it is only a declaration.
        is_own: whether its value can change or its address may be compared. Two modules must not have copies of such a definition.
    """

    content: bytes
    mentions: tuple[str, ...]
    is_declared: bool
    is_own: bool


class Definitions(NamedTuple):
    """The definitions of a module by key, and a digest of the parts that all definitions share.

    The key is the name, or NUL and a digest for an unnamed global.
    """

    by_key: dict[str, Definition]
    header: bytes


def without_comments(text: str) -> str:
    """Return a printed module without comments and source file names, which do not affect the code."""
    lines = [line for line in text.split("\n") if not line.startswith("source_filename = ")]
    return _STRING_OR_COMMENT.sub(lambda match: "" if match[0][0] == ";" else match[0], "\n".join(lines))


def read_definitions(text: str) -> Definitions:
    """Parse a printed module, and return its definitions.

    Raise `Unreadable` if functions may depend on each other in ways that this parser does not understand.
    """
    if "module asm" in text or any(bound in text for bound in _BOUNDS):
        raise Unreadable
    try:
        return _Reader(text).read()
    except (KeyError, StopIteration, RecursionError) as error:  # unknown numbers and names, deeply nested constants
        reraise_interrupt(error)
        raise Unreadable from None


class _Part(NamedTuple):
    """The text of a definition or a metadata node, and the nodes, globals and types that it names."""

    text: str
    nodes: tuple[str, ...]
    mentions: tuple[str, ...]
    types: frozenset[str]


class _Scanned(NamedTuple):
    """A definition's text with all metadata and types that it reaches. The text does not depend on neighbouring definitions.

    Attributes:
        text: the text.
        mentions: the globals that it names.
        nodes: the number of each metadata node in the text, by LLVM's number.
    """

    text: str
    mentions: dict[str, None]
    nodes: dict[str, int]


class _Reader:
    """A parser for one printed module."""

    def __init__(self, text: str) -> None:
        self._functions: dict[str, str] = {}
        self._declared: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._types: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._header: list[str] = []
        self._unnamed: dict[str, str] = {}  # the keys of unnamed globals, by LLVM's numbers; "" while a global is being read
        self._addressed: set[str] = set()  # functions that are named outside of calls
        self._names: set[str] = set()  # the names of all globals, as assembly writes them
        self._visits = 0
        self._parts: dict[str, _Part] = {}  # the parts of metadata nodes
        self._scanned: dict[str, _Scanned] = {}
        self._read_lines(text)

    def _read_lines(self, text: str) -> None:
        """Sort the lines of the module, with each function's body as one text. Raise `Unreadable` for a line of an unknown kind."""
        line_start = 0
        while line_start < len(text):
            is_function = text.startswith("define ", line_start)
            end = text.find("\n}\n" if is_function else "\n", line_start)
            end = len(text) if end < 0 else end + 2 * is_function
            if is_function:
                self._functions[_first_name(text[line_start:end])] = text[line_start:end]
            else:
                self._sort_line(text[line_start:end])
            line_start = end + 1

    def _sort_line(self, line: str) -> None:
        """Store a line outside functions by its kind. Raise `Unreadable` for a line of an unknown kind."""
        first_character = line[:1]
        if (
            not line
            or first_character == ";"
            or line.startswith("source_filename = ")
            or (first_character == "$" and _COMDAT.fullmatch(line))
        ):
            return
        if line.startswith("declare "):
            self._declared[_first_name(line)] = line
        elif first_character == "@" and (match := _GLOBAL.match(line)):
            self._variables[match[1]] = line
        elif first_character == "%" and (match := _TYPE.match(line)):
            self._types[match[1]] = line
        elif first_character == "a" and (match := _GROUP.fullmatch(line)):
            self._groups[match[1]] = match[2]
        elif first_character == "!" and (match := _NODE.fullmatch(line)):
            self._nodes[match[1]] = match[2]
        elif first_character in "!$" or line.startswith("target "):
            self._header.append(line)
        else:
            raise Unreadable

    def read(self) -> Definitions:
        """Return the definitions of the module.

        Raises:
            Unreadable: see `read_definitions`.
        """
        if any(token[1:].isdigit() for token in (*self._functions, *self._declared)):
            raise Unreadable  # an unnamed function
        header = self._scan_definition("", "\n".join(self._header), 0)
        for token, text in (*self._functions.items(), *self._declared.items()):
            self._scanned[token] = self._scan_definition(token, text, 0)
        for token in self._variables:
            self._scan_variable(token)
        shared = self._shared_nodes([header, *self._scanned.values()])
        definitions = {key: self._make_definition(key, scanned, shared) for key, scanned in self._scanned.items()}
        if header.mentions:
            raise Unreadable  # metadata of the module that names functions
        return Definitions(
            {referenced_name(key): definition for key, definition in definitions.items()}, self._digest_of_scanned(header, shared)
        )

    def _scan_variable(self, token: str) -> str:
        """Scan the line of a variable or alias, unless that was done before, and return its key. Raise `Unreadable` if no key is found."""
        line = self._variables[token]
        if not token[1:].isdigit():
            if token not in self._scanned:
                self._scanned[token] = self._scan_definition(token, line, len(token))
            return token
        key = self._unnamed.get(token)
        if key is None:
            if self._is_own(token):
                raise Unreadable  # two equal globals would get the same name
            self._unnamed[token] = ""
            scanned = self._scan_definition(token, line, len(token))
            if scanned.nodes:
                raise Unreadable
            key = self._unnamed[token] = "@\0" + self._digest_of_scanned(scanned, {}).hex()
            self._scanned[key] = scanned
        if not key:
            raise Unreadable  # two unnamed globals refer to each other
        return key

    def _scan_definition(self, token: str, text: str, start: int) -> _Scanned:
        """Return a definition's text with the metadata that it reaches. Raise `Unreadable` for too much metadata or unknown constructs."""
        own_part = self._read_part(text[start:])
        if " asm " in text:
            self._check_strings(text)
        mentions, types = dict.fromkeys(own_part.mentions), set(own_part.types)
        if not own_part.nodes and not types:
            mentions.pop(token, None)
            return _Scanned(f"{own_part.text}\n[]", mentions, {})
        order = list(dict.fromkeys(own_part.nodes))
        numbers = {node: number for number, node in enumerate(order)}
        lines = [own_part.text, str([numbers[node] for node in own_part.nodes])]
        for node in order:  # grows during the iteration
            node_part = self._read_node(node)
            for inner_token in node_part.nodes:
                if inner_token not in numbers:
                    numbers[inner_token] = len(order)
                    order.append(inner_token)
            lines.append(f"{node_part.text} {[numbers[inner_token] for inner_token in node_part.nodes]}")
            mentions.update(dict.fromkeys(node_part.mentions))
            types |= node_part.types
        self._visits += len(order)
        if self._visits > _MOST_VISITS + _MOST_VISITS_OF_EACH * len(self._nodes):
            raise Unreadable
        mentions.pop(token, None)
        return _Scanned("\n".join([*lines, *self._closure_of(types)]), mentions, numbers)

    def _read_node(self, token: str) -> _Part:
        """Return the parsed form of a metadata node. Each is parsed once. Raise `KeyError` if the module does not define the node."""
        part = self._parts.get(token)
        if part is None:
            part = self._parts[token] = self._read_part(self._nodes[token])
        return part

    def _read_part(self, text: str) -> _Part:
        """Return a text with its numbers replaced, and what it names. Raise `KeyError` for an unknown group. See also `_scan_variable`."""
        pieces = _TOKEN.split(text)
        mentions: list[str] = []
        nodes: list[str] = []
        for index in range(1, len(pieces), 2):
            token = pieces[index]
            sigil = token[0]
            if sigil == "@":
                if token in self._variables:
                    if token[1:].isdigit():
                        token = pieces[index] = self._scan_variable(token)
                elif not pieces[index + 1].startswith("("):
                    self._addressed.add(token)
                mentions.append(token)
            elif sigil == ";":
                pieces[index] = ""
            elif sigil == "#":
                pieces[index] = self._groups[token]
            elif sigil == "!":
                nodes.append(token)
                pieces[index] = "!#"
        plain = "".join(pieces)
        types = self._types.keys() & _TYPE_NAME.findall(plain) if self._types else ()
        return _Part(plain, tuple(nodes), tuple(mentions), frozenset(types))

    def _check_strings(self, text: str) -> None:
        """Raise `Unreadable` if inline assembly names a global, because the text shows no other reference."""
        if not self._names:
            self._names = {referenced_name(token).removeprefix("\1") for token in (*self._functions, *self._variables, *self._declared)}
        if any(not self._names.isdisjoint(_WORD.findall(unquote(string))) for string in _STRING.findall(text)):
            raise Unreadable

    def _closure_of(self, types: Iterable[str]) -> list[str]:
        """Return the definitions of types and, transitively, of the types that they contain, sorted by name."""
        pending = list(types)
        reached = set(pending)
        while pending:
            new_types = self._types.keys() & set(_TYPE_NAME.findall(self._types[pending.pop()])) - reached
            reached |= new_types
            pending += new_types
        return [self._types[name] for name in sorted(reached)]

    def _shared_nodes(self, scanned: Iterable[_Scanned]) -> dict[str, int]:
        """Return numbers for ``distinct`` metadata nodes that several definitions share.

        Sharing such a node affects the optimizer's assumptions after inlining.
        """
        counts = Counter(node for definition in scanned for node in definition.nodes)
        shared = [node for node, count in counts.items() if count > 1 and self._nodes[node].startswith("distinct !{")]
        return {node: number for number, node in enumerate(sorted(shared, key=lambda node: int(node[1:])))}

    def _make_definition(self, key: str, scanned: _Scanned, shared: Mapping[str, int]) -> Definition:
        """Return a symbol's definition. `shared` numbers the metadata nodes that definitions share. See `_is_own` for the exception."""
        is_declared = key in self._declared or (key in self._variables and self._words_before_value(key)[0] in ("external", "extern_weak"))
        is_own = key in self._addressed or self._is_own(key)
        return Definition(self._digest_of_scanned(scanned, shared), tuple(map(referenced_name, scanned.mentions)), is_declared, is_own)

    def _words_before_value(self, token: str) -> list[str]:
        """Return the words between the name of a variable and its type, or one empty word if its line cannot be read."""
        match = _GLOBAL.match(self._variables[token])
        return [*match[2].split(), match[3]] if match else [""]

    def _is_own(self, token: str) -> bool:
        """Return whether a variable's value can change or its address may be compared. For other tokens, the result is False.

        Raise `Unreadable` if the variable concerns the complete module, like a list of constructors.
        """
        if token not in self._variables:
            return False
        words = self._words_before_value(token)
        if "appending" in words or token.startswith("@llvm.") or ', section "' in self._variables[token]:
            raise Unreadable
        return words[-1] != "constant" or "unnamed_addr" not in words or "thread_local" in "".join(words)

    @staticmethod
    def _digest_of_scanned(scanned: _Scanned, shared: Mapping[str, int]) -> bytes:
        """Return the digest of a definition's text and of the numbers of the metadata nodes that it shares with others."""
        numbers = [f"!{number} is {shared[node]}" for node, number in scanned.nodes.items() if node in shared]
        return digest(["\n".join([scanned.text, *numbers]).encode("utf-8", "surrogatepass")], size=_SIZE, person=_PERSON)


def _first_name(line: str) -> str:
    """Return the first global that a line names. Raise `StopIteration` if there is none."""
    return next(match[0] for match in _TOKEN.finditer(line) if match[0][0] == "@")
