"""Reads the link types of a module's exports and imports from its printed, optimized assembly.

The types of imports are read from call sites, because declarations often contain little. `docs/format.md`, "Records", describes the texts
of link types. `compcache.hit.link_types` decides which types match.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture
from compcache.build.ir_text import behind_name, function_texts, parse_head, plain_head, quote, referenced_name, split_at
from compcache.build.llvm_types import Types, split_type, split_words
from compcache.formats.host import platform_name
from compcache.hit.link_types import ADDRESS, CONSTANT, IGNORED, THREAD_LOCAL, VARIABLE, VARIADIC, WRITTEN
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from compcache.build.ir_text import Definition
    from compcache.build.llvm_types import Type
    from compcache.build.pic import Alias

__all__ = ["LinkTypes", "read_link_types"]

_NAME = r'(?:"[^"]*"|[-$._A-Za-z0-9]+)'
_CALL = re.compile(rf"\s*(?:(%{_NAME}) = )?(?:tail |musttail |notail )?(?:call|invoke|callbr) ([^\n]*)")
_PLAIN_ARGUMENTS = re.compile(r'\(([^()"@{\[<]*)\)')
_CALLEE = re.compile(rf"([@%]{_NAME})\(")
_LOCAL = re.compile(rf"%{_NAME}")
_LOAD = re.compile(rf"\s*(%{_NAME}) = load ptr, ptr (@{_NAME})")
_ELEMENT = re.compile(rf"\s*(%{_NAME}) = getelementptr [^@\n]*ptr (@{_NAME})")
_STORE = re.compile(
    rf"\s*(?:store |(?:%{_NAME} = )?(?:atomicrmw|cmpxchg) |(?:tail )?call void @llvm\.mem(?:cpy|move|set)[.a-z0-9]*\()([^\n]*)"
)
_TARGET = re.compile(rf"ptr (?:[a-z]+(?: \d+|\(\d+\))? )*(?:getelementptr [a-z ]*\([^@\n]*ptr )?([@%]{_NAME})")
_HEAD = re.compile(r"(?:[a-z_]+(?:\([^)]*\))? )*(global|constant|alias) ")
_QUOTED = re.compile(r'"[^"]*"')
_ALIGN = re.compile(r", align (\d+)")
_CONVENTION = re.compile(r"[a-z0-9_]*cc|[a-z0-9_]+_pcs|(?:amdgpu|spir|ptx)_[a-z_]+")
_DEFINED = re.compile(rf"(@{_NAME})\(")
_GROUP = re.compile(r"^attributes (#\d+) = \{[^\n]*\"thunk\"", re.MULTILINE)
#: The names of C's calling convention.
_OF_C = frozenset(("ccc", architecture(platform_name()).convention))
#: Attributes that affect where a value is passed.
_PLACES = frozenset(("inreg", "nest", "swiftself", "swifterror", "swiftasync", "inalloca", "preallocated"))
_EXTENSIONS = ("zeroext", "signext")
_EXTENDED_BITS = 64  # narrower integers are extended to a register
_LAST_CHARACTERS = 400  # the end of a variable's line, which contains its alignment
_STACK_SLOT = 8  # the least alignment in bytes of an argument on the stack


class LinkTypes(NamedTuple):
    """The link types of a module.

    `definitions` has the types of exports, by symbol. `uses` has the types of imports, by symbol or symbol of the slot; each type is mapped
    to a function that uses the import with this type.
    """

    definitions: Mapping[str, str]
    uses: Mapping[str, Mapping[str, str]]


def read_link_types(
    text: str,
    definitions: Mapping[str, Definition],
    exported: Iterable[str],
    aliases: Mapping[str, Alias],
    imported: Collection[str],
    slots: Mapping[str, str],
) -> LinkTypes:
    """Return the types of the exports and imports of a module whose optimized text is `text`, without those that are not known.

    `definitions` and `aliases` are those of the module; `slots` maps the symbol of each slot to that of the function which it provides.
    """
    reader = _Reader(text)
    types = {symbol: reader.export_type(symbol, definitions, aliases) for symbol in exported}
    declared = [symbol for symbol in imported if symbol in definitions and definitions[symbol].kind in ("declaration", "external")]
    uses = _Uses(reader, definitions, declared, slots).read(text) if declared or slots else {}
    return LinkTypes({symbol: link_type for symbol, link_type in types.items() if link_type}, uses)


class _Reader:
    """Determines link types from the texts of one module."""

    def __init__(self, text: str) -> None:
        self._types = Types(text)
        self._thunks = frozenset(_GROUP.findall(text)) if '"thunk"' in text else frozenset[str]()
        self._types_by_head: dict[str, str] = {}  # types of functions, by plain head
        self._is_rust = '!{!"rustc version ' in text

    def export_type(self, symbol: str, definitions: Mapping[str, Definition], aliases: Mapping[str, Alias]) -> str:
        """Return the type of an export, or "" if the type is not known."""
        definition = definitions[symbol]
        with suppress(ValueError, RecursionError):
            if definition.kind == "function":
                head = plain_head(definition.head, symbol)
                if head not in self._types_by_head:
                    self._types_by_head[head] = self.function_type(head)
                return self._types_by_head[head]
            if symbol in aliases:
                target = definitions.get(aliases[symbol].target)
                if target is not None and target.kind == "function" and not aliases[symbol].is_ifunc:
                    return self.function_type(target.head)
                return self.function_type(aliases[symbol].head)
            target = definitions.get(definition.references[0]) if definition.references else None
            is_constant = target is not None and target.kind == "variable" and " constant " in target.head[:_LAST_CHARACTERS]
            return self.variable_type(definition.head, of_constant=is_constant)
        return ""

    def function_type(self, head: str) -> str:
        """Return the type in the head of a definition or declaration, or "" for a thunk. Raise `ValueError` for an unknown type."""
        parts = parse_head(head)
        if self._thunks.intersection(parts.suffix.split()):
            return ""  # a thunk passes its arguments to another function
        words = split_words(parts.prefix)
        return self._link_type(words, parts.parameters, None)

    def call_type(self, prefix: str, arguments: tuple[str, ...], *, is_used: bool) -> str:
        """Return the type of a call. Raise `ValueError` if the text contains an unknown type.

        `prefix` is the text between ``call`` and the callee, and `is_used` is whether the result of the call is used.
        """
        words = split_words(prefix)
        fixed = None
        if words[-1].startswith("("):
            inner = words.pop()[1:-1]
            fixed = len(split_at(inner, ",")) - 1 if inner.endswith(VARIADIC) else None
        text = self._link_type(words, arguments, fixed)
        return text if is_used or text.startswith("void(") else f"{text} {IGNORED}"

    def _link_type(self, words: list[str], parameters: tuple[str, ...], fixed: int | None) -> str:
        """Return the link type of a function or a call, such as `i64(ptr, double)`. `fixed` counts the arguments before `...`, if any."""
        pieces: list[str] = []
        for number, parameter in enumerate(parameters):
            if number == fixed:
                pieces.append(VARIADIC)
            pieces += [VARIADIC] if parameter == VARIADIC else self._passed_pieces(split_words(parameter))
        if fixed is not None and fixed >= len(parameters):
            pieces.append(VARIADIC)
        result_type, attributes = split_type(words[::-1])
        result = self._types.read(result_type)
        returned = _with_extension(result.pieces, attributes)
        result_text = ", ".join(self._in_structure(returned, result, attributes))
        return f"{result_text or 'void'}({', '.join(pieces)}){_convention_of(words[:-1])}"

    def _passed_pieces(self, words: list[str]) -> list[str]:
        """Return the pieces in which a parameter or an argument is passed. `words` are the words of its text."""
        type_text, attributes = split_type(words)
        places = [word for word in attributes if word in _PLACES]
        piece = self._piece_in_memory(attributes)
        if piece:
            return [" ".join([piece, *places])]
        passed = self._types.read(type_text)
        pieces = [" ".join([piece, *places]) for piece in _with_extension(passed.pieces, attributes)]
        return self._in_structure(pieces, passed, attributes)

    def _piece_in_memory(self, attributes: list[str]) -> str:
        """Return the piece of a structure that is copied to the stack (`byval`) or returned in memory (`sret`); "" for other values."""
        for number, word in enumerate(attributes):
            name, _, inner = word.partition("(")
            if name == "byval":
                structure, following = self._types.read(inner[:-1]), attributes[number + 1 :]
                align = int(following[following.index("align") + 1]) if "align" in following else structure.align
                return f"byval {structure.size} {max(align, _STACK_SLOT)}"
            if name == "sret":
                register = "ptr " if architecture(platform_name()).result_address_is_argument else ""
                return f"{register}sret {self._types.read(inner[:-1]).size}"
        return ""

    def _in_structure(self, pieces: list[str], read: Type, attributes: list[str]) -> list[str]:
        """Return the pieces, in braces if they are parts of a structure.

        Rust passes a structure of one pointer as an integer without `noundef`. All other integers of Rust have `noundef`.
        """
        is_cast = self._is_rust and len(pieces) == 1 and pieces[0][1:].isdecimal() and "noundef" not in attributes
        return ["{" + ", ".join(pieces) + "}"] if pieces and (read.is_aggregate or is_cast) else pieces

    def variable_type(self, head: str, *marks: str, of_constant: bool = False) -> str:
        """Return the type of a variable or an alias from its line, followed by `marks`, or "" if the line has no type.

        `of_constant` is whether an alias refers to a constant. Raise `ValueError` for an unknown type.
        """
        line = behind_name(head)
        match = _HEAD.match(line)
        if match is None:
            return ""
        read = self._types.leading(line, match.end())
        aligned = _ALIGN.findall(line, max(len(line) - _LAST_CHARACTERS, 0))
        size = "?" if read.size <= 0 else str(read.size)
        words = [VARIABLE, size, "align", aligned[-1] if aligned else str(read.align)]
        if match[1] == CONSTANT or (of_constant and match[1] == "alias"):
            words.append(CONSTANT)
        if THREAD_LOCAL in match[0]:
            words.append(THREAD_LOCAL)
        return " ".join([*words, *marks])


def _convention_of(words: list[str]) -> str:
    """Return the calling convention among the words of a head, with a space before it, or "" for the convention of C."""
    for number, word in enumerate(words):
        if word == "cc":
            return f" cc{words[number + 1]}"
        if _CONVENTION.fullmatch(word) and word not in _OF_C:
            return f" {word}"
    return ""


def _with_extension(pieces: tuple[str, ...], attributes: list[str]) -> list[str]:
    """Return the pieces of a type. A single integer of less than 64 bits is followed by its extension (zeroext, signext), if it has one."""
    extension = next((word for word in attributes if word in _EXTENSIONS), "")
    if not extension or len(pieces) != 1 or not pieces[0][1:].isdecimal() or int(pieces[0][1:]) >= _EXTENDED_BITS:
        return list(pieces)
    piece = "i8" if pieces[0] == "i1" and extension == "zeroext" else pieces[0]  # passed as 0 or 1 in a register's lowest byte
    return [f"{piece} {extension}"]


class _Call(NamedTuple):
    """A call of an imported symbol, with the texts between ``call`` and the callee, and after the callee."""

    symbol: str
    prefix: str
    rest: str


class _Uses:
    """Finds the uses of imports in the functions of a module."""

    def __init__(self, reader: _Reader, definitions: Mapping[str, Definition], imported: Collection[str], slots: Mapping[str, str]) -> None:
        self._reader = reader
        self._definitions = definitions
        self._written_names = {"@" + quote(symbol): symbol for symbol in imported}
        self._slots = {"@" + quote(slot): slot for slot in slots}
        self._thunks = {function: slot for slot, function in slots.items()}
        self._imports_and_slots = {*imported, *slots, *slots.values()}
        self._variables = {symbol for symbol in imported if definitions[symbol].kind == "external"}
        self._types_of_uses: dict[str, dict[str, str]] = {}  # by symbol: the types of its uses, each with a function that has such a use
        self._in_thunks: dict[str, str] = {}  # the types of functions that only thunks call, by slot
        self._changed: dict[str, str] = {}  # the variables that the code writes to, each with a function that does so
        self._users: dict[str, str] = {}  # by symbol: a function that refers to it
        self._known_calls: dict[tuple[str | bool, ...], str] = {}  # types of calls, by everything except the values of arguments

    def read(self, text: str) -> dict[str, dict[str, str]]:
        """Return the types of each import in the printed module `text`, each mapped to a function that uses the import with this type."""
        for name, definition in self._definitions.items():
            for symbol in definition.references:
                if symbol in self._imports_and_slots:
                    self._users.setdefault(symbol, name)
        for function in function_texts(text):
            head = function[: function.find("\n")]
            name = _symbol_in(head)
            if not self._imports_and_slots.isdisjoint(self._definitions[name].references if name in self._definitions else ()):
                self._read_body(name, function[len(head) :])
        for slot, link_type in self._in_thunks.items():
            self._types_of_uses.setdefault(slot, {link_type: self._users.get(slot, "")})
        for symbol in self._written_names.values():
            if symbol not in self._types_of_uses and (link_type := self._declared_type(symbol)):
                self._types_of_uses[symbol] = {link_type: self._changed.get(symbol) or self._users.get(symbol, "")}
        return self._types_of_uses

    def _declared_type(self, symbol: str) -> str:
        """Return the type of a declaration, or "" if the declaration shows no type, or its type cannot be parsed."""
        definition = self._definitions[symbol]
        with suppress(ValueError, RecursionError):
            if symbol in self._variables:
                return self._reader.variable_type(definition.head, *([WRITTEN] if symbol in self._changed else []))
            if definition.kind != "declaration" or f"({VARIADIC})" in definition.head:
                return ""
            return f"{self._reader.function_type(definition.head)} {ADDRESS}"
        return ""

    def _read_body(self, function: str, body: str) -> None:
        """Record the uses of imported functions and variables in the body of a function."""
        symbols_of_values: dict[str, str] = {}  # the symbols behind values of this function: loaded slots, parts of variables
        names: Counter[str] | None = None
        lines = body.split("\n")
        self._add_loaded_values(lines, symbols_of_values)
        for line in lines:
            match = _CALL.match(line) if "call" in line or "invoke" in line else None
            if match is not None and (call := self._find_call(match[2], symbols_of_values)) is not None:
                names = names or Counter(_LOCAL.findall(body))
                self._add_use(function, call, is_used=match[1] is not None and names[match[1]] > 1)
            if self._variables:
                self._add_changes(function, line, symbols_of_values)

    def _add_loaded_values(self, lines: Iterable[str], symbols_of_values: dict[str, str]) -> None:
        """Add the values that are loaded from slots, or are addresses in variables, with their symbols."""
        for line in lines:
            if self._slots and (match := _LOAD.match(line)) is not None and match[2] in self._slots:
                symbols_of_values[match[1]] = self._slots[match[2]]
            elif self._variables and (match := _ELEMENT.match(line)) is not None and match[2] in self._written_names:
                symbols_of_values[match[1]] = self._written_names[match[2]]

    def _find_call(self, text: str, symbols_of_values: Mapping[str, str]) -> _Call | None:
        """Return the call in the text after ``call``, or None if it calls no imported symbol. `symbols_of_values`: see `_read_body`."""
        match = _CALLEE.search(text)
        if match is None or " asm " in text[: match.start()]:
            return None
        name = match[1]
        symbol = symbols_of_values.get(name) or self._written_names.get(name)
        if not symbol and name[0] == "@":
            symbol = self._thunks.get(referenced_name(name))
        return _Call(symbol, text[: match.start()], text[match.end() - 1 :]) if symbol else None

    def _add_use(self, function: str, call: _Call, *, is_used: bool) -> None:
        """Record the type with which a function calls a symbol. A call that cannot be parsed is not recorded. See `_call_type`."""
        try:
            link_type = self._call_type(call, is_used=is_used)
        except (ValueError, RecursionError) as error:
            reraise_interrupt(error)
            return
        if self._thunks.get(function) == call.symbol:
            declared = link_type.removesuffix(f" {IGNORED}")
            if f"({VARIADIC})" not in declared:
                self._in_thunks[call.symbol] = f"{declared} {ADDRESS}"
            return
        self._types_of_uses.setdefault(call.symbol, {}).setdefault(link_type, function)

    def _call_type(self, call: _Call, *, is_used: bool) -> str:
        """Return the type of a call. `is_used` says whether its result is used. Raise `ValueError` for a call that cannot be parsed."""
        plain = _PLAIN_ARGUMENTS.match(call.rest)
        # Arguments without brackets and quotes, the usual case, need no parser.
        arguments = parse_head(f"void @f{call.rest}").parameters if plain is None else tuple(filter(None, plain[1].split(", ")))
        call_form = call.prefix, is_used, *[argument.rpartition(" ")[0] for argument in arguments]
        link_type = self._known_calls.get(call_form)
        if link_type is None:
            link_type = self._known_calls[call_form] = self._reader.call_type(call.prefix, arguments, is_used=is_used)
        return link_type

    def _add_changes(self, function: str, line: str, symbols_of_values: Mapping[str, str]) -> None:
        """Record the variable to which a line stores, if it is a variable of another module."""
        match = _STORE.match(line)
        if match is None:
            return
        operands = match[1]
        if line.lstrip().startswith("store "):  # the address is the last operand
            plain = _QUOTED.sub(lambda match: "_" * len(match[0]), operands)
            is_expression = ", ptr getelementptr" in plain
            operands = operands[(plain.find(", ptr getelementptr") if is_expression else plain.rfind(", ptr ")) + 2 :]
        target = _TARGET.search(operands)
        name = target[1] if target is not None else ""
        symbol = symbols_of_values.get(name) or self._written_names.get(name, "")
        if symbol in self._variables:
            self._changed.setdefault(symbol, function)


def _symbol_in(head: str) -> str:
    """Return the name of the function that a line defines; "" if it defines none."""
    match = _DEFINED.search(head)
    return referenced_name(match[1]) if match is not None else ""
