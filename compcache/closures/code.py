"""Links the stored code of several modules as LLVM code. Copied definitions become one module, which is optimized as one program.

Each module is read separately. Its imports, and its definitions that are not copied, become declarations with one symbol per name, or refer
to the copy of a definition from another module. Copies get unique symbols, so that no symbol has two meanings. If a reached definition
cannot be copied, its whole module moves into the image if possible, and all exports of the module become exports of the image. Definitions
that the requested functions and these exports do not reach are internal, and LLVM drops them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.inlining.imported import Inlined
from compcache.build.ir_text import leading_type, parse_head, quote, referenced_name, references, target_text, without_name
from compcache.build.merging import link_modules, plain_declarations, without_tbaa_of_calls
from compcache.build.overridden import without_comdat
from compcache.build.pic import ALIAS
from compcache.build.slots import restore_resolution
from compcache.closures.parts import Copies, copies_of, without_static_runtime
from compcache.errors import CompileError, LinkError
from compcache.images.archives import Archive
from compcache.images.static_runtime import STATIC_RUNTIME, static_runtime_text
from compcache.interrupts import reraise_interrupt
from compcache.translation.emission import Prepared, emit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from compcache.build.exports import Export
    from compcache.build.recipe import Recipe
    from compcache.build.slots import Resolution
    from compcache.closures.chosen import Bound
    from compcache.translation.emission import Translated
    from compcache.translation.requests import Request

__all__ = ["Closure", "Linked", "Part", "link_code", "moving_modules", "read_part"]

_EXTERNAL, _INTERNAL, _WEAK = "external", "internal", "external_weak"
#: The suffix for definitions that are not copied, until LLVM drops them.
_HOME = ".home"
_WORDS = re.compile(
    r"\b(?:private|internal|available_externally|linkonce|linkonce_odr|weak|weak_odr|external|dso_local|dso_preemptable|hidden|protected"
    r"|default) "
)
_VARIABLE = re.compile(r"(?:[a-z_]+(?:\([^)]*\))? )*?(global|constant|alias) ")


class Part(NamedTuple):
    """A module whose code may be copied.

    `found_names` says, for each exported name, whether a look-up finds this module (True) or another module with the same content (False).
    It is None if the module cannot move, because a look-up finds other content, or because a front end has stored data in the module.
    `text` is the code as LLVM prints it. `copies` has the definitions that can be copied.
    """

    module_id: bytes
    recipe: Recipe
    found_names: Mapping[str, bool] | None
    text: str
    copies: Copies

    def shares_addresses(self) -> bool:
        """Return whether two exports of the module may have the same address."""
        exports = self.recipe.exports
        has_aliases = not self.text or " alias " in self.text or " ifunc " in self.text  # unreadable code may have them
        return has_aliases or len({export.symbol for export in exports}) < len(exports)


class Closure(NamedTuple):
    """The input of a link: the modules, the realizations to which names are bound, and the requested functions."""

    parts: Sequence[Part]
    bound: Mapping[str, Bound]
    roots: Sequence[str]


class Linked(NamedTuple):
    """A linked closure: its object, the requested functions in it, and the modules whose code is in it.

    `bound` has the modules of the resolved names. `homes` are the modules that have moved into the closure.
    """

    translated: Translated
    names: tuple[str, ...]
    parts: tuple[bytes, ...]
    bound: dict[str, bytes]
    homes: tuple[bytes, ...]


class _Reached(NamedTuple):
    """The result of `_Linker.reach`: the definitions to copy by part number, the modules of bound names, and the parts that move."""

    copies: dict[int, dict[str, None]]
    bound: dict[str, bytes]
    homes: dict[int, None]


def link_code(context: Any, closure: Closure, request: Request) -> Linked | None:
    """Link a closure, optimize it and emit its object. Return None if the object would contain the code of only one module.

    `context` is an LLVM context, and `request` has the machine and the options for emission. Raise `CompileError` or `LinkError` if the
    modules cannot be linked or compiled together. See `emit` for other exceptions.
    """
    linker = _Linker(closure)
    reached, roots = linker.reach()
    parts = sorted(reached.copies)
    if len(parts) < 2:  # noqa: PLR2004 - the code of one module is already linked
        return None
    module = linker.link_parts({number: reached.copies[number] for number in parts}, context)
    exports = linker.finish(module, roots)
    libraries = tuple(dict.fromkeys([name for number in parts for name in closure.parts[number].recipe.libraries]))
    with codegen.borrow_machine(request.machine.cpu, request.machine.features, request.level, str(module)) as target:
        module.data_layout = codegen.data_layout(target)
        codegen.optimize(module, target, request.level)
        resolution = restore_resolution(module, linker.imported(module), {}, libraries)
        _add_static_runtime(module, context, resolution)
        prepared = Prepared(exports, {}, resolution, (), b"", {}, _inlined_sources(exports, closure, parts, reached))
        translated = emit(module, str(module), context, target, request, prepared)
    names = tuple([name for name in closure.roots if name in roots])
    modules, homes = [tuple([closure.parts[number].module_id for number in numbers]) for numbers in (parts, reached.homes)]
    return Linked(translated, names, modules, reached.bound, homes)


def read_part(context: Any, module_id: bytes, recipe: Recipe, found_names: Mapping[str, bool] | None) -> Part:
    """Return a part with the stored code of a module. If LLVM cannot read the code, the part has no definitions to copy.

    `found_names` is `Part.found_names`. See `copies_of` for the exception.
    """
    try:
        module = codegen.read_back(recipe.code, context)
    except RuntimeError as error:
        reraise_interrupt(error)
        return Part(module_id, recipe, found_names, "", Copies({}, {}))  # a newer LLVM wrote the code
    text = without_tbaa_of_calls(without_static_runtime(str(module)))
    context.modules.pop().close()
    return Part(module_id, recipe, found_names, text, copies_of(text, recipe))


def moving_modules(closure: Closure) -> frozenset[bytes]:
    """Return the module_ids of the modules that would move into the image of a closure."""
    reached, _ = _Linker(closure).reach()
    return frozenset([closure.parts[number].module_id for number in reached.homes])


class _Linker:
    """Chooses what the image of a closure contains, and links it. A place is (part number, symbol)."""

    def __init__(self, closure: Closure) -> None:
        self._closure = closure
        self._copies = [part.copies for part in closure.parts]
        self._addressed_names = frozenset().union(*[copies.addressed for copies in self._copies])
        self._numbers = {part.module_id: number for number, part in enumerate(closure.parts)}
        self._exports = [
            {export.name: export for export in part.recipe.exports if export.symbol not in part.recipe.slots} for part in closure.parts
        ]
        self._symbols: dict[str, str] = {}  # the symbols of imports, by name
        self._shared_symbols: set[str] = set()  # the symbols of imports that may have the address of another import
        self._homes: dict[int, None] = {}  # the parts that move
        self._movable_exports: dict[int, dict[str, Export]] = {}  # the exports of parts that can move
        self._definitions: dict[int, dict[str, None]] = {}  # the definitions to link, by part
        self._bound: dict[str, bytes] = {}  # the modules whose definitions the image uses directly, by name
        self._roots: dict[str, tuple[int, str]] = {}  # the places of the image's exports, by name
        self._waiting: list[tuple[int, str]] = []  # the places whose mentions are to be included
        self._included_places: set[tuple[int, str]] = set()  # the places that were added to `_waiting`
        self._movable_places: dict[str, tuple[int, str]] = {}  # the definitions of names in parts that can move
        for number, part in enumerate(closure.parts):
            own_names = [name for name, is_here in (part.found_names or {}).items() if is_here]
            if own_names and part.copies.whole and all(self._is_only_definition(name, part.module_id) for name in own_names):
                self._movable_exports[number] = {name: self._exports[number][name] for name in own_names if name in self._exports[number]}
                self._movable_places |= {name: (number, export.symbol) for name, export in self._movable_exports[number].items()}

    def _is_only_definition(self, name: str, module_id: bytes) -> bool:
        """Return whether every user of an exported name gets the definition in the module `module_id`, and no earlier part can move it."""
        bound = self._closure.bound.get(name)
        return name not in self._movable_places and (bound is None or (bound.is_unique and bound.module_id == module_id))

    def reach(self) -> tuple[_Reached, dict[str, tuple[int, str]]]:
        """Choose the definitions to link for the requested functions. Return them, and the places of the image's exports by name.

        A requested function is left out if it is in no part, or can be neither copied nor moved with its module. Call this before
        `link_parts`.
        """
        for name in self._closure.roots:
            place = self._place_of(name)
            if place is not None and (self._include_copy(*place) or self._include_module(place[0])):
                self._roots[name] = place
                self._bound[name] = self._closure.bound[name].module_id
        for number, key in self._waiting:  # grows during the loop
            part = self._closure.parts[number]
            self._definitions.setdefault(number, {})[key] = None
            for mention in part.copies.whole[key] if number in self._homes else part.copies.mentions[key]:
                if mention in part.recipe.slots:
                    self._include_import(part.recipe.slots[mention])
                elif not self._include_copy(number, mention):
                    self._include_home(number, mention)
        return _Reached(self._definitions, self._bound, self._homes), self._roots

    def _include_home(self, number: int, symbol: str) -> None:
        """Include the module of an exported definition that cannot be copied. If the module cannot move, the definition is imported."""
        part = self._closure.parts[number]
        if symbol in part.copies.homes and not self._include_module(number):
            self._bound[part.copies.homes[symbol]] = part.module_id

    def _include_import(self, name: str) -> None:
        """Include the definition or the module of an import if the linked code can use the definition directly."""
        binding, place = self._closure.bound.get(name), self._place_of(name)
        if binding is None or place is None or not binding.is_unique:
            return
        if (self._is_only_called(name) and self._include_copy(*place)) or self._include_module(place[0]):
            self._bound[name] = binding.module_id

    def _is_only_called(self, name: str) -> bool:
        """Return whether all users of a name only call the function, with its own type. Then they can use a copy."""
        return self._closure.bound[name].has_expected_type and name not in self._addressed_names

    def _include_copy(self, number: int, symbol: str) -> bool:
        """Include a definition if its module moves, or it can be copied, and return whether it is included."""
        copies = self._copies[number]
        return symbol in (copies.whole if number in self._homes else copies.mentions) and self._include([(number, symbol)])

    def _include_module(self, number: int) -> bool:
        """Include a complete module if it can move, and return whether it is included."""
        copies = self._copies[number]
        if number not in self._homes:
            if number not in self._movable_exports:
                return False
            exports = {name: (number, export.symbol) for name, export in self._movable_exports[number].items()}
            self._homes[number] = None
            self._roots.update(exports)
            self._bound.update(dict.fromkeys(exports, self._closure.parts[number].module_id))
        return self._include([(number, key) for key in copies.whole])

    def _include(self, places: Iterable[tuple[int, str]]) -> bool:
        """Add definitions to the work list, unless they are in it. Return True, because the definitions are included."""
        new_places = [place for place in places if place not in self._included_places]
        self._included_places.update(new_places)
        self._waiting.extend(new_places)
        return True

    def _place_of(self, name: str) -> tuple[int, str] | None:
        """Return the part number and the symbol of the definition to which a name is bound, or None if no part contains it."""
        bound = self._closure.bound.get(name)
        number = self._numbers.get(bound.module_id) if bound is not None else None
        return (number, bound.symbol) if bound is not None and number is not None else None

    def _find_direct(self, name: str) -> tuple[int, str] | None:
        """Return the part number and the symbol of an import's definition if it is in the image, otherwise None. Call `reach` first.

        Bodies of other modules, which a part keeps for inlining, use imports that `reach` does not follow.
        """
        place = self._movable_places.get(name)
        if place is None or place[0] not in self._homes:
            place = self._place_of(name) if name in self._closure.bound and self._is_only_called(name) else None
        return place if place in self._included_places else None

    def link_parts(self, copies: Mapping[int, Iterable[str]], context: Any) -> Any:
        """Link definitions of parts into one module, and return it. `copies` has the symbols of the definitions by part number.

        Raise `CompileError` if a symbol is in use, or `LinkError` if LLVM cannot link the parts.
        """
        modules = {number: self._read_part(number, copied, context) for number, copied in copies.items()}
        number = 0

        def next_modules() -> Iterator[Any]:
            """Yield the modules, and record the number of the last one for the message."""
            nonlocal number
            for number, module in modules.items():  # noqa: B007, PERF102 - the message contains the number
                yield module

        try:
            return link_modules([plain_declarations(str(module)) for module in modules.values()], next_modules(), context)
        except RuntimeError as error:
            reraise_interrupt(error)
            module_id = self._closure.parts[number].module_id.hex()
            raise LinkError(f"module {module_id} cannot be linked with the modules before it: {str(error).strip()}") from error

    def _read_part(self, number: int, copied: Iterable[str], context: Any) -> Any:
        """Return the module of a part with the symbols and linkages of the image. Raise `CompileError` if a symbol is in use."""
        part, names = self._closure.parts[number], set(copied)
        is_moved = number in self._homes
        mentioned = set() if is_moved else {symbol for key in names for symbol in part.copies.mentions[key]}
        homes = {symbol for symbol in mentioned if symbol in part.copies.homes}
        exported = {export.symbol for export in self._movable_exports[number].values()} if is_moved else names
        part_module = codegen.parse(_with_shared_definitions(part.text, homes | part.copies.merged), context)
        for value, is_function in _iterate_values(part_module):
            name = value.name
            if value.is_declaration or value.linkage.name == "available_externally":
                self._rename_declared(value, number, homes)
            elif name in exported and (is_function or is_moved):
                value.visibility = "default"
                value.linkage = _EXTERNAL
                _rename(value, _copy_symbol(number, name))
            else:
                value.visibility = "default"
                value.linkage = _INTERNAL
        return part_module

    def _rename_declared(self, value: Any, number: int, homes: set[str]) -> None:
        """Rename a declaration to the symbol of its definition in the linked module, or of its import. See `_rename` for the exception."""
        part, name = self._closure.parts[number], value.name
        if name in part.recipe.slots:
            place = self._find_direct(part.recipe.slots[name])
            _rename(value, _copy_symbol(*place) if place is not None else self._symbol_of_import(part.recipe.slots[name]))
        elif name in homes:
            _rename(value, self._symbol_of_import(part.copies.homes[name]))

    def _symbol_of_import(self, name: str) -> str:
        """Return the symbol in the linked module for an imported name. The first call chooses it, and records whether it is shared."""
        if name not in self._symbols:
            symbol = self._symbols[name] = f"compcache.import.{len(self._symbols)}"
            binding = self._closure.bound.get(name)
            number = self._numbers.get(self._bound.get(name) or (binding.module_id if binding is not None else b""))
            if number is None or self._closure.parts[number].shares_addresses():
                self._shared_symbols.add(symbol)
        return self._symbols[name]

    def imported(self, module: Any) -> dict[str, str]:
        """Return the func_names of the optimized module's imports, by symbol. Imports that `finish` has made weak become external again."""
        names = {symbol: name for name, symbol in self._symbols.items()}
        declared = [value for value, _ in _iterate_values(module) if value.is_declaration and value.name in names]
        for value in declared:
            value.linkage = _EXTERNAL
        return {value.name: names[value.name] for value in declared}

    def finish(self, module: Any, roots: Mapping[str, tuple[int, str]]) -> tuple[Export, ...]:
        """Make the exports hidden and all other definitions internal. Return the exports. `roots` has (part number, symbol) by name.

        LLVM assumes that two declarations have two addresses, unless one is weak. Therefore imports that may have one address become weak.
        """
        exported = {_copy_symbol(*place) for place in roots.values()}
        for value, _ in _iterate_values(module):
            if not value.is_declaration and value.linkage.name == _EXTERNAL:
                if value.name in exported:
                    value.visibility = "hidden"
                else:
                    value.linkage = _INTERNAL
            elif value.is_declaration and value.name in self._shared_symbols:
                value.linkage = _WEAK
        return tuple([self._exports[place[0]][name]._replace(symbol=_copy_symbol(*place)) for name, place in roots.items()])


