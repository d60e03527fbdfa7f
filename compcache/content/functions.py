"""Names functions of a source by content: their own, and that of everything they reach.

Functions that reach something that can change, or whose address may be compared, have it in common for as long as they are in one module.
So the name of each of them covers all of them, and they are compiled together.

The index has a shorter digest of the same for functions with plain names: of realizations that are equal by it any will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.build.source import check_name
from compcache.content.definitions import Unreadable, read_definitions, whole_text
from compcache.content.names import digest_of, given_parts, has_archives, option_parts, text_of_export
from compcache.depgraph import DependencyGraph
from compcache.digest import digest
from compcache.formats.index import CONTENT_SIZE
from compcache.globals import NativeSymbol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from compcache.build.source import Function, ModuleSource
    from compcache.content.definitions import Definitions

__all__ = ["Naming", "exported_content", "name_functions", "name_together", "symbol_digests"]

_PERSON = b"compcache-fcode"


class Naming(NamedTuple):
    """The names of a source's functions by their plain names, and those of each set that is compiled together."""

    names: dict[str, str]
    units: tuple[tuple[str, ...], ...]


class _Given(NamedTuple):
    """The definitions that a source gives for declared symbols, and the symbols for which each module loads its own value."""

    parts: Mapping[str, list[bytes]]
    loaded: Collection[str]


class _Reached(NamedTuple):
    """Everything that a definition reaches: a digest, and a bit for each part that must not exist in two modules."""

    content: bytes
    own: int


def name_together(functions: Iterable[str], common: bytes) -> Naming:
    """Return names with one digest for functions that are compiled together."""
    names = {name: _named(name, common) for name in functions}
    return Naming(names, (tuple(names.values()),))


def name_functions(source: ModuleSource, text: str, functions: Mapping[str, Function]) -> Naming:
    """Name functions by what they reach.

    Args:
        source: a frozen source.
        text: its code as LLVM prints it, before it is optimized.
        functions: how each function is exported, including its symbol, by plain name.
    """
    given, options = given_parts(source), [*option_parts(source), *_stored_with(source)]
    exports = {name: text_of_export(name, function).encode("utf-8", "surrogatepass") for name, function in functions.items()}
    try:
        definitions = read_definitions(text)
        if has_archives(source) or any(function.symbol not in definitions.by_key for function in functions.values()):
            raise Unreadable  # archives have a state, and call what they find; what is not there is an error when the source is compiled
    except Unreadable:
        parts = [whole_text(text).encode("utf-8", "surrogatepass"), digest_of(exports.values()), _digest_of(given), *options]
        return name_together(functions, digest_of([b"module", *parts]))
    loaded = {name for name, definition in (source.globals or {}).items() if definition.kind != NativeSymbol.kind}
    return _by_reach(definitions, functions, exports, _Given(given, loaded), options)


def symbol_digests(text: str, data: Iterable[bytes]) -> dict[str, bytes]:
    """Return for each symbol that a module defines, as LLVM prints it before optimization, a digest of everything that it reaches.

    Nothing is returned if that is unknown.

    `data` are the values of variables that are not in the text.
    """
    try:
        definitions = read_definitions(text)
    except Unreadable:
        return {}
    common = digest_of([*data, definitions.header])
    reached = _reached(definitions, _Given({}, ()))
    defined = {key: own for key, own in definitions.by_key.items() if not own.is_declared}
    return {key: digest_of([common, own.content, reached[key].content]) for key, own in defined.items()}


def exported_content(salt: bytes, code: bytes | None, signature: str) -> bytes:
    """Return the digest of an exported function, of `CONTENT_SIZE` bytes; zeros if the digest of its code is not known.

    `salt` covers everything that the source specifies apart from its code.
    """
    if code is None:
        return bytes(CONTENT_SIZE)
    return digest([salt, code, signature.encode("utf-8", "surrogatepass")], size=CONTENT_SIZE, person=_PERSON)


def _by_reach(
    definitions: Definitions, functions: Mapping[str, Function], exports: Mapping[str, bytes], given: _Given, options: list[bytes]
) -> Naming:
    reached = _reached(definitions, given)
    unknown = {symbol: parts for symbol, parts in given.parts.items() if symbol not in definitions.by_key}
    common = [b"function", definitions.header, _digest_of(unknown), digest_of(options)]
    roots = {name: reached[str(function.symbol)] for name, function in functions.items()}
    units = _units(roots)
    names: dict[str, str] = {}
    for unit in units:
        together = digest_of([part for name in sorted(unit) for part in (exports[name], roots[name].content)])
        names |= {name: _named(name, digest_of([*common, exports[name], roots[name].content, together])) for name in unit}
    return Naming({name: names[name] for name in functions}, tuple([tuple([names[name] for name in unit]) for unit in units]))


def _reached(definitions: Definitions, given: _Given) -> dict[str, _Reached]:
    """Return everything that each definition reaches. Digests of cycles cover all of their members."""
    by_key = definitions.by_key
    found: dict[str, _Reached] = {}
    bit, nothing = 1, digest_of(())
    for cycle in DependencyGraph({key: definition.mentions for key, definition in by_key.items()}).components():
        members = set(cycle)
        beyond = {other for key in cycle for other in by_key[key].mentions if other in found and other not in members}
        own, parts = 0, []
        for key in sorted(cycle):
            definition = by_key[key]
            said = digest_of(given.parts[key]) if key in given.parts else nothing
            parts += [key.encode("utf-8", "surrogatepass"), definition.content, said]
            if key in given.loaded or (definition.is_own and (key in given.parts or not definition.is_declared)):
                own |= bit
                bit <<= 1
        for other in beyond:
            own |= found[other].own
        content = digest_of([*parts, b"reaches", *sorted({found[other].content for other in beyond})])
        found |= dict.fromkeys(cycle, _Reached(content, own))
    return found


def _units(roots: Mapping[str, _Reached]) -> tuple[tuple[str, ...], ...]:
    """Return the functions in their order, grouped by shared things of which two modules would have two."""
    found: list[tuple[int, list[str]]] = []
    for name, reached in roots.items():
        own, names = reached.own, [name]
        for unit in [unit for unit in found if unit[0] & own] if own else []:
            found.remove(unit)
            own, names = own | unit[0], [*unit[1], *names]
        found.append((own, names))
    return tuple([tuple(names) for _, names in found])


def _digest_of(given: Mapping[str, list[bytes]]) -> bytes:
    return digest_of([part for symbol in sorted(given) for part in (symbol.encode("utf-8", "surrogatepass"), digest_of(given[symbol]))])


def _stored_with(source: ModuleSource) -> list[bytes]:
    """Return the data that is stored together with each function of a source."""
    entries = [part for kind, data in sorted((source.entries or {}).items()) for part in (kind.encode("utf-8", "surrogatepass"), data)]
    return [(source.part_of or "").encode("utf-8", "surrogatepass"), *entries]


def _named(name: str, content: bytes) -> str:
    return f"{check_name(name, 'function name')}-{content.hex()}"
