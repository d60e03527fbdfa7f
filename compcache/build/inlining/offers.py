"""The bodies that a module offers to its importers: small functions whose names identify their content.

A body is offered before it is optimized, so that code which inlines it equals the code of one combined module. Bodies are read from the
printed module. A body is offered only if all its parts have the same meaning in every module: this file lists the allowed parts. The list
does not contain items with an identity (changeable variables, thread-local variables, addresses that may be compared), weak definitions,
other floating-point modes, exceptions, assembly and variable arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.build.ir_text import function_texts, lines_from, parse_head, passes_vectors, quote, referenced_name, references
from compcache.build.llvm_types import split_words
from compcache.build.merging import expand_types
from compcache.build.trial import has_module_assembly
from compcache.digest import is_content_name
from compcache.formats.bodies import Body
from compcache.images import platform_symbols
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compcache.build.exports import Export
    from compcache.build.slots import Resolution

__all__ = ["LOCAL", "MODE_ATTRIBUTE", "MOST_INSTRUCTIONS", "offered_bodies", "type_of"]

#: LLVM's own limit for functions that ThinLTO imports from other modules.
MOST_INSTRUCTIONS = 100
#: The prefix of the names of a body's own functions and constants.
LOCAL = "compcache.local."
_MOST_LINES = 4 * MOST_INSTRUCTIONS
_MOST_CONSTANT = 4096  # characters of a constant's line
#: Attributes that change the arithmetic of a whole function. Functions with such attributes are not offered, and inline no bodies.
MODE_ATTRIBUTE = re.compile(
    r'\bstrictfp\b|"denormal-fp-math|"no-(?:infs|nans|signed-zeros)-fp-math"="true"|"(?:unsafe|approx-func)-fp-math"="true"'
)

_TOKEN = re.compile(r'[@%$!#]?"[^"]*"|@[-$._A-Za-z0-9]+')
_TYPE_NAME = re.compile(r'%(?:"[^"]*"|[-$._A-Za-z0-9]+)')
_STRING = re.compile(r'"[^"]*"')
_TYPE = re.compile(r"(?:void|i\d+|half|bfloat|float|double|fp128|\w+_fp80|ptr|[{\[<%].*)\Z")
_GROUP = re.compile(r" #(\d+)")
_ATTRIBUTES = re.compile(r"attributes #(\d+) = \{ ?(.*?) ?\}")
_ATTACHMENT = re.compile(r", !([-\w.]+) (!\d+)")
_NODE = re.compile(r"!\d+")
_LABEL = re.compile(r'(?:[-\w$.]+|"[^"]*"):(?: +; .*)?\Z')
_INSTRUCTION = re.compile(r'(?:%(?:"[^"]*"|[-\w$.]+) = )?(?:(?:tail|notail) )?([a-z_]+)\b')
_CASE = re.compile(r"i\d+ -?\w+, label %|\]")
_STACK_VARIABLE = re.compile(r'(%(?:"[^"]*"|[-\w$.]+)) = alloca ')
_CONSTANT = re.compile(r"(?:private|internal) (?:dso_local )?(?:local_)?(unnamed_addr )?constant ")
_OPCODES = re.compile(
    "ret|br|switch|unreachable|[fsu]?(?:add|sub|mul|div|rem|neg)|shl|[la]shr|and|x?or|(?:extract|insert)(?:element|value)|shufflevector|alloca|"
    "load|store|getelementptr|[sz]ext|(?:fp)?trunc|fpext|fpto[us]i|[us]itofp|ptrtoint|inttoptr|bitcast|[if]cmp|phi|select|freeze|call"
)
_FORBIDDEN_WORDS = re.compile(
    r"\b(?:asm|blockaddress|dso_local_equivalent|no_cfi|ptrauth|addrspace|syncscope|va_arg|\w+_amx|token|metadata !\w*\()"
)
#: The allowed attributes of functions and calls: they do not depend on the place of the code, or LLVM compares them when it inlines.
_CODE_ATTRIBUTES = re.compile(
    "nounwind|mustprogress|norecurse|nosync|nofree|willreturn|nocallback|memory|readnone|readonly|writeonly|argmemonly|speculatable|cold|hot|"
    "inlinehint|alwaysinline|uwtable|optsize|minsize|nonlazybind|noreturn|ssp|sspstrong|sspreq|nocreateundeforpoison|"
    '"(?:frame-pointer|no-trapping-math|stack-protector-buffer-size|min-legal-vector-width|target-cpu|target-features|tune-cpu|'
    'no-(?:infs|nans|signed-zeros)-fp-math|(?:unsafe|approx-func)-fp-math|less-precise-fpmad|no-jump-tables)"'
)
#: The allowed attributes of parameters and results, and the attributes that decide how a value is passed.
_VALUE_ATTRIBUTES = re.compile(
    "zeroext|signext|inreg|noalias|byval|sret|noundef|nonnull|nocapture|captures|readonly|readnone|writeonly|returned|dereferenceable|"
    "dereferenceable_or_null|nofree|nofpclass|range|initializes|writable|dead_on_unwind|dead_on_return|align"
)
_ABI = frozenset(("zeroext", "signext", "inreg", "byval", "sret"))
_INTRINSICS = re.compile(
    r"llvm\.(?:abs|assume|bitreverse|bswap|canonicalize|ceil|copysign|ctlz|ctpop|cttz|donothing|expect|fabs|floor|fma|fmuladd|fpto[su]i\.sat|"
    r"frexp|fsh[lr]|is\.fpclass|ldexp|lifetime\.(?:end|start)|ll?r(?:int|ound)|exp|exp2|exp10|log|log2|log10|pow|powi|a?(?:sin|cos|tan)h?|"
    r"atan2|sincos|(?:max|min)(?:imum|imumnum|num)|mem(?:cpy|set)(?:\.inline)?|memmove|nearbyint|objectsize|prefetch|ptrmask|rint|round|"
    r"roundeven|trunc|sqrt|[su](?:max|min|cmp)|[su](?:add|sub|mul)\.with\.overflow|[su](?:add|sub|shl)\.sat|trap|vector\.reduce|"
    r"experimental\.noalias\.scope\.decl)(?:\.|\Z)"
)
#: The metadata that stays attached to instructions of bodies. Other metadata is left out, which affects only speed.
_KEPT_METADATA = re.compile(
    r"tbaa(?:\.struct)?|llvm\.loop|noalias|alias\.scope|range|nonnull|noundef|align|invariant\.load|fpmath|unpredictable|prof"
)


class _NotOffered(Exception):  # noqa: N818 - a result within this file, not an error
    """Raised if a function contains a part that may have another meaning in another module."""


def offered_bodies(text: str, exports: Iterable[Export], resolution: Resolution) -> tuple[Body, ...]:
    """Return the bodies of exported functions with content names, for other modules to inline; none from a module with assembly.

    `text` is the module as LLVM prints it, before it is optimized.
    """
    content_names = {export.symbol: export.name for export in exports if is_content_name(export.name) and not export.link_only}
    offered = {symbol: name for symbol, name in content_names.items() if symbol not in resolution.imports}
    if not offered or has_module_assembly(text):
        return ()
    return _Module(text, offered, resolution).bodies()


def quoted(name: str) -> str:
    """Return a reference to a function by its func_name, always quoted, as bodies contain it."""
    written = quote(name)
    return "@" + (written if written[0] == '"' else f'"{written}"')


def type_of(head: str, types: Mapping[str, str]) -> str:
    """Return the type of a function that its callers must agree on, with named types expanded.

    `head` is the head of the function, without ``define`` or ``declare``.

    Raise `ValueError` if the head has unknown attributes, or a type is opaque, unknown or recursive.
    """
    try:
        before, parameters, _ = parse_head(head)
        result = _abi_words(_passed_types(before, is_result=True))
        passed = [_abi_words(_passed_types(parameter, is_result=False)) for parameter in parameters]
    except _NotOffered:
        raise ValueError(f"the function has an unknown attribute: {head}") from None
    return expand_types(f"{result} ({', '.join(passed)})", types)


def _abi_words(words: Iterable[str]) -> str:
    """Return the type among the words of a parameter or result, with the attributes that change how the value is passed."""
    return " ".join([word for word in words if word.partition("(")[0] in _ABI or _TYPE.match(word)])


def _passed_types(text: str, *, is_result: bool) -> list[str]:
    """Return the type and the attributes of a result if `is_result` is true, otherwise of a parameter.

    Raise `_NotOffered` if an attribute is unknown.
    """
    words = split_words(text)
    passed: list[str] = []
    has_type = False
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name = word.partition("(")[0]
        if name == "align" and position < len(words) and words[position].isdigit():
            passed.append(f"align {words[position]}")
            position += 1
        elif _VALUE_ATTRIBUTES.fullmatch(name):
            passed.append(word)
        elif is_result and word in ("dso_local", "hidden"):
            continue
        elif not has_type and _TYPE.match(word):
            has_type = True
            passed.append(word)
        elif not is_result and has_type and word[0] == "%" and position == len(words):
            break
        else:
            raise _NotOffered  # a linkage, a calling convention or an unknown word
    if not has_type:
        raise _NotOffered
    return passed


class _Module:
    """A printed module from which bodies are read.

    `functions` has the texts of functions, and `declarations` and `variables` have lines, by symbol. `nodes` has the texts of metadata
    nodes, by token (``!1``).
    """

    def __init__(self, text: str, offered: Mapping[str, str], resolution: Resolution) -> None:
        self._offered = offered
        self._resolution = resolution
        self.functions: dict[str, str] = {}
        for function in function_texts(text):
            head_names = references(function[: function.find("\n")])
            if head_names:
                self.functions[head_names[0]] = function
        self.declarations = {references(line)[0]: line for line in lines_from(text, "declare ") if "@" in line}
        self.variables = {references(line)[0]: line for line in lines_from(text, "@")}
        self._types = {line.partition(" = ")[0]: line for line in lines_from(text, "%")}
        self.nodes = dict(line.split(" = ", 1) for line in lines_from(text, "!") if line[1:2].isdigit())
        self._attributes = {match[1]: match[2] for line in lines_from(text, "attributes #") if (match := _ATTRIBUTES.fullmatch(line))}

    def bodies(self) -> tuple[Body, ...]:
        """Return the bodies of the requested functions. Bodies that other modules cannot use are left out."""
        offered = []
        for symbol, name in self._offered.items():
            with suppress(_NotOffered, ValueError, KeyError):
                offered.append(_Reader(self, symbol, name).read())
        return tuple(offered)

    # ------------------------------------------------------------ what a body may use

    def content_name(self, symbol: str) -> str | None:
        """Return the func_name that identifies a function's content, or None if the function has no such name."""
        name = self._offered.get(symbol) or self._resolution.imports.get(symbol)
        return name if name is not None and is_content_name(name) else None

    def is_native(self, symbol: str) -> bool:
        """Return whether a symbol can only mean a function of the platform."""
        resolution = self._resolution
        if symbol not in self.declarations or symbol in resolution.imports or resolution.libraries or symbol in resolution.null:
            return False
        return platform_symbols.is_platform_symbol(symbol)

    def attributes(self, text: str) -> str:
        """Return the attributes of all attribute groups that occur in a text. Raise `KeyError` if the module does not define a group."""
        return " ".join([self._attributes[number] for number in _GROUP.findall(text)])

    def types_in(self, lines: Iterable[str]) -> list[str]:
        """Return the lines that define the named types in these lines, and the types that these types contain."""
        names: dict[str, None] = {}
        waiting = [*lines]
        for text in waiting:  # grows during the iteration
            new_names = [name for name in _TYPE_NAME.findall(text) if name in self._types and name not in names]
            names |= dict.fromkeys(new_names)
            waiting += [self._types[name].partition(" = ")[2] for name in dict.fromkeys(new_names)]
        return [self._types[name] for name in names]