def _add_static_runtime(module: Any, context: Any, resolution: Resolution) -> None:
    """Link the static runtime (`compcache.images.static_runtime`) into a module that may need it.

    A module needs the static runtime if it declares a function of it. A static library that the module uses may also need it.
    """
    declared = {value.name for value, _ in _iterate_values(module) if value.is_declaration}
    archives = [library for library in resolution.libraries if isinstance(library, Archive)]
    if STATIC_RUNTIME.isdisjoint(declared) and not any(archive.path_of(name) for archive in archives for name in declared):
        return
    module.link_in(codegen.parse(target_text(module) + static_runtime_text(sorted(STATIC_RUNTIME)), context))
    context.modules.pop()  # linking has destroyed the runtime's module


def _inlined_sources(exports: Iterable[Export], closure: Closure, parts: Iterable[int], reached: _Reached) -> Inlined:
    """Return the functions whose code may be in the requested functions: all functions that were linked."""
    modules = {closure.parts[number].module_id for number in parts}
    sources = {name: (name, module_id.hex()) for name, module_id in reached.bound.items() if module_id in modules}
    roots = frozenset(closure.roots)
    requested = [export.symbol for export in exports if export.name in roots]
    return Inlined(sources, (), {**dict.fromkeys(sources, ()), **dict.fromkeys(requested, tuple(sources))})


