"""Links the kept code of several modules as LLVM code: copies become one module, optimized as one program.

Each module is read by itself. What it imports, and what it has at home, becomes a declaration under one symbol for each name, or the copy
itself where another module has it; copies get symbols of their own, so that no two modules mean the same by one. Whatever is not reached
from the functions that were asked for is internal, and LLVM drops it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.inlining.imported import Inlined
from compcache.build.ir_text import leading_type, parse_head, quote, unquote
from compcache.build.slots import restore_resolution
from compcache.closures.parts import Copies, copies_of
from compcache.errors import CompileError, LinkError
from compcache.files import reraise_interrupt
from compcache.translation.emission import Prepared, emit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from compcache.build.exports import Export
    from compcache.build.recipe import Recipe
    from compcache.closures.chosen import Bound
    from compcache.translation.emission import Translated
    from compcache.translation.requests import Request

__all__ = ["Closure", "Linked", "Part", "link_code"]

_EXTERNAL, _INTERNAL = "external", "internal"
#: Symbols of definitions that stay at home, until LLVM drops them.
_HOME = ".home"
_COMDAT = re.compile(r' comdat(?:\(\$(?:"[^"]*"|[-$._A-Za-z0-9]+)\))?')
_TOKEN = re.compile(r'@(?:"[^"]*"|[-$._A-Za-z0-9]+)')
_WORDS = re.compile(
    r"\b(?:private|internal|available_externally|linkonce|linkonce_odr|weak|weak_odr|external|dso_local|dso_preemptable|hidden|protected"
    r"|default) "
)
_VARIABLE = re.compile(r"(?:[a-z_]+(?:\([^)]*\))? )*?(global|constant|alias) ")


class Part(NamedTuple):
    """A module whose code may be copied."""

    module_id: bytes
    recipe: Recipe


class Closure(NamedTuple):
    """What is to be linked: the modules, what names are bound to, and the functions that the image is for."""

    parts: Sequence[Part]
    bound: Mapping[str, Bound]
    roots: Sequence[str]


class Linked(NamedTuple):
    """A linked closure as an object, the functions in it that were asked for, and the parts whose code is in it.

    `bound` are the names that were resolved, each with the module that has it.
    """

    translated: Translated
    names: tuple[str, ...]
    parts: tuple[bytes, ...]
    bound: dict[str, bytes]


class _Reached(NamedTuple):
    """By the numbers of parts: the definitions to copy. By names: the module that each is bound to."""

    copies: dict[int, dict[str, None]]
    bound: dict[str, bytes]


def link_code(context: Any, closure: Closure, request: Request) -> Linked | None:
    """Link a closure; None where it has the code of one module and one function alone.

    Raises:
        CompileError, LinkError: the code contradicts itself.
    """
    texts = [_read(part, context) for part in closure.parts]
    copies = [copies_of(text, part.recipe) for text, part in zip(texts, closure.parts, strict=True)]
    linker = _Linker(closure, copies)
    roots = linker.roots()
    reached = linker.reach(roots)
    parts = [number for number, found in reached.copies.items() if found]
    if len(parts) < 2:  # noqa: PLR2004 - code of one module is linked already
        return None
    module = None
    for number in sorted(parts):
        module = linker.add(module, number, texts[number], reached.copies[number], context)
    exports = linker.finish(module, roots)
    libraries = tuple(dict.fromkeys([name for number in parts for name in closure.parts[number].recipe.libraries]))
    with codegen.borrowed_machine(request.machine.cpu, request.machine.features, request.level) as target:
        module.data_layout = str(target.target_data)  # type: ignore[union-attr] # there are two parts
        codegen.optimize(module, target, request.level)
        resolution = restore_resolution(module, linker.imported(module), {}, libraries)
        prepared = Prepared(exports, {}, resolution, (), b"", {}, _sources(exports, closure, parts, reached))
        translated = emit(module, str(module), context, target, request, prepared)
    return Linked(translated, tuple(roots), tuple([closure.parts[number].module_id for number in sorted(parts)]), reached.bound)


def _read(part: Part, context: Any) -> str:
    """The kept code of a module, as LLVM prints it; what LLVM cannot read is the text of nothing."""
    try:
        module = codegen.read_back(part.recipe.code, context)
    except RuntimeError as error:
        reraise_interrupt(error)
        return "!"  # written by a newer LLVM: no definition can be read of it
    text = str(module)
    context.modules.pop().close()
    return text


class _Linker:
    def __init__(self, closure: Closure, copies: Sequence[Copies]) -> None:
        self._closure = closure
        self._copies = copies
        self._numbers = {part.module_id: number for number, part in enumerate(closure.parts)}
        self._names = {part.module_id: {e.name: e for e in part.recipe.exports} for part in closure.parts}
        self._symbols: dict[str, str] = {}  # of what is imported, by name

    # ---------------------------------------------------------------- what is reached

    def roots(self) -> dict[str, tuple[int, str]]:
        """The functions to export that can be copied: by name the numbers of their parts, and their symbols."""
        found = {name: self._copy_of(name) for name in self._closure.roots}
        return {name: place for name, place in found.items() if place is not None}

    def _copy_of(self, name: str) -> tuple[int, str] | None:
        """Where the copy of what a name is bound to comes from; None where it is not copied."""
        bound = self._closure.bound.get(name)
        number = self._numbers.get(bound.module_id) if bound is not None else None
        if bound is None or number is None or bound.symbol not in self._copies[number].mentions:
            return None
        return number, bound.symbol

    def _direct(self, number: int, symbol: str) -> tuple[int, str] | None:
        """The copy that a part calls under the symbol of an import."""
        copies = self._copies[number]
        name = copies.imports[symbol]
        bound = self._closure.bound.get(name)
        return self._copy_of(name) if bound is not None and bound.is_alike else None

    def reach(self, roots: Mapping[str, tuple[int, str]]) -> _Reached:
        """All that is copied for these functions, and the names that this depends on."""
        found: dict[int, dict[str, None]] = {}
        bound: dict[str, bytes] = {name: self._closure.bound[name].module_id for name in roots}
        waiting = list(roots.values())
        seen = set(waiting)
        for number, key in waiting:  # grows while it is walked
            copies = self._copies[number]
            found.setdefault(number, {})[key] = None
            for other in copies.mentions[key]:
                place: tuple[int, str] | None = (number, other)
                if other in copies.imports:
                    place = self._direct(number, other)
                    if place is not None:
                        name = copies.imports[other]
                        bound[name] = self._closure.bound[name].module_id
                elif other in copies.homes:
                    bound[copies.homes[other]] = self._closure.parts[number].module_id
                    place = None
                elif other not in copies.mentions:
                    place = None
                if place is not None and place not in seen:
                    seen.add(place)
                    waiting.append(place)
        return _Reached(found, bound)

    # ---------------------------------------------------------------- LLVM

    def add(self, module: Any, number: int, text: str, copied: Iterable[str], context: Any) -> Any:
        """The module with the copies of one part in it; the first part's is where all others go."""
        copies, names = self._copies[number], set(copied)
        homes = {symbol for key in names for symbol in copies.mentions[key] if symbol in copies.homes}
        own = codegen.parse(_without_homes(text, homes), context)
        for value, is_function in _values(own):
            name = value.name
            if value.is_declaration or value.linkage.name == "available_externally":
                self._rename_declared(value, number, homes, is_function=is_function)
            elif name in names and is_function:
                value.visibility = "default"
                value.linkage = _EXTERNAL
                _rename(value, _symbol(number, name))
            else:
                value.visibility = "default"
                value.linkage = _INTERNAL
        if module is None:
            return own
        try:
            module.link_in(own)
        except RuntimeError as error:
            reraise_interrupt(error)
            raise LinkError(f"module {self._closure.parts[number].module_id.hex()} cannot be linked with others: {error}") from error
        context.modules.pop()  # it has become a part of the other
        return module

    def _rename_declared(self, value: Any, number: int, homes: set[str], *, is_function: bool) -> None:
        """Give a declaration the symbol of what it stands for in the linked module."""
        copies, name = self._copies[number], value.name
        if name in copies.imports:
            place = self._direct(number, name) if is_function else None
            _rename(value, _symbol(*place) if place is not None else self._imported(copies.imports[name]))
        elif name in homes:
            _rename(value, self._imported(copies.homes[name]))
        elif name in self._closure.parts[number].recipe.slots:
            _rename(value, self._imported(self._closure.parts[number].recipe.slots[name]))  # nothing that is copied uses it

    def _imported(self, name: str) -> str:
        return self._symbols.setdefault(name, f"compcache.import.{len(self._symbols)}")

    def imported(self, module: Any) -> dict[str, str]:
        """The names of what the optimized module imports, by symbol."""
        names = {symbol: name for name, symbol in self._symbols.items()}
        return {value.name: names[value.name] for value, _ in _values(module) if value.is_declaration and value.name in names}

    def finish(self, module: Any, roots: Mapping[str, tuple[int, str]]) -> tuple[Export, ...]:
        """Make all internal but the functions that were asked for, which are exported."""
        wanted = {_symbol(*place) for place in roots.values()}
        for value, is_function in _values(module):
            if is_function and not value.is_declaration and value.linkage.name == _EXTERNAL:
                if value.name in wanted:
                    value.visibility = "hidden"
                else:
                    value.linkage = _INTERNAL
        names = self._names
        exports = [(name, place, names[self._closure.parts[place[0]].module_id][name]) for name, place in roots.items()]
        return tuple([export._replace(symbol=_symbol(*place)) for _, place, export in exports])


