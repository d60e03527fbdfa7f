"""Chooses the exports of a module, and creates the entry points through which Python calls them."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build.entry_points import EntryPoint, FunctionHead, entry_point, read_head, read_signature
from compcache.build.ir_text import GlobalValues, behind_name, leading_type, plain_head
from compcache.build.pic import ADDRESS_OF
from compcache.build.source import Function, check_name
from compcache.errors import CompileError, InvalidNameError, SignatureError, UndefinedSymbolError
from compcache.formats.manifest import LINK_ONLY
from compcache.formats.module_table import TABLE_SYMBOL
from compcache.signature import Signature
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from compcache.build.ir_text import Definition, GlobalValue
    from compcache.build.pic import Alias
    from compcache.build.source import ModuleSource

__all__ = [
    "MERGED", "OVERRIDDEN", "VISIBLE_LINKAGES", "WEAK", "Entries", "Export", "choose_exports", "is_visible", "make_entries", "read_exports",
    "require_exports", "visible_exports",
]  # fmt: skip

VISIBLE_LINKAGES = frozenset(("external", "linkonce_any", "linkonce_odr", "linkonce_odr_auto_hide", "weak_any", "weak_odr", "common"))


#: The description of a variable that is merged with the variables of the same name in other modules.
MERGED = "merged variable"
#: The description of a merged variable that gives way to a definition which is not merged: tentative definitions of C, Fortran's common
#: blocks, and weak definitions, which have values.
WEAK = "merged variable (weak)"
_WITH_VALUE = f"{WEAK} with a value"
#: The prefix of the body of a function that another source may override (compcache.build.overridden).
OVERRIDDEN = "compcache.weak"
#: The description of a function that returns the address of a thread-local variable (compcache.build.pic.with_addresses).
THREAD_LOCAL = "thread-local variable"
#: The functions that the object of ``#include <iostream>`` calls in each file (`std::ios_base::Init`).
_STREAMS = {"_ZNSt8ios_base4InitC1Ev", "_ZNSt8ios_base4InitD1Ev", "__cxa_atexit"}
_SHOWN = 20
_VARIABLE = re.compile(r"(?:[a-z_]+(?:\([^)]*\))? )*(global|constant|alias) ([^\n]*)")
_MOST_HEAD = 4096  # characters of a variable's line, which may contain a large value
_MEMORY = re.compile(r"attributes #(\d+) = \{.*\bmemory\(([^)]*)\)")
_GROUP = re.compile(r"#(\d+)")
_STRING = re.compile(r'"[^"]*"')


class Export(NamedTuple):
    """One symbol to export: its func_name, its symbol, and its signature if the caller gave one.

    `nogil` releases the GIL during calls. `shown` replaces the signature in listings. `link_only` describes a symbol that other modules can
    import, but Python cannot call.
    """

    name: str
    symbol: str
    signature: Signature | None = None
    nogil: bool = False
    shown: str | None = None
    link_only: str = ""


class Entries(NamedTuple):
    """The distinct entry points of a module.

    `numbers` has the number of each export's entry point; None if Python cannot call the export. `signatures` has the signature of each
    export, or ``!`` and the reason why it has no signature, or `LINK_ONLY` and a description if only other modules can use it.
    """

    points: tuple[EntryPoint, ...]
    numbers: tuple[int | None, ...]
    signatures: tuple[str, ...]


def read_exports(source: ModuleSource) -> tuple[Export, ...] | None:
    """Return the exports that a source names, checked and copied, or None if it exports every visible function.

    Raise `InvalidNameError` if a name cannot be used, or is reserved, or `SignatureError` if a signature cannot be parsed.
    """
    if source.functions is None:
        return None
    return tuple([_read_export(*pair) for pair in source.functions.items()])


def _read_export(name: str, value: Any) -> Export:
    """Return the export for an entry of `functions=`.

    Raise `InvalidNameError` if a name is invalid or the symbol is reserved, or `SignatureError` if the signature is invalid.
    """
    check_name(name, "func_name")
    function = value if isinstance(value, Function) else Function(value)
    symbol = check_name(function.symbol or name, "symbol")
    _require_free_symbol(symbol)
    signature = None if function.signature is None else Signature.parse(function.signature)
    return Export(name, symbol, signature, bool(function.nogil), function.shown)


def _require_free_symbol(symbol: str) -> None:
    """Raise `InvalidNameError` if compcache defines a symbol with this name in every module."""
    if symbol.startswith("compcache.entry.") or symbol == TABLE_SYMBOL:
        raise InvalidNameError(f"the symbol {symbol!r} is reserved for compcache: choose another name")


def choose_exports(
    values: GlobalValues,
    named: tuple[Export, ...] | None,
    aliases: Mapping[str, Alias],
    thread_locals: Collection[str] = (),
    merged: Mapping[str, str] = MappingProxyType({}),
    assembly: Collection[str] = (),
    *,
    variable_aliases: Collection[str] = (),
    may_be_empty: bool = False,
) -> tuple[Export, ...]:
    """Return the exports of a module. Variables and hidden functions are exported only to other modules.

    Args:
        values: the functions and variables of the module.
        named: the exports that the source names, or None for all externally visible functions and variables.
        aliases: the aliases of functions.
        thread_locals: the thread-local variables.
        merged: the variables that all modules share, with their linkage. Variables under the one-definition rule are always exported.
        assembly: the symbols that top-level assembly defines. Functions among them are also declared by the module.
        variable_aliases: the aliases of variables.
        may_be_empty: allow a module that defines nothing except the object of ``#include <iostream>``, because a library's configuration
            can switch off the content of a file.

    Raises:
        UndefinedSymbolError: the module does not define a requested export, or nothing can be exported.
        CompileError: a requested variable has a signature, or other modules cannot import it.
        InvalidNameError: the name of a symbol that is exported without a request cannot be a func_name, or is reserved.
    """
    if named is None:
        exports = visible_exports(values, aliases, thread_locals, merged, assembly, variable_aliases)
        for export in exports:
            _require_free_symbol(export.symbol)
        require_exports(exports, values, may_be_empty=may_be_empty)
        return exports
    variables = {variable.name for variable in values.variables if not variable.is_declaration}.union(variable_aliases)
    functions = {function.name for function in values.functions if not function.is_declaration or function.name in assembly}
    exports = tuple([_variable_export(export, thread_locals, functions) if export.symbol in variables else export for export in named])
    requested = dict.fromkeys([export.symbol for export in exports])
    _require_defined(requested, {*functions, *variables, *aliases})
    also_exported = [name for name, linkage in merged.items() if linkage.endswith("_odr") and name not in requested]
    return (*exports, *[_export_of(name, MERGED) for name in also_exported])


def _require_defined(requested: Iterable[str], defined: Collection[str]) -> None:
    """Raise `UndefinedSymbolError` if the module does not define a requested symbol."""
    missing = [symbol for symbol in requested if symbol not in defined]
    if missing:
        present = sorted(name for name in defined if not name.startswith("compcache."))
        raise UndefinedSymbolError(
            f"functions= names {', '.join(map(repr, missing))}, which the module does not define; the module defines "
            f"{join_first(present, _SHOWN) or 'nothing'}",
            symbols=missing,
        )


def _export_of(name: str, link_only: str = "") -> Export:
    """Return the export of a symbol under its own name. Raise `InvalidNameError` if the name cannot be a func_name."""
    return Export(check_name(name, "func_name"), name, link_only=link_only)


def visible_exports(
    values: GlobalValues,
    aliases: Iterable[str],
    thread_locals: Collection[str] = (),
    merged: Mapping[str, str] = MappingProxyType({}),
    assembly: Collection[str] = (),
    variable_aliases: Iterable[str] = (),
) -> tuple[Export, ...]:
    """Return the exports of all visible, named functions and variables of a module. See `choose_exports` for arguments and errors."""
    visible = [
        function.name
        for function in values.functions
        if (not function.is_declaration or function.name in assembly) and function.linkage in VISIBLE_LINKAGES and not function.is_hidden
    ]
    return (
        *[_export_of(name) for name in (*visible, *aliases) if name],
        *_link_only_exports(values, thread_locals, merged),
        *[_export_of(name, "variable") for name in sorted(variable_aliases)],
    )


def _link_only_exports(values: GlobalValues, thread_locals: Collection[str], merged: Mapping[str, str]) -> Iterator[Export]:
    """Yield the exports that only other modules can use: hidden functions, and visible variables that are not thread-local.

    Raise `InvalidNameError` if the name of one cannot be a func_name.
    """
    for function in filter(is_visible, values.functions):
        if function.is_hidden:
            yield _export_of(function.name, THREAD_LOCAL if function.name.startswith(ADDRESS_OF) else "hidden function")
    for variable in filter(is_visible, values.variables):
        if variable.name in thread_locals:
            continue
        description = "variable" if variable.linkage == "external" else "shared variable"
        if variable.name in merged:
            linkage = merged[variable.name]
            description = MERGED if linkage.endswith("_odr") else WEAK if linkage == "common" else _WITH_VALUE
        yield _export_of(variable.name, description)


def is_visible(value: GlobalValue) -> bool:
    """Return whether a module defines a value with a name that other modules can use. Names in ``llvm.`` are for the compiler alone."""
    return bool(value.name) and not value.is_declaration and value.linkage in VISIBLE_LINKAGES and not value.name.startswith("llvm.")


def _variable_export(export: Export, thread_locals: Collection[str], functions: Collection[str]) -> Export:
    """Return the export of a variable; for a thread-local one, of the function that returns its address.

    Raise `CompileError` if the export has a signature, or the thread-local variable has no such function.
    """
    if export.signature is not None:
        raise CompileError(f"functions= gives a signature to the variable {export.symbol!r}: use None instead of a signature")
    if export.symbol in thread_locals:
        if ADDRESS_OF + export.symbol not in functions:
            raise CompileError(
                f"functions= names the thread-local variable {export.symbol!r}, which cannot be exported, because each module has its own "
                "copy: remove the variable from functions="
            )
        return export._replace(name=ADDRESS_OF + export.name, symbol=ADDRESS_OF + export.symbol, link_only=THREAD_LOCAL)
    return export._replace(link_only="variable")


def require_exports(visible: Sequence[object], values: GlobalValues, *, may_be_empty: bool = False) -> None:
    """Raise `UndefinedSymbolError` for a module without exports.

    `may_be_empty` accepts a module that defines no function, one without constructors that has an overridden function, and one that
    declares only functions of ``#include <iostream>``.
    """
    if visible:
        return
    has_constructors = any(variable.name == "llvm.global_ctors" for variable in values.variables)
    defined = [function for function in values.functions if not function.is_declaration]
    hidden = [f"{function.name!r} ({'hidden' if function.is_hidden else function.linkage})" for function in defined]
    is_overridden = not has_constructors and any(function.name.startswith(OVERRIDDEN) for function in defined)
    declared = {function.name for function in values.functions if function.is_declaration}
    has_only_streams = "_ZNSt8ios_base4InitC1Ev" in declared and declared <= _STREAMS
    if may_be_empty and (not hidden or is_overridden or has_only_streams):
        return
    if not hidden:
        raise UndefinedSymbolError("the module exports nothing, because it defines no functions and no visible variables: define one")
    if has_constructors:
        raise UndefinedSymbolError(
            "the module has constructors, but exports nothing, so no load would run them: compile the constructors and the code that needs "
            "them as one module, or export a function in functions= and load this function first"
        )
    raise UndefinedSymbolError(
        f"the module exports nothing, because all its functions are internal or hidden ({join_first(hidden, _SHOWN)}): name the "
        "functions to export in functions="
    )


def _describe_symbol(export: Export, head: str) -> str:
    """Return the kind of a symbol that cannot be called, and the LLVM type of a variable, from the head of its definition."""
    match = _VARIABLE.match(behind_name(head)[:_MOST_HEAD])
    if match is None:
        return export.link_only
    return f"{'constant' if match[1] == 'constant' else export.link_only} {leading_type(match[2])}"


def make_entries(
    exports: Sequence[Export], definitions: Mapping[str, Definition], aliases: Mapping[str, Alias], attributes: Iterable[str] = ()
) -> Entries:
    """Return the entry points of an optimized module's exports. `attributes` are the module's definitions of attribute groups.

    Raise `SignatureMismatchError` if a signature does not match the function's LLVM type.
    """
    effects = _effects_of_groups(attributes)
    distinct: dict[EntryPoint, int] = {}
    entries_by_type: dict[tuple[str, Signature | None, bool], tuple[int | None, str]] = {}  # functions of one type have one entry point
    numbers: list[int | None] = []
    texts = []
    for export in exports:
        if export.link_only:
            numbers.append(None)
            texts.append(LINK_ONLY + _describe_symbol(export, definitions[export.symbol].head))
            continue
        line = _head_of(export.symbol, definitions, aliases)
        key = line, export.signature, export.nogil
        if key not in entries_by_type:
            entry, text = _make_entry(export, read_head(line), effects)
            entries_by_type[key] = None if entry is None else distinct.setdefault(entry, len(distinct)), text
        number, text = entries_by_type[key]
        numbers.append(number)
        texts.append(text if number is None else export.shown or text)
    return Entries(tuple(distinct), tuple(numbers), tuple(texts))


def _make_entry(export: Export, head: FunctionHead, effects: Mapping[str, Mapping[str, str]]) -> tuple[EntryPoint | None, str]:
    """Return the entry point of a function and the text of its signature; None and a reason if no signature matches its LLVM type.

    `effects` has the effects of the attribute groups. Raise `SignatureMismatchError` if the given signature does not match.
    """
    try:
        signature = export.signature or read_signature(head)
    except SignatureError as error:
        return None, f"! {error}"
    known_effects = [effects[group] for group in _GROUP.findall(_STRING.sub("", head.head.suffix)) if group in effects]
    only_reads = any(effect.get("argmem", effect.get("", "none")) in ("none", "read") for effect in known_effects)
    may_raise = not any(map(_accesses_only_arguments, known_effects))
    entry = entry_point(export.name, head, signature, nogil=export.nogil, only_reads=only_reads, may_raise=may_raise)
    return entry, ("nogil " if export.nogil else "") + signature.text()


def _effects_of_groups(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the effects of functions on memory, by attribute group. Groups without the attribute `memory` are left out.

    The effects of a group are by kind of location; the key "" has the effect on all other locations. Source: LLVM Language Reference,
    "Function Attributes", `memory`.
    """
    plain = [_STRING.sub("", line) for line in lines if "memory(" in line]
    effects = {}
    for match in filter(None, map(_MEMORY.match, plain)):
        items = [item.rpartition(": ") for item in match[2].split(", ")]
        effects[match[1]] = {location: effect for location, _, effect in items}
    return effects


def _accesses_only_arguments(effects: Mapping[str, str]) -> bool:
    """Return whether a function accesses no memory except its arguments and `errno`. Then it cannot set a Python exception."""
    return all(effect == "none" or location in ("argmem", "errnomem") for location, effect in effects.items())


def _head_of(symbol: str, definitions: Mapping[str, Definition], aliases: Mapping[str, Alias]) -> str:
    """Return the head of an exported function, without its name. An alias has the head of its declared function type."""
    definition = definitions[symbol]
    if definition.kind == "function":
        return plain_head(definition.head, symbol)
    return aliases[symbol].head