def _copy_symbol(number: int, name: str) -> str:
    """Return the symbol of a copy. It begins with the function's symbol, for debuggers and profilers."""
    return f"{name}.part.{number}"


def _rename(value: Any, name: str) -> None:
    """Give a value a name. Raise `CompileError` if the module already has a value of this name."""
    value.name = name
    if value.name != name:
        raise CompileError(f"the modules of a closure cannot be linked, because two of them use the symbol {name!r}: rename one of the two")


def _iterate_values(module: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the functions and variables of a module, except LLVM's own, and whether each is a function."""
    for values, is_function in ((module.functions, True), (module.global_variables, False)):
        yield from [(value, is_function) for value in values if not value.name.startswith("llvm.")]


def _with_shared_definitions(text: str, homes: set[str]) -> str:
    """Return the text of a module with its aliases replaced by declarations and its COMDATs removed.

    The definitions in `homes` are renamed with the suffix `_HOME`, and their former names are declared.
    """
    has_aliases = "= " in text and " alias " in text
    if not homes and not has_aliases and " comdat" not in text:
        return text
    lines, declared = [], []
    for line in text.split("\n"):
        if line.startswith("$"):
            continue
        if line.startswith("define "):
            line = without_comdat(line)  # noqa: PLW2901 - the same line
            name = references(line)[0]
            if name in homes:
                declared.append(_declaration(name, line))
                line = line.replace(f"@{quote(name)}(", f"@{quote(name + _HOME)}(", 1)  # noqa: PLW2901
        elif line.startswith("@"):
            line = without_comdat(line)  # noqa: PLW2901
            token = f"@{quote(references(line)[0])}"
            definition = line[len(token) + len(" = ") :]
            match = _VARIABLE.match(definition)
            if match is not None and (match[1] == "alias" or referenced_name(token) in homes):
                declared.append(_external_declaration(token, definition, match))
                if match[1] == "alias":
                    continue
                line = f"@{quote(referenced_name(token) + _HOME)} = {definition}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join([*lines, *declared, ""])


def _declaration(name: str, line: str) -> str:
    """Return the declaration of the function `name`, which a line defines."""
    head = parse_head(line[len("define ") :])
    parameters = ", ".join(map(without_name, head.parameters))
    return f"declare {_WORDS.sub('', head.prefix + ' ')}@{quote(name)}({parameters})"


def _external_declaration(token: str, definition: str, match: re.Match[str]) -> str:
    """Return the declaration of a variable or an alias. `match` is the match of `_VARIABLE` in the definition, which ends at the type."""
    words, remainder = definition[: match.end()], definition[match.end() :]
    word, value_type = match[1], leading_type(remainder)
    if word == "alias":
        word, value_type = "global", next(ALIAS.finditer(f"{token} = {definition}"))[4]
        result, _, parameters = value_type.partition(" (")
        if parameters:
            return f"declare {result} {token}({parameters}"
    local = "thread_local " if "thread_local" in words else ""
    return f"{token} = external {local}{word} {value_type}"
