r"""Reads printed LLVM assembly: the references and the head of each definition.

LLVM prints a module in a fixed shape (LLVM Language Reference, "Module Structure"). A global variable, an alias and a
declaration take one line each. A function extends from a line that starts with ``define`` to a line ``}``. References
to global values are ``@name`` or ``@"quoted name"`` with ``\XX`` for unusual bytes. Outside of string literals, nothing
else has this form. Reading the text is about twenty times faster than walking all operands through the C API, and it
includes constant expressions and initializers.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.arch.known import architecture
from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "ALL_ASSEMBLY", "ATTACHMENTS", "Assembly", "Definition", "GlobalValue", "GlobalValues", "Head", "add_attributes", "behind_name",
    "change_lines", "find_extreme_construct", "function_texts", "functions_with_assembly", "is_vectorized", "leading_type", "lines_from",
    "lines_of_variables", "long_lines",
    "parse_head", "passes_vectors", "plain_head", "quote", "read_assembly", "read_functions", "read_module", "read_values",
    "referenced_name", "references", "section_bounds", "split_at", "split_parameters", "symbol_counts", "target_text", "unquote",
    "with_image_symbols", "with_symbols", "without_name",
]  # fmt: skip

_NAME = re.compile(r'"([^"]*)"|([-$._A-Za-z0-9]+)')
_RAW_NAME = re.compile(r'([@$])"\\01([^"]*)"')
_REFERENCE = re.compile(r'@(?:"([^"]*)"|([-$._A-Za-z0-9]+))|"[^"]*"')
_TOKEN = re.compile(r'@"[^"]*"|@[-$._A-Za-z0-9]+|"[^"]*"')
_ESCAPE = re.compile(r"\\(\\|[0-9A-Fa-f]{2})")
_NESTED = re.compile(r'[(\[{<"]')
_IN_QUOTES = {byte: chr(byte) for byte in range(32, 127)} | {ord('"'): "\\22", ord("\\"): "\\\\"}
_PLAIN = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*\Z")  # LLVM reads "$" without quotes, but prints it with quotes
#: Metadata attachments stand between ``declare`` and the linkage of a declaration (`!dbg !7`, `!callback !2`).
ATTACHMENTS = r"(?:![-$._\\A-Za-z0-9]+ !(?:\d+|\w*\([^)]*\)) )*"
_ATTACHMENTS = re.compile(ATTACHMENTS)


#: Limits for code that LLVM translates in reasonable time and memory. Code from compilers stays far below them.
_MOST_ELEMENTS = 4096
_WIDEST_INTEGER = 4096
_MOST_ALIGNMENT = 1 << 24
_DEEPEST = 1000
_VECTOR = re.compile(r"<(?:vscale x )?(\d{4,}) x ")
_INTEGER = re.compile(r"(?<![-$.\w@%\"])i(\d{4,})\b")
_ALIGNMENT = re.compile(r"^(?:@[^\n]*, align (\d+)|define [^\n]*\)[^()\n]* align (\d+)[^()\n]*)", re.MULTILINE)
#: Most code does not match these patterns, and is not searched with the slower patterns above.
_LONG_NUMBERS = tuple(map(re.compile, (r"i\d{4}(?<![-$.\w@%\"]i\d{4})", r"<\d{4}", r"<vscale x \d{4}", r"align \d{8}")))
_STRING_OR_COMMENT = re.compile(r'"[^"]*"|;[^\n]*')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"()[]{}"))
#: Definitions of types as any program may write them, on one or many lines. A body ends at the latest where another definition begins.
_TYPE = re.compile(r'%("[^"]*"|[-$.\w]+)\s*=\s*type\b')
_BODY = re.compile(r'(?:%"[^"]*"|%[-$.\w]+|(?!(?:define|declare)\s)[-$.\w]+|[^-$.\w%"=@!]+)*')
_ANY_VECTOR = re.compile(r"<(?:vscale x )?\d+ x ")
_SIZED_VECTOR = re.compile(r"<(vscale x )?(\d+) x (i\d+|half|bfloat|float|double|ptr)>")
#: Heads of functions that other modules define or use, and calls through pointers.
_OUTWARD = re.compile(r"^declare (?!.*@llvm\.).*|^define (?!internal |private ).*|\b(?:call|invoke) [^@%\n]*%[^\s(]+\(.*", re.MULTILINE)
_HEADS = ("declare ", "define ")
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}
_COMMON_WIDTH = architecture(platform_name()).vector_bits
_TYPE_NAME = re.compile(r'%("[^"]*"|[-$.\w]+)')
_PARAMETER_NAME = re.compile(r' %(?:"[^"]*"|[-$.\w]+)\Z')

#: The part of a function's head between the parameters and the attributes.
_BEFORE_ATTRIBUTES = re.compile(r"(?: (?:local_)?unnamed_addr)?(?: addrspace\(\d+\))?")
_ASSEMBLY = re.compile(r'^module asm "([^"]*)"', re.MULTILINE)
_ANY_ASSEMBLY = re.compile(r'^(?:[^"\n]|"[^"\n]*")*? asm(?: [a-z]+)* "([^"]*)"', re.MULTILINE)
_LABELS = re.compile(r"(?:^|[;\n])\s*((?:[A-Za-z_$.][\w$.]*\s*:\s*)+)")
_ASSIGNED = re.compile(r"(?:^|[;\n])\s*(?:\.(?:set|equ|comm|lcomm)\s+([A-Za-z_$.][\w$.]*)\s*,|([A-Za-z_$][\w$.]*)\s*=)")
#: Whatever defines labels, macros or values, by which parts of assembly can name each other.
_CONNECTING = re.compile(r"[:=]|(?<![\w$])\.")
_WORD = re.compile(r"(?<![%\w.])[A-Za-z_$.][\w$.]*")  # no register, and no letter of the local label in `jmp 1f`
#: An instruction or a directive: the first word of a statement, which is the name of no symbol unless it is assigned or a label.
_INSTRUCTION = re.compile(r"(?:^|[;\n])\s*(?:[\w.$]+:\s*)*[A-Za-z.][\w.]*(?![\w.$]|\s*[:=])")
_SECTION = re.compile(r' section "([A-Za-z_]\w*)"')
_BOUNDS = ("__start_", "__stop_")


#: The names of linkages, by the word that LLVM prints. A definition without such a word has external linkage.
_LINKAGES = {
    "linkonce": "linkonce_any", "weak": "weak_any", "extern_weak": "external_weak",
    **{name: name for name in ("available_externally", "linkonce_odr", "weak_odr", "appending", "internal", "private", "common")},
}  # fmt: skip
#: The most words between the name of a variable and ``global`` or ``constant``.
_MOST_WORDS = 12


#: A name that refers to all names in the assembly of a module. Like LLVM's own symbols, it is no node of the dependency graph.
ALL_ASSEMBLY = "llvm. asm"


class Assembly(NamedTuple):
    """The names that top-level assembly defines, all names in assembly, also inline, and whether its parts can name each other."""

    defined: frozenset[str]
    mentioned: frozenset[str]
    is_connected: bool


class Definition(NamedTuple):
    """One global value: its kind (function, declaration, variable or external), its head line, and the names that it refers to."""

    kind: str
    head: str
    references: tuple[str, ...]


class GlobalValue(NamedTuple):
    """A function or variable of a printed module. `name` is empty for a value without a name.

    `linkage` is llvmlite's name of the linkage. `text` is the first line of the value.
    """

    name: str
    is_declaration: bool
    linkage: str
    is_hidden: bool
    text: str


class GlobalValues(NamedTuple):
    """The functions and the variables of a printed module, in file order, without aliases."""

    functions: tuple[GlobalValue, ...]
    variables: tuple[GlobalValue, ...]


class Head(NamedTuple):
    """The head of a function: the text before its name, the texts of its parameters, and the text after them."""

    prefix: str
    parameters: tuple[str, ...]
    suffix: str


def unquote(text: str) -> str:
    """Return a name without LLVM's escapes. `text` is the text between the quotes."""
    if "\\" not in text:
        return text
    unescaped = _ESCAPE.sub(lambda match: "\\" if match[1] == "\\" else chr(int(match[1], 16)), text)
    return unescaped.encode("latin-1", "surrogateescape").decode("utf-8", "surrogateescape")


