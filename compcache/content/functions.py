"""Computes content names for the functions of a source: digests of a function and everything that it reaches.

Functions that reach the same mutable variable, or the same item whose address may be compared, are compiled together. The digest of each of
these functions covers all of them.

For functions with plain names, the index contains a shorter digest of the same inputs. Realizations with equal digests are interchangeable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.build.source import check_name
from compcache.content.definitions import Unreadable, read_definitions, without_comments
from compcache.content.names import digest_of, has_archives, option_parts, parts_given_by_name, text_of_export
from compcache.depgraph import DependencyGraph, group_sharing
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
    """The func_names of a source's functions.

    Attributes:
        names: the func_names by plain name.
        units: the func_names of functions that are compiled together.
    """

    names: dict[str, str]
    units: tuple[tuple[str, ...], ...]


class _External(NamedTuple):
    """The symbols that a source defines outside its code.

    Attributes:
        parts: the definition of each symbol, an import or a global, as parts for a digest.
        loaded: the symbols of globals whose values each module loads separately.
    """

    parts: Mapping[str, list[bytes]]
    loaded: Collection[str]


class _Reached(NamedTuple):
    """A digest of everything that a definition reaches, and a bit mask of the reached items that must not exist in two modules."""

    content: bytes
    own: int


def name_together(functions: Iterable[str], common: bytes) -> Naming:
    """Name functions that are compiled together. All func_names contain the digest `common`.

    Raise `InvalidNameError` if a plain name cannot be used.
    """
    names = {name: _content_name(name, common) for name in functions}
    return Naming(names, (tuple(names.values()),))


def name_functions(source: ModuleSource, text: str, functions: Mapping[str, Function]) -> Naming:
    """Compute the func_names of functions, which contain digests of everything that the functions reach.

    If the code cannot be split into definitions, the digests cover the complete code. Raise `InvalidNameError` if a plain name is invalid.

    Args:
        source: a frozen source.
        text: its code as LLVM prints it, before optimization.
        functions: the export options of each function, with its symbol, by plain name.
    """
    provided, options = parts_given_by_name(source), [*option_parts(source), *_stored_data(source)]
    exports = {name: text_of_export(name, function).encode("utf-8", "surrogatepass") for name, function in functions.items()}
    try:
        definitions = read_definitions(text)
        if has_archives(source) or any(function.symbol not in definitions.by_key for function in functions.values()):
            raise Unreadable  # archives have a state, and call other functions; compiling the source reports missing functions
    except Unreadable:
        parts = [without_comments(text).encode("utf-8", "surrogatepass"), digest_of(exports.values()), _symbols_digest(provided), *options]
        return name_together(functions, digest_of([b"module", *parts]))
    loaded = {name for name, definition in (source.globals or {}).items() if definition.kind != NativeSymbol.kind}
    return _name_by_reach(definitions, functions, exports, _External(provided, loaded), options)


def symbol_digests(text: str, data: Iterable[bytes]) -> dict[str, bytes]:
    """Return, by symbol, a digest of everything that the symbol reaches. The result is empty if the module cannot be parsed.

    `text` is the module as LLVM prints it, before optimization, and `data` has the values of variables that are not in the text.
    """
    try:
        definitions = read_definitions(text)
    except Unreadable:
        return {}
    common = digest_of([*data, definitions.header])
    reached = _collect_reached(definitions, _External({}, ()))
    defined = {key: definition for key, definition in definitions.by_key.items() if not definition.is_declared}
    return {key: digest_of([common, definition.content, reached[key].content]) for key, definition in defined.items()}


def exported_content(salt: bytes, code: bytes | None, signature: str) -> bytes:
    """Return the content digest of an exported function (`CONTENT_SIZE` bytes), or zeros if the digest of its code is unknown.

    Args:
        salt: a digest of everything that the source specifies apart from its code.
        code: the function's digest from `symbol_digests`, or None.
        signature: the function's signature.
    """
    if code is None:
        return bytes(CONTENT_SIZE)
    return digest([salt, code, signature.encode("utf-8", "surrogatepass")], size=CONTENT_SIZE, person=_PERSON)


def _name_by_reach(
    definitions: Definitions, functions: Mapping[str, Function], exports: Mapping[str, bytes], provided: _External, options: list[bytes]
) -> Naming:
    """Name each function by what it reaches. Functions that share an item which must not exist twice are named together.

    Raise `InvalidNameError` if a plain name cannot be used.
    """
    reached = _collect_reached(definitions, provided)
    unknown = {symbol: parts for symbol, parts in provided.parts.items() if symbol not in definitions.by_key}
    common = [b"function", definitions.header, _symbols_digest(unknown), digest_of(options)]
    roots = {name: reached[str(function.symbol)] for name, function in functions.items()}
    root_names = [*roots]
    units = [[root_names[number] for number in group] for group in group_sharing([reached.own for reached in roots.values()])]
    names: dict[str, str] = {}
    for unit in units:
        together = digest_of([part for name in sorted(unit) for part in (exports[name], roots[name].content)])
        names |= {name: _content_name(name, digest_of([*common, exports[name], roots[name].content, together])) for name in unit}
    return Naming({name: names[name] for name in functions}, tuple([tuple([names[name] for name in unit]) for unit in units]))


def _collect_reached(definitions: Definitions, provided: _External) -> dict[str, _Reached]:
    """Compute what each definition reaches, by key. All members of a cycle have the same digest."""
    by_key = definitions.by_key
    reached_by_key: dict[str, _Reached] = {}
    bit, empty_digest = 1, digest_of(())
    for cycle in DependencyGraph({key: definition.mentions for key, definition in by_key.items()}).components():
        members = set(cycle)
        outer_keys = {outer for key in cycle for outer in by_key[key].mentions if outer in reached_by_key and outer not in members}
        own_bits, parts = 0, []
        for key in sorted(cycle):
            definition = by_key[key]
            definition_digest = digest_of(provided.parts[key]) if key in provided.parts else empty_digest
            parts += [key.encode("utf-8", "surrogatepass"), definition.content, definition_digest]
            if key in provided.loaded or (definition.is_own and (key in provided.parts or not definition.is_declared)):
                own_bits |= bit
                bit <<= 1
        for outer in outer_keys:
            own_bits |= reached_by_key[outer].own
        content = digest_of([*parts, b"reaches", *sorted({reached_by_key[outer].content for outer in outer_keys})])
        reached_by_key |= dict.fromkeys(cycle, _Reached(content, own_bits))
    return reached_by_key


def _symbols_digest(provided: Mapping[str, list[bytes]]) -> bytes:
    """Return the digest of the symbols and of the texts that define them, independent of the order of the symbols."""
    return digest_of([part for name in sorted(provided) for part in (name.encode("utf-8", "surrogatepass"), digest_of(provided[name]))])


def _stored_data(source: ModuleSource) -> list[bytes]:
    """Return the entries of data and the owner of a source as parts for a digest."""
    entries = [part for kind, data in sorted((source.entries or {}).items()) for part in (kind.encode("utf-8", "surrogatepass"), data)]
    return [(source.part_of or "").encode("utf-8", "surrogatepass"), *entries]


def _content_name(name: str, content: bytes) -> str:
    """Return the func_name of a function by its content. Raise `InvalidNameError` if the plain name cannot be used."""
    return f"{check_name(name, 'function name')}-{content.hex()}"