class _Reader:
    """Reads one body, and the private functions and constants of its module that the body uses."""

    def __init__(self, module: _Module, symbol: str, name: str) -> None:
        self._module = module
        self._symbol = symbol
        self._name = name
        self._local: dict[str, str] = {}  # the names of private functions and constants in the body, by symbol
        self._waiting: list[str] = []
        self._natives: dict[str, None] = {}
        self._imports: dict[str, None] = {}
        self._declared: dict[str, str] = {}  # lines, by symbol
        self._nodes: dict[str, None] = {}
        self._instructions = 0

    def read(self) -> Body:
        """Return the body. Raise `_NotOffered`, `ValueError` or `KeyError` if it contains an unknown part."""
        functions = [self._function_text(self._module.functions[self._symbol], quoted(self._name), is_local=False)]
        constants = []
        for symbol in self._waiting:  # grows during the iteration
            written = self._local[symbol]
            if symbol in self._module.functions:
                functions.append(self._function_text(self._module.functions[symbol], written, is_local=True))
            else:
                constants.append(self._constant_text(self._module.variables[symbol], written))
        metadata = [f"{token} = {self._module.nodes[token]}" for token in self._nodes]
        lines = [*constants, *functions, *self._declared.values(), *metadata]
        code = "\n".join([*self._module.types_in(lines), *lines, ""])
        if passes_vectors(code):
            raise _NotOffered
        return Body(self._name, self._instructions, code, tuple(self._natives), tuple(self._imports))

    def _function_text(self, chunk: str, written: str, *, is_local: bool) -> str:
        """Return the text by which a function is offered, and count its instructions.

        `written` is the function's name in the text. `is_local` is whether the function is local, and stays local in other modules.

        Raise `_NotOffered` if other modules cannot use its body, or the body has too many instructions.
        """
        head, _, inside = chunk.partition("\n")
        lines = inside.split("\n")
        self._instructions += _count_instructions(lines) if len(lines) <= _MOST_LINES else _MOST_LINES
        if self._instructions > MOST_INSTRUCTIONS:
            raise _NotOffered
        plain = _STRING.sub('""', inside)
        if _FORBIDDEN_WORDS.search(plain):
            raise _NotOffered
        first = self._head_line(head.removeprefix("define ").removesuffix("{").strip(), written, is_local=is_local)
        return "\n".join([first, *[self._rewritten_line(line) for line in lines if not line.lstrip().startswith("#dbg_")], "}"])

    def _head_line(self, head: str, written: str, *, is_local: bool) -> str:
        """Return the first line of an offered definition. See `_function_text` for `written` and `is_local`.

        Raise `_NotOffered` if the definition has attributes that other modules cannot keep.
        """
        head = re.sub(r" !dbg !\d+", "", head)
        before, parameters, after = parse_head(head)
        words = before.split()
        linkage = "available_externally"
        if is_local:
            if words[:1] not in (["internal"], ["private"]):
                raise _NotOffered
            before, linkage = before.removeprefix(words[0]).strip(), "internal"
        result = " ".join(_passed_types(before, is_result=True))
        passed = [self._parameter_text(parameter) for parameter in parameters]
        words_after = re.sub(r" #\d+", "", f" {after}").split()
        if not frozenset(words_after) <= {"unnamed_addr", "local_unnamed_addr"}:
            raise _NotOffered
        attributes = self._module.attributes(f" {after}")
        _check_attributes(attributes)
        attributes = attributes if "nonlazybind" in attributes or is_local else f"nonlazybind {attributes}"
        return f"define {linkage} {result} {written}({', '.join(passed)}) {attributes} {{"

    @staticmethod
    def _parameter_text(text: str) -> str:
        """Return a parameter with the types and attributes that an offered body may have. Raise `_NotOffered` for others."""
        last = split_words(text)[-1]
        return " ".join([*_passed_types(text, is_result=False), *([last] if last[0] == "%" else [])])

    def _rewritten_line(self, line: str) -> str:
        """Return a line of a function with the names of the offered text. Raise `_NotOffered` for an instruction that cannot be offered."""
        plain = line.strip()
        if not plain or plain[0] == ";" or _LABEL.match(plain) or _CASE.match(plain):
            return line
        match = _INSTRUCTION.match(plain)
        if match is None or not _OPCODES.fullmatch(match[1]) or ') [ "' in plain:
            raise _NotOffered
        line = self._without_metadata(line)
        callee = ""

        def renamed(token_match: re.Match[str]) -> str:
            """Return a token with the name of the offered text. The first symbol before a bracket in a call is the callee."""
            nonlocal callee
            token = token_match[0]
            if token[0] != "@":
                return token
            symbol = referenced_name(token)
            is_called = match[1] == "call" and not callee and line.startswith("(", token_match.end())
            if is_called:
                callee = symbol
            return self._reference_to(symbol, is_called=is_called)

        changed = _TOKEN.sub(renamed, line)
        if match[1] == "call":
            changed = self._with_attributes(changed, callee)
        return changed

    def _reference_to(self, symbol: str, *, is_called: bool) -> str:
        """Return the reference for a symbol in the body, and add the symbol to the imports, natives or private items of the body.

        Raise `_NotOffered` if the symbol is an unknown intrinsic, or a function whose address is used (not `is_called`).
        """
        module = self._module
        if symbol in module.variables:
            self._add_local(symbol)
            return self._local[symbol]
        if not is_called:
            raise _NotOffered  # the address of a function may be compared
        if symbol.startswith("llvm."):
            if not _INTRINSICS.match(symbol):
                raise _NotOffered
            return self._declare(symbol)
        name = module.content_name(symbol)
        if name is not None:
            self._imports[name] = None
            if name != self._name:
                definition = module.functions.get(symbol)
                line = module.declarations[symbol] if definition is None else definition.partition("\n")[0].removesuffix("{")
                self._declared[symbol] = self._declared_as(line.partition(" ")[2], quoted(name)) + " nonlazybind"
            return quoted(name)
        if module.is_native(symbol):
            self._natives[symbol] = None
            return self._declare(symbol)
        self._add_local(symbol)
        return self._local[symbol]

    def _add_local(self, symbol: str) -> None:
        """Give a private function or constant a name in the body, and read it later. Do nothing if it has such a name already."""
        if symbol not in self._local:
            self._local[symbol] = "@" + quote(LOCAL + symbol)
            self._waiting.append(symbol)

    def _declare(self, symbol: str) -> str:
        """Declare an intrinsic or a platform function in the body, and return the reference to it. See `_declared_as` for the exception."""
        reference = "@" + quote(symbol)
        self._declared[symbol] = self._declared_as(self._module.declarations[symbol].removeprefix("declare "), reference)
        return reference

    @staticmethod
    def _declared_as(head: str, written: str) -> str:
        """Return the declaration of a function with this head under the name `written`, without metadata and attribute groups.

        Calls state the attributes of the groups.

        Raise `_NotOffered` if the head of a function other than an intrinsic has unknown attributes.
        """
        before, parameters, _ = parse_head(re.sub(r" !dbg !\d+", "", head))
        if "@llvm." in written:
            return f"declare {before} {written}({', '.join(parameters)})"
        passed = [" ".join(_passed_types(parameter, is_result=False)) for parameter in parameters]
        return f"declare {' '.join(_passed_types(before, is_result=True))} {written}({', '.join(passed)})"

    def _with_attributes(self, line: str, callee: str) -> str:
        """Return a call with the attributes of its groups written out, and those of the declaration if it calls a platform function.

        Raise `_NotOffered` if an attribute is not harmless.
        """
        attributes = self._module.attributes(line)
        line = _GROUP.sub("", line)
        if callee in self._natives:
            attributes += " " + self._module.attributes(self._module.declarations[callee])
        _check_attributes(attributes)
        end = line.find(", !")
        end = len(line) if end < 0 else end
        attribute_words = [word for word in split_words(attributes) if word[0] != '"']
        return " ".join([line[:end], *dict.fromkeys(attribute_words)]) + line[end:]

    def _constant_text(self, line: str, written: str) -> str:
        """Return the definition of a private constant under another name.

        Raise `_NotOffered` if its address may be compared, or it is large, contains addresses, or has a section or metadata of its own.
        """
        head = line.partition(" = ")[2]
        match = _CONSTANT.match(head)
        if match is None or match[1] is None or "local_unnamed_addr" in head[: match.end()] or len(line) > _MOST_CONSTANT:
            raise _NotOffered
        plain = _STRING.sub('""', head)
        if any(part in plain for part in ("@", ", section", ", comdat", ", partition", "!", "blockaddress")):
            raise _NotOffered
        return f"{written} = {head}"

    # ------------------------------------------------------------ metadata

    def _without_metadata(self, line: str) -> str:
        """Return the line without unknown metadata attachments, and keep the nodes of the remaining attachments.

        Raise `_NotOffered` if the line uses an unknown node in another way.
        """
        if "!" not in line:
            return line

        def keep_attachment(match: re.Match[str]) -> str:
            """Return an attachment whose kind and node are known, and keep the node. Return "" for any other attachment."""
            return match[0] if _KEPT_METADATA.fullmatch(match[1]) and self._keep_node(match[2]) else ""

        changed = _ATTACHMENT.sub(keep_attachment, line)
        for token in _NODE.findall(_STRING.sub('""', changed)):
            if token not in self._nodes and not self._keep_node(token):
                raise _NotOffered
        return changed

    def _keep_node(self, token: str) -> bool:
        """Keep a metadata node and the nodes that it contains, and return True.

        If one of these nodes is debug information or refers to a symbol, keep nothing and return False.
        """
        new_tokens = {token: None}
        order = [token]
        for node in order:  # grows during the iteration
            text = self._module.nodes[node]
            if not text.removeprefix("distinct ").startswith("!{") or "@" in text:
                return False
            new_nodes = [inner for inner in _NODE.findall(_STRING.sub('""', text)) if inner not in new_tokens]
            new_tokens |= dict.fromkeys(new_nodes)
            order += dict.fromkeys(new_nodes)
        self._nodes |= new_tokens
        return True


def _check_attributes(attributes: str) -> None:
    """Raise `_NotOffered` if an attribute changes the meaning of code or is not known to be harmless."""
    if MODE_ATTRIBUTE.search(attributes):
        raise _NotOffered
    for word in split_words(attributes):
        name = word.partition("=")[0] if word[0] == '"' else word.partition("(")[0]
        if not _CODE_ATTRIBUTES.fullmatch(name):
            raise _NotOffered


def _count_instructions(lines: Iterable[str]) -> int:
    """Count the instructions that the optimizer probably keeps: all except accesses to the function's own stack variables."""
    stack_variables: set[str] = set()
    count = 0
    for line in lines:
        plain = line.strip()
        match = _STACK_VARIABLE.match(plain)
        if match is not None:
            stack_variables.add(match[1])
        elif plain and plain[0] != ";" and not _LABEL.match(plain) and not _CASE.match(plain) and "@llvm.lifetime." not in plain:
            operand = re.search(r"ptr (%[-\w$.]+)", plain) if " load " in plain or plain.startswith("store ") else None
            count += operand is None or operand[1] not in stack_variables
    return count
