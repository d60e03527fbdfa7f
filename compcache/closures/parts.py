"""Determines which definitions of a module can be copied into a linked closure, and whether the whole module can move into it.

A definition is copied if a copy is equivalent to the original. This holds for constants whose address is never compared, and for functions
that reach only such constants and functions: no changeable or thread-local variables, and no addresses that may be compared. All other
definitions stay in their module, which is loaded first, and the closure imports them by name. So they must be exported, and a definition
that reaches an unexported definition in its module cannot be copied either. Functions of static libraries are a part of the module that
uses them, with their variables, so their users also stay; only runtime libraries whose state all modules share may be in several images.
Nothing is copied from a module with unsupported constructs: constructors, top-level assembly, sections and ifuncs.

A complete module with its variables can also move into a closure. A process then loads either the module or the closure
(`compcache.hit.closures.linked`), so its definitions exist only once and need no names.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from compcache.build.exports import MERGED
from compcache.build.inlining.offers import LOCAL
from compcache.build.ir_text import functions_with_assembly, read_values, references
from compcache.build.pic import INITIALIZE, TERMINATE
from compcache.build.slots import SLOT_PREFIX
from compcache.content.definitions import Unreadable, read_definitions
from compcache.images.archives import is_archive, open_archive
from compcache.images.static_runtime import FINALIZE, STATIC_RUNTIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.build.recipe import Recipe
    from compcache.content.definitions import Definition

__all__ = ["Copies", "copies_of", "without_static_runtime"]

_ALIAS = re.compile(r'@(?:"[^"]*"|[-$._A-Za-z0-9]+) = (?:[a-z_]+(?:\([^)]*\))? )*alias ')
#: The prefixes of names that have a meaning for LLVM, this package or the dynamic linker.
_RESERVED = ("llvm.", "compcache.", "__dso_handle")


#: The names of the static runtime, which each image has.
_RUNTIME = frozenset((*STATIC_RUNTIME, FINALIZE, INITIALIZE, TERMINATE, "compcache.initialized", "compcache.fini_array.0", "llvm.used"))


class Copies(NamedTuple):
    """The definitions of a module that can be copied.

    `mentions` has the definitions that each copyable definition mentions, by symbol or key. `homes` has the names of exported symbols that
    copies use and that are not copied. `merged` has symbols that the module both defines and imports, because another module may provide
    them. `addressed` has the names of imports whose addresses the module may compare. `whole` has the mentions of all definitions if the
    module can move; otherwise it is empty.
    """

    mentions: dict[str, tuple[str, ...]]
    homes: dict[str, str]
    merged: frozenset[str] = frozenset()
    addressed: frozenset[str] = frozenset()
    whole: Mapping[str, tuple[str, ...]] = MappingProxyType({})


_NOTHING = Copies({}, {})


def copies_of(text: str, recipe: Recipe) -> Copies:
    """Return the definitions that can be copied from a module; none if its code cannot be split, has data, or imports a name twice.

    `text` is the code of the module as LLVM prints it. Raise `LibraryError` if a static library that the module names cannot be read.
    """
    imports = recipe.slots
    names = list(imports.values())
    if len(set(names)) != len(names) or any(symbol.startswith(SLOT_PREFIX) for symbol in imports):
        return _NOTHING  # an image has places for only one symbol per name
    if recipe.data:
        return _NOTHING
    try:
        definitions = read_definitions(text).by_key
    except Unreadable:
        return _NOTHING
    sorter = _Sorter(text, definitions, recipe)
    is_merged = any(export.link_only.startswith(MERGED) for export in recipe.exports)
    return sorter.sort()._replace(whole={} if is_merged or recipe.storage else sorter.all_mentions())


class _Sorter:
    """Finds the largest set of a module's definitions that can be copied."""

    def __init__(self, text: str, definitions: Mapping[str, Definition], recipe: Recipe) -> None:
        self._definitions = definitions
        self._imports = recipe.slots
        self._exported = {export.symbol: export.name for export in recipe.exports if export.symbol not in recipe.slots}
        archives = [archive for archive in map(open_archive, filter(is_archive, recipe.libraries)) if not archive.functions_with_state()]
        values = read_values(text)
        all_values = (*values.functions, *values.variables)
        declared = {value.name for value in all_values if value.is_declaration}
        hidden = {value.name for value in all_values if value.is_declaration and value.is_hidden}
        optional = {value.name for value in all_values if value.linkage == "available_externally"}
        thread_local = {value.name for value in all_values if " thread_local" in value.text}
        # The image contains these functions with their state.
        archive_functions = {name for archive in archives for name in declared if archive.path_of(name)}
        # Symbols to which copies cannot refer.
        self._unreachable = optional | thread_local | hidden | set(recipe.storage) | archive_functions
        self._declared = optional | declared  # symbols that other modules define
        self._image_bound = hidden | thread_local & declared | archive_functions  # symbols to which code in another image cannot refer
        self._assembly = functions_with_assembly(text)
        self._text = text

    def sort(self) -> Copies:
        """Return the definitions that can be copied, with all fields of `Copies` except `whole`."""
        copyable = {key for key, definition in self._definitions.items() if self._is_copyable(key, definition)}
        users: dict[str, list[str]] = {}
        for key in copyable:
            for mentioned in self._definitions[key].mentions:
                users.setdefault(mentioned, []).append(key)
        waiting = [mentioned for mentioned in users if not self._is_available(mentioned, copyable)]
        for mentioned in waiting:  # grows during the loop
            for user in users.get(mentioned, ()):
                if user in copyable:
                    copyable.discard(user)
                    if not self._is_available(user, copyable):
                        waiting.append(user)
        mentions = {key: self._definitions[key].mentions for key in copyable}
        mentioned_keys = {mentioned for keys in mentions.values() for mentioned in keys}
        homes = {symbol: name for symbol, name in self._exported.items() if symbol in mentioned_keys and symbol not in copyable}
        merged = frozenset(self._imports.keys() & self._definitions.keys() - self._declared)
        own_keys = {key for key, definition in self._definitions.items() if definition.is_own}
        addressed = frozenset([name for symbol, name in self._imports.items() if symbol in own_keys])
        return Copies(mentions, homes, merged, addressed)

    def all_mentions(self) -> dict[str, tuple[str, ...]]:
        """Return the mentions of all definitions. The result is empty if the complete module cannot move."""
        mentions = {key: definition.mentions for key, definition in self._definitions.items() if key not in self._declared}
        if self._image_bound or any(_is_reserved(key) or key in self._imports for key in mentions):
            return {}
        return {} if any(line[:1] == "@" and _ALIAS.match(line) for line in self._text.split("\n")) else mentions

    def _is_copyable(self, key: str, definition: Definition) -> bool:
        """Return whether a copy of a definition is equivalent to the original, without considering the definitions that it mentions."""
        if definition.is_declared or definition.is_own or _is_reserved(key):
            return False
        return not any(key in symbols for symbols in (self._imports, self._unreachable, self._assembly))

    def _is_available(self, key: str, copyable: set[str]) -> bool:
        """Return whether a copy in another image can refer to a symbol.

        It can refer to copied and imported symbols, and outside of `_unreachable` to what the module exports or the process provides.
        """
        if key in copyable or key in self._imports:
            return True
        if key in self._unreachable:
            return False
        if key in self._exported:
            return True
        definition = self._definitions.get(key)
        return definition is not None and definition.is_declared and (key.startswith("llvm.") or not _is_reserved(key))


def _is_reserved(key: str) -> bool:
    """Return whether a symbol has a meaning for LLVM, this package or the dynamic linker. `LOCAL` names do not."""
    return key.startswith(_RESERVED) and not key.startswith(LOCAL)


def without_static_runtime(text: str) -> str:
    """Return a printed module without the static runtime, which the image of a closure contains.

    The module is returned unchanged if its code uses the runtime, or if it has constructors or destructors.
    """
    if f"@{FINALIZE}()" not in text:
        return text
    remaining_lines: list[str] = []
    function = ""  # the function of the runtime whose lines are currently left out
    for line in text.split("\n"):
        if function:
            if " call " in line and function in (INITIALIZE, TERMINATE) and references(line) != (FINALIZE,):
                return text
            function = "" if line == "}" else function
            continue
        names = references(line) if line.startswith(("define ", "@")) else ()
        if not names or names[0] not in _RUNTIME:
            remaining_lines.append(line)
        elif line[0] != "@":
            function = names[0]
        elif not _RUNTIME.issuperset(names):
            return text  # a list of the module contains other functions
    remaining = "\n".join(remaining_lines)
    return text if any(f"@{name}" in remaining for name in _RUNTIME) else remaining