def _sources(exports: Iterable[Export], closure: Closure, parts: Iterable[int], reached: _Reached) -> Inlined:
    """Which functions of other modules may have code in each of the exported ones: all that were linked."""
    modules = {closure.parts[number].module_id for number in parts}
    sources = {name: (name, module_id.hex()) for name, module_id in reached.bound.items() if module_id in modules}
    return Inlined(sources, (), {**dict.fromkeys(sources, ()), **{export.symbol: tuple(sources) for export in exports}})


def _symbol(number: int, name: str) -> str:
    """The symbol of a copy: debuggers and profilers show it as a part of the function."""
    return f"{name}.part.{number}"


def _rename(value: Any, name: str) -> None:
    value.name = name
    if value.name != name:
        raise CompileError(f"the symbol {name!r} is used already in a module that is to be linked")


def _values(module: Any) -> Iterator[tuple[Any, bool]]:
    """The functions and variables of a module, and whether each is a function, but for those that are LLVM's own."""
    for values, is_function in ((module.functions, True), (module.global_variables, False)):
        yield from [(value, is_function) for value in values if not value.name.startswith("llvm.")]


# ---------------------------------------------------------------- text


def _without_homes(text: str, homes: set[str]) -> str:
    """A printed module with declarations in place of these definitions, and of all aliases, and without COMDATs."""
    has_aliases = "= " in text and " alias " in text
    if not homes and not has_aliases and " comdat" not in text:
        return text
    lines, declared = [], []
    for line in text.split("\n"):
        if line.startswith("$"):
            continue
        if line.startswith("define "):
            line = _COMDAT.sub("", line)  # noqa: PLW2901 - the same line
            match = _TOKEN.search(line)
            if match is not None and _plain(match[0]) in homes:
                declared.append(_declaration(line))
                line = line.replace(match[0], f"@{quote(_plain(match[0]) + _HOME)}", 1)  # noqa: PLW2901
        elif line.startswith("@"):
            line = _COMDAT.sub("", line)  # noqa: PLW2901
            token, _, rest = line.partition(" = ")
            match = _VARIABLE.match(rest)
            if match is not None and (match[1] == "alias" or _plain(token) in homes):
                declared.append(_external(token, rest, match))
                if match[1] == "alias":
                    continue
                line = f"@{quote(_plain(token) + _HOME)} = {rest}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join([*lines, *declared, ""])


def _declaration(line: str) -> str:
    """The declaration of a function that is defined in this line."""
    head = parse_head(line[len("define ") :])
    match = _TOKEN.search(line)
    assert match is not None
    parameters = ", ".join([parameter.rpartition(" %")[0] or parameter for parameter in head.parameters])
    return f"declare {_WORDS.sub('', head.prefix + ' ')}{match[0]}({parameters})"


def _external(token: str, rest: str, match: re.Match[str]) -> str:
    """The declaration of a variable or an alias."""
    kind = leading_type(rest[match.end() :])
    if match[1] == "alias":
        whole = rest[match.end() :].rpartition(", ptr ")[0]
        result, _, parameters = whole.partition(" (")
        if parameters:
            return f"declare {result} {token}({parameters}"
        kind = whole
    local = "thread_local " if "thread_local" in rest[: match.end()] else ""
    return f"{token} = external {local}{'global' if match[1] == 'alias' else match[1]} {kind}"


def _plain(token: str) -> str:
    return unquote(token[2:-1]) if token.startswith('@"') else token[1:]
