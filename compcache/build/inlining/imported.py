"""Links the bodies of imported functions into a module before it is optimized, so that LLVM can inline them.

The bodies are defined only for the optimizer (`available_externally`). A call that is not inlined still uses the import, and no copy of the
body stays in the module. Bodies refer to other functions by names that identify their content, so the bodies of these functions are linked
in too. The size limit of a body decreases with each level of calls.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build import codegen
from compcache.build.inlining.offers import MODE_ATTRIBUTE, MOST_INSTRUCTIONS, type_of
from compcache.build.ir_text import change_lines, lines_from, quote, read_module, referenced_name, references
from compcache.build.llvm_types import named_types
from compcache.build.merging import declared_promises, without_tbaa_of_calls
from compcache.build.slots import is_known_by_name
from compcache.digest import is_content_name
from compcache.errors import CompileError
from compcache.images.archives import Archive
from compcache.interrupts import reraise_interrupt
from compcache.targets.used_features import TARGET_ATTRIBUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from compcache.build.exports import Export
    from compcache.build.ir_text import GlobalValues
    from compcache.build.slots import Resolution
    from compcache.formats.bodies import Body
    from compcache.formats.makers import Maker

__all__ = ["NOTHING_INLINED", "Inlined", "Provided", "link_offered_bodies", "offer_nothing"]

_QUOTED = re.compile(r'@?"[^"]*"')
#: The most instructions that are inlined into one module.
_MOST_IN_ALL = 50 * MOST_INSTRUCTIONS
#: The factor for the size limit at each level of calls: LLVM's factor for ThinLTO. It limits chains to about ten bodies.
_LIMIT_FACTOR = 0.7


class Provided(NamedTuple):
    """The body of a function, the module_id (hex) of the realization that offers the body, and the makers of its code."""

    body: Body
    module_id: str
    makers: tuple[Maker, ...]


class Inlined(NamedTuple):
    """The functions whose bodies were linked into a module, and the makers of their code.

    `sources` has the func_name and the module_id of each of these functions, by symbol. `edges` has the references of these functions, and
    of the module's functions, before inlining.
    """

    sources: Mapping[str, tuple[str, str]] = {}
    makers: tuple[Maker, ...] = ()
    edges: Mapping[str, tuple[str, ...]] = {}


NOTHING_INLINED = Inlined()


def offer_nothing(_: tuple[str, ...]) -> Mapping[str, Provided]:
    """Return no bodies, for modules that are built without a cache."""
    return {}


def link_offered_bodies(
    module: Any,
    context: Any,
    text: str,
    values: GlobalValues,
    exports: Iterable[Export],
    resolution: Resolution,
    provided: Callable[[tuple[str, ...]], Mapping[str, Provided]],
    is_beside: Callable[[str], bool],
) -> tuple[Resolution, Inlined]:
    """Link the offered bodies of imported functions into a module, in place.

    `text`, `values`, `exports` and `resolution` describe the module, whose declarations are resolved. `provided` returns the offered bodies
    of functions by their names; `is_beside` tells whether a source that is added together with this source defines a symbol. Return the
    resolution with the imports of the bodies, and the functions whose bodies were linked in. Nothing is linked into a module that has
    attributes which change its arithmetic, or that is linked with archives.
    """
    # Of several symbols for one name, the first is used.
    symbols = {name: symbol for symbol, name in reversed(list(resolution.imports.items())) if is_content_name(name)}
    declared = {value.name for value in values.functions if value.is_declaration} if symbols else ()
    names = [name for name, symbol in symbols.items() if symbol in declared]
    # A member of an archive may define a function that bodies take from the platform.
    if not names or MODE_ATTRIBUTE.search(text) or any(isinstance(library, Archive) for library in resolution.libraries):
        return resolution, NOTHING_INLINED
    symbols |= {export.name: export.symbol for export in exports if not export.link_only and is_content_name(export.name)}
    return _BodyLinker(module, context, text, values, resolution, symbols, is_beside).link_bodies(names, provided)


def _with_symbols(code: str, symbols: Mapping[str, str]) -> str:
    """Return a body with symbols in place of content names. Versions of this package write unusual characters in names differently."""

    def rename(match: re.Match[str]) -> str:
        """Return a reference to a symbol, or a text that is no content name as it is."""
        symbol = symbols.get(referenced_name(match[0])) if match[0][0] == "@" else None
        return match[0] if symbol is None else f"@{quote(symbol)}"

    return _QUOTED.sub(rename, code)


class _BodyLinker:
    """Links bodies into one module, and collects them."""

    def __init__(
        self, module: Any, context: Any, text: str, values: GlobalValues, resolution: Resolution, symbols: dict[str, str],
        is_beside: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._module = module
        self._context = context
        self._text = text
        self._resolution = resolution
        self._symbols = symbols  # by content name
        self._is_beside = is_beside
        self._heads = {value.name: value.text.partition(" ")[2] for value in values.functions}
        self._defined_symbols = {value.name for value in (*values.functions, *values.variables) if not value.is_declaration}
        self._symbols_in_use = {value.name for value in (*values.functions, *values.variables)}
        self._types = named_types(text)
        self._promises = declared_promises(text)
        self._room = _MOST_IN_ALL
        self._linked: dict[str, tuple[Provided, tuple[str, ...]]] = {}  # bodies by symbol, with their references

    def link_bodies(
        self, names: Collection[str], provided: Callable[[tuple[str, ...]], Mapping[str, Provided]]
    ) -> tuple[Resolution, Inlined]:
        """Link in the offered bodies of functions and of their callees, and return the results of `link_offered_bodies`.

        `provided` returns the offered bodies among the requested functions, by name.
        """
        requested = set(names) | {name for name, symbol in self._symbols.items() if symbol in self._defined_symbols}
        waiting, max_instructions = tuple(names), float(MOST_INSTRUCTIONS)
        while waiting and max_instructions >= 1:
            offers = codegen.call_in_caller(provided, waiting)
            linked = [offers[name] for name in waiting if name in offers and self._link_body(offers[name], max_instructions)]
            max_instructions *= _LIMIT_FACTOR
            waiting = tuple(dict.fromkeys([name for offer in linked for name in offer.body.imports if name not in requested]))
            requested.update(waiting)
        if not self._linked:
            return self._resolution, NOTHING_INLINED
        imports = {symbol: name for name, symbol in self._symbols.items() if symbol not in self._defined_symbols}
        resolution = self._resolution._replace(imports={**imports, **self._resolution.imports})
        return resolution, self._linked_functions()

    def _link_body(self, offer: Provided, max_instructions: float) -> bool:
        """Link in a body of at most `max_instructions` instructions, if its symbols have the same meaning as in its own module.

        Return whether the body was linked in. If so, its symbols are known from now on, and the room for further bodies is smaller.
        """
        body = offer.body
        if body.instructions > min(self._room, max_instructions) or not all(map(self._is_platform_function, body.natives)):
            return False
        symbols = {name: self._symbols.get(name, name) for name in (body.name, *body.imports)}
        # The module has another symbol of this name.
        if any(symbol == name and name not in self._symbols and symbol in self._symbols_in_use for name, symbol in symbols.items()):
            return False
        code = _with_symbols(without_tbaa_of_calls(body.code), symbols)
        if not self._states_promises(code):
            return False
        symbol = symbols[body.name]
        if is_known_by_name(symbol):  # LLVM must not treat the function as a platform function of the same name
            code = change_lines(code, "define available_externally ", lambda line: f"{line.removesuffix('{')}nobuiltin {{")
        try:
            if not self._has_same_type(symbol, code) or codegen.is_suspicious(TARGET_ATTRIBUTE.findall(code)):
                return False
            self._module.link_in(codegen.parse(code, self._context))
        except (CompileError, ValueError) as error:  # this version of LLVM may not read another version's code
            reraise_interrupt(error)
            return False
        self._room -= body.instructions
        self._symbols |= symbols
        self._symbols_in_use.update(symbols.values())
        self._linked[symbol] = offer, references(code)
        return True

    def _is_platform_function(self, native: str) -> bool:
        """Return whether a symbol refers to the platform's function in this module. The result is False if that is not certain."""
        resolution = self._resolution
        if any(native in symbols for symbols in (self._defined_symbols, resolution.imports, resolution.storage, resolution.null)):
            return False
        return not resolution.libraries and not self._is_beside(native)

    def _states_promises(self, code: str) -> bool:
        """Return whether the calls in a body state all that the module's declarations promise. LLVM keeps the module's declarations."""
        calls = [line for line in code.split("\n") if "call " in line]
        return all(word in line for line in calls for name in references(line) for word in self._promises.get(name, ()))

    def _has_same_type(self, symbol: str, code: str) -> bool:
        """Return whether the module uses a function with the type of its body. Raise `ValueError` if a type cannot be read."""
        if symbol not in self._heads:
            return True  # only other bodies use the function, and the content in its name determines its type
        head = "".join(lines_from(code, "define available_externally ")).removeprefix("define available_externally ")
        return type_of(head.removesuffix("{"), named_types(code)) == type_of(self._heads[symbol], self._types)

    def _linked_functions(self) -> Inlined:
        """Return the sources of the linked bodies, the makers of their code, and the references of all functions of the module."""
        makers: dict[Maker, None] = {}
        for offer, _ in self._linked.values():
            makers |= dict.fromkeys(offer.makers)
        sources = {symbol: (offer.body.name, offer.module_id) for symbol, (offer, _) in self._linked.items()}
        edges = {name: definition.references for name, definition in read_module(self._text).items() if definition.kind == "function"}
        edges |= {symbol: body_references for symbol, (_, body_references) in self._linked.items()}
        return Inlined(sources, tuple(makers), edges)