def quote(name: str) -> str:
    """Return a name as LLVM assembly writes it behind ``@``."""
    if _PLAIN.match(name):
        return name
    data = name.encode("utf-8", "surrogateescape")
    return '"' + "".join([_IN_QUOTES.get(byte) or f"\\{byte:02X}" for byte in data]) + '"'


def plain_head(head: str, symbol: str) -> str:
    """Return the head of a function with the name ``f``, so that all functions of a type have the same text."""
    return head.replace(f"@{quote(symbol)}(", "@f(", 1)


def with_symbols(text: str) -> str:
    """Return the text of a printed module with the names that symbols have in the object.

    Compilers put the byte 1 before a name that LLVM must not mangle. The symbol in the object does not have this byte.
    """
    return _RAW_NAME.sub(lambda match: match[1] + quote(unquote(match[2])), text) if '"\\01' in text else text


def add_attributes(suffix: str, words: Iterable[str]) -> str:
    """Return the part of a function's head after the parameters, with additional attributes before the section, the alignment and so on."""
    before = _BEFORE_ATTRIBUTES.match(suffix)[0]  # type: ignore[index] # the pattern may be empty
    return "".join([before, *[f" {word}" for word in words], suffix.removeprefix(before)])


def is_vectorized(text: str) -> bool:
    """Return whether printed code contains vectors. Their width depends on the CPU that the code was optimized for."""
    return _ANY_VECTOR.search(text) is not None


def passes_vectors(text: str) -> bool:
    """Return whether code passes wide vectors to or from other modules. Such code can be compiled only for one CPU, not for `targets`.

    Args:
        text: LLVM assembly, as LLVM prints it.
    """
    wide = [re.escape(f"<{vector[0]}{vector[1]} x {vector[2]}>") for vector in set(_SIZED_VECTOR.findall(text)) if _is_wide(*vector)]
    pattern = re.compile("|".join(wide))
    match = pattern.search(text) if wide else None
    while match is not None:  # few lines contain such vectors, so only these are searched for calls and heads
        end = text.find("\n", match.end())
        end = len(text) if end < 0 else end
        line = text[text.rfind("\n", 0, match.start()) + 1 : end]
        may_call = line.startswith(_HEADS) or "call " in line or "invoke " in line
        if may_call and any(map(pattern.search, _OUTWARD.findall(line))):
            return True
        match = pattern.search(text, end)
    return False


def _is_wide(scalable: str, count: str, element: str) -> bool:
    """Return whether a vector type is wider than the vector registers that all processors have, or has a scalable width."""
    return bool(scalable) or int(count) * (_BITS.get(element) or int(element[1:])) > _COMMON_WIDTH


def long_lines(text: str, length: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of all lines with at least `length` characters, and of some shorter lines."""
    step, position = length // 2, 0
    while position < len(text):
        if text.find("\n", position, position + step) >= 0:  # a long line contains a whole window without a line end
            position += step
            continue
        start, end = text.rfind("\n", 0, position) + 1, text.find("\n", position + step)
        end = len(text) if end < 0 else end
        yield start, end
        position += step * ((end - position) // step + 1)


def find_extreme_construct(text: str, *, printed: bool = False) -> str | None:
    """Return a description of a construct that makes LLVM run forever or abort the process; None if there is none.

    `printed` says that LLVM has printed the code, so each type and constant is on one line.
    """
    has_long_numbers = any(pattern.search(text) for pattern in _LONG_NUMBERS)
    relevant = text
    if printed and not has_long_numbers:  # only long lines can contain deep nesting
        relevant = "\n".join([text[start:end] for start, end in long_lines(text, 2 * _DEEPEST)])
    plain = _STRING_OR_COMMENT.sub('""', relevant)
    reason = _extreme_number(plain) if has_long_numbers else None
    if reason is None and (_is_deep(plain) or _has_deep_types(text)):
        return f"a type or constant with more than {_DEEPEST} levels of nesting"
    return reason


def _extreme_number(text: str) -> str | None:
    """Return a description of a length, width or alignment that is too large, or None if none is. `text` has no strings and comments."""
    elements = max((int(match[1]) for match in _VECTOR.finditer(text)), default=0)
    if elements > _MOST_ELEMENTS:
        return f"a vector of {elements} elements (at most {_MOST_ELEMENTS} can be compiled)"
    bits = max((int(match[1]) for match in _INTEGER.finditer(text)), default=0)
    if bits > _WIDEST_INTEGER:
        return f"an integer of {bits} bits (at most {_WIDEST_INTEGER} can be compiled)"
    alignment = max((int(match[1] or match[2]) for match in _ALIGNMENT.finditer(text)), default=0)
    if alignment > _MOST_ALIGNMENT:
        return f"a definition that is aligned to {alignment} bytes (at most {_MOST_ALIGNMENT} can be loaded)"
    return None


def _is_deep(text: str) -> bool:
    """Return whether brackets are nested deeper than `_DEEPEST`. Each pass removes the innermost brackets."""
    brackets = text.encode("utf-8", "surrogatepass").translate(None, _NOT_BRACKETS)
    for _ in range(_DEEPEST):
        remaining = brackets.replace(b"()", b"").replace(b"[]", b"").replace(b"{}", b"")
        if len(remaining) == len(brackets):
            return False
        brackets = remaining
    return bool(brackets)


def _has_deep_types(text: str) -> bool:
    """Return whether named types are nested deeper than `_DEEPEST`. Each pass removes the types without named parts."""
    if text.count("type") <= _DEEPEST:
        return False
    # Strings are removed, except the quoted names of types.
    _, *pieces = _TYPE.split(_STRING_OR_COMMENT.sub(lambda match: match[0] if text[match.start() - 1] == "%" else "", text))
    bodies = [_BODY.match(piece)[0] for piece in pieces[1::2]]  # type: ignore[index] # the pattern may be empty
    parts = {name: set(_TYPE_NAME.findall(body)) for name, body in zip(pieces[::2], bodies, strict=True)}
    if len(parts) <= _DEEPEST:
        return False
    wholes: dict[str, list[str]] = {}
    for name, names in parts.items():
        names -= {used_name for used_name in names if used_name not in parts}
        for used_name in names:
            wholes.setdefault(used_name, []).append(name)
    level = [name for name, names in parts.items() if not names]
    for _ in range(_DEEPEST):
        following = []
        for part in level:
            for whole in wholes.get(part, ()):
                parts[whole].discard(part)
                if not parts[whole]:
                    following.append(whole)
        level = following
    return bool(level)


def references(text: str) -> tuple[str, ...]:
    """Return the distinct names that `text` refers to, in the order of their first occurrence; () without references."""
    if "@" not in text:
        return ()
    if '"' not in text:
        pieces = [_NAME.match(piece) for piece in text.split("@")[1:]]
        return tuple(dict.fromkeys([match[2] for match in pieces if match]))
    return tuple(dict.fromkeys(map(referenced_name, _find_references(text))))


def _find_references(text: str) -> list[str]:
    """Return all references as written. `findall` takes a tenth of the time of a loop over matches."""
    return [token for token in _TOKEN.findall(text) if token[0] == "@"]


def referenced_name(token: str) -> str:
    """Return the name in a reference: ``@name`` or ``@"quoted name"``."""
    return unquote(token[2:-1]) if token[1] == '"' else token[1:]


def read_module(text: str) -> dict[str, Definition]:
    """Return all global values of a printed module, by name. Aliases and ifuncs are returned as variables that refer to their targets."""
    definitions: dict[str, Definition] = {}
    for function in function_texts(text):
        name, *others = references(function)
        head = function[len("define ") : function.find("\n")]
        definitions[name] = Definition("function", head.removesuffix("{"), tuple(others))
    for line in lines_from(text, "declare "):
        definitions[references(line)[0]] = Definition("declaration", line[len("declare ") :], ())
    for line in lines_from(text, "@"):
        name, *others = references(line)
        head = line[1:]
        words = behind_name(head).split(" ", 3)
        is_external = "external" in words or "extern_weak" in words
        definitions[name] = Definition("external" if is_external else "variable", head, tuple(others))
    return definitions


def function_texts(text: str) -> Iterator[str]:
    """Yield the text of each function that a printed module defines, from ``define`` to its last instruction."""
    for chunk in text.split("\n}\n"):  # only functions end with these characters
        start = chunk.rfind("\ndefine ") + 1
        if start or chunk.startswith("define "):
            yield chunk[start:]


def target_text(module: Any) -> str:
    """Return the lines of LLVM assembly that give another module the target of this module."""
    return f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n'


def lines_from(text: str, start: str) -> list[str]:
    """Return the lines that begin with this text."""
    return [text[begin:end] for begin, end in _line_bounds(text, start)]


def change_lines(text: str, start: str, change: Callable[[str], str]) -> str:
    """Return the text with each line that begins with `start` replaced by `change(line)`. Lines are passed without their newline."""
    parts, copied_end = [], 0
    for begin, end in _line_bounds(text, start):
        line = text[begin:end]
        changed = change(line)
        if changed != line:
            parts += [text[copied_end:begin], changed]
            copied_end = end
    return "".join([*parts, text[copied_end:]]) if parts else text


def _line_bounds(text: str, start: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the lines that begin with this text. Searching the text is much faster than examining each line."""
    line_start = 0 if text.startswith(start) else text.find("\n" + start) + 1 or None
    while line_start is not None:
        end = text.find("\n", line_start)
        end = len(text) if end < 0 else end
        yield line_start, end
        line_start = text.find("\n" + start, end) + 1 or None


def lines_of_variables(text: str) -> str:
    """Return the lines of a printed module that define or declare variables and aliases, joined, for faster searches."""
    return "\n".join(lines_from(text, "@"))


def read_values(text: str) -> GlobalValues:
    """Return the functions and variables of a printed module. Reading the text avoids several calls into LLVM for each value."""
    return GlobalValues(read_functions(text), tuple(filter(None, map(_parse_variable, lines_from(text, "@")))))


def read_functions(text: str) -> tuple[GlobalValue, ...]:
    """Return the functions of a printed module."""
    functions = [_parse_function(line, line[len("define ") :], is_declaration=False) for line in lines_from(text, "define ")]
    functions += [
        _parse_function(line, _ATTACHMENTS.sub("", line[len("declare ") :], 1), is_declaration=True)
        for line in lines_from(text, "declare ")
    ]
    return tuple(functions)


def _parse_function(line: str, head: str, *, is_declaration: bool) -> GlobalValue:
    """Return the function that a line declares if `is_declaration` is true, or else defines.

    `head` is the line without its first word and attachments. See `_leading_name` for the exception.
    """
    before, _, rest = head.partition("@")
    if '"' in before:  # the result's type has a quoted name, which may contain "@"
        match = next(match for match in _REFERENCE.finditer(head) if match[0].startswith("@"))
        before, rest = _STRING_OR_COMMENT.sub("", head[: match.start()]), head[match.start() + 1 :]
    words = before.split()
    return GlobalValue(_leading_name(rest)[0], is_declaration, _linkage_of(words), "hidden" in words, line)


def _parse_variable(line: str) -> GlobalValue | None:
    """Return the variable that a line describes, or None for aliases and ifuncs. See `_leading_name` for the exception."""
    name, start = _leading_name(line[1:])
    words = line[1 + start :].removeprefix(" = ").split(" ", _MOST_WORDS)
    end = next((number for number, word in enumerate(words) if word in ("global", "constant", "alias", "ifunc")), 0)
    if words[end] in ("alias", "ifunc"):
        return None
    is_declaration = words[0] in ("external", "extern_weak")
    return GlobalValue(name, is_declaration, _linkage_of(words), "hidden" in words[:end], line)


def _leading_name(text: str) -> tuple[str, int]:
    """Return the name at the start of a text, and the position after it. The name of a numbered value is empty.

    Raise `ValueError` if the text does not begin with a name.
    """
    match = _NAME.match(text)
    if match is None:
        raise ValueError(f"the LLVM assembly has no name at {text[:80]!r}")
    quoted, plain = match[1], match[2]
    if plain is None:
        return unquote(quoted), match.end()
    return "" if plain.isdigit() else plain, match.end()


def behind_name(head: str) -> str:
    """Return the definition of a variable or an alias from its head, ``NAME = DEFINITION``. Raise `ValueError` if it has no name."""
    return head[_leading_name(head)[1] :].removeprefix(" = ")


def _linkage_of(words: list[str]) -> str:
    """Return the linkage in the words before a definition. LLVM prints no word for external linkage."""
    return _LINKAGES.get(words[0], "external") if words else "external"


def read_assembly(text: str) -> Assembly:
    """Return the names in the assembly of a printed module. Local labels, which begin with a dot, count as mentioned only.

    Instructions and registers are left out, as far as their form shows what they are, because functions can have such names.
    """
    if " asm " not in text:
        return Assembly(frozenset(), frozenset(), is_connected=False)
    lines = "\n".join([unquote(line) for line in _ASSEMBLY.findall(text)]) if "module asm" in text else ""
    defined = [label.strip() for labels in _LABELS.findall(lines) for label in labels.split(":")]
    defined += [name for names in _ASSIGNED.findall(lines) for name in names]
    templates = "\n".join(map(unquote, _templates(text)))
    names = frozenset([name for name in defined if name and not name.startswith(".")])
    return Assembly(names, _words(templates), is_connected=bool(_CONNECTING.search(templates)))


def _words(assembly: str) -> frozenset[str]:
    """Return the words of assembly that may be names of functions and variables."""
    words = _WORD.findall(_INSTRUCTION.sub("\n", assembly))
    return frozenset([*words, *[word.lstrip("$") for word in words]])


def functions_with_assembly(text: str) -> dict[str, frozenset[str]]:
    """Return the functions of a printed module that contain inline assembly other than barriers, with the names in their assembly."""
    bodies = [body for body in function_texts(text) if " asm " in body] if " asm " in text else []
    templates = {references(body)[0]: _templates(body) or [body] for body in bodies}
    return {name: _words("\n".join(map(unquote, found))) for name, found in templates.items() if any(found)}


def _templates(text: str) -> list[str]:
    """Return the templates of all assembly in a text. Only lines with assembly are matched, because this takes long."""
    lines, found = [], text.find(" asm ")
    while found >= 0:
        start, end = text.rfind("\n", 0, found) + 1, text.find("\n", found)
        lines.append(text[start : end if end >= 0 else None])
        found = text.find(" asm ", end) if end >= 0 else -1
    return _ANY_ASSEMBLY.findall("\n".join(lines))


def section_bounds(text: str) -> frozenset[str]:
    """Return the symbols `__start_x` and `__stop_x` of a printed module's sections, which a linker defines; none if no such name occurs."""
    if not any(bound in text for bound in _BOUNDS):
        return frozenset()
    return frozenset([bound + name for name in _SECTION.findall(text) for bound in _BOUNDS])


def with_image_symbols(definitions: dict[str, Definition], text: str) -> dict[str, Definition]:
    """Return global values in which the symbols that assembly or the linker defines are definitions instead of declarations.

    A symbol that assembly defines refers to `ALL_ASSEMBLY`, which refers to all names in the assembly of the module. A function with inline
    assembly refers to the names in its own assembly, and to `ALL_ASSEMBLY` if macros or labels can connect the parts of the assembly. A
    section bound refers to the members of its section.
    """
    assembly, bounds = read_assembly(text), section_bounds(text)
    mentioned = assembly.mentioned & definitions.keys()
    if not assembly.defined and not bounds and not mentioned:
        return definitions
    changed = {**definitions, ALL_ASSEMBLY: Definition("variable", "", tuple(sorted(mentioned)))}
    for name, words in functions_with_assembly(text).items():
        names = dict.fromkeys([*definitions[name].references, *sorted(words & mentioned), *[ALL_ASSEMBLY] * assembly.is_connected])
        changed[name] = definitions[name]._replace(references=tuple(names))
    for name, definition in definitions.items():
        if definition.kind not in ("declaration", "external"):
            continue
        if name in assembly.defined:
            kind = "function" if definition.kind == "declaration" else "variable"
            changed[name] = Definition(kind, definition.head, (ALL_ASSEMBLY,))
        elif name in bounds:
            attribute = f' section "{name.split("_", 3)[3]}"'  # of a name like __start_section
            members = tuple([member for member, other in definitions.items() if attribute in other.head])
            changed[name] = Definition("variable", definition.head, members)
    return changed


def leading_type(text: str) -> str:
    """Return the type at the start of a text. The text may be truncated after the type."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>")
        if character in " ," and depth == 0:
            return text[:index]
    return text


def symbol_counts(text: str) -> dict[str, int]:
    """Return the number of occurrences of each function and variable in LLVM assembly, its definition or declaration included.

    Args:
        text: LLVM assembly, as LLVM prints it.
    """
    return {referenced_name(token): count for token, count in Counter(_find_references(text)).items()}


def parse_head(head: str) -> Head:
    """Return the parts of a function's head line, without metadata attachments. `head` does not contain ``define`` or ``declare``.

    Raise `ValueError` if the head has no name, or its brackets are unbalanced.
    """
    if head.startswith("!"):
        head = _ATTACHMENTS.sub("", head, count=1)
    match = _REFERENCE.search(head)
    while match is not None and not match[0].startswith("@"):
        match = _REFERENCE.search(head, match.end())
    if match is None:
        raise ValueError(f"the LLVM assembly has a function without a name: {head[:80]!r}")
    end = _closing_bracket(head, match.end())
    return Head(head[: match.start()].strip(), split_parameters(head[match.end() + 1 : end]), head[end + 1 :])


def _closing_bracket(text: str, start: int) -> int:
    """Return the index of the bracket that closes the bracket at `start`. Raise `ValueError` if none closes it."""
    end = text.find(")", start)
    if end >= 0 > max(text.find("(", start + 1, end), text.find('"', start, end)):
        return end  # the usual case: neither brackets nor quotes in between
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
    raise ValueError(f"the LLVM assembly has unbalanced brackets: {text[:80]!r}")


def split_parameters(text: str) -> tuple[str, ...]:
    """Split the text of a parameter list at its commas, except commas inside brackets or quotes."""
    if not _NESTED.search(text):
        return tuple(text.split(", ")) if text else ()
    return tuple([part for part in map(str.strip, split_at(text, ",")) if part])


def without_name(parameter: str) -> str:
    """Return the text of a parameter without its name, as in a declaration."""
    return _PARAMETER_NAME.sub("", parameter)


def split_at(text: str, separator: str) -> list[str]:
    """Split a text at the character `separator`, except inside brackets or quotes. Empty parts are left out."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in (*parts, text[start:]) if part]
