"""Writes the records of a module. The needs of exported functions are computed once, and functions with equal needs share them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from compcache.build.ir_text import ALL_ASSEMBLY
from compcache.build.pic import INITIALIZE
from compcache.build.slots import SLOT_PREFIX
from compcache.depgraph import DependencyGraph
from compcache.errors import GlobalValidationError
from compcache.formats.graph import SymbolNode
from compcache.formats.manifest import STARTUP, FunctionRecord, NeedsRecord
from compcache.formats.manifest_writer import ManifestWriter, encode_function, encode_global, encode_link_type, encode_module, encode_needs
from compcache.formats.records import GlobalRecord, ModuleRecord
from compcache.globals.definition import call_encode
from compcache.hit.link_types import type_digest, unite_types
from compcache.images import platform_symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from compcache.build.exports import Export
    from compcache.build.ir_text import Definition
    from compcache.build.link_types import LinkTypes
    from compcache.build.slots import Resolution
    from compcache.depgraph import Need
    from compcache.formats.manifest import Use
    from compcache.globals import GlobalDefinition

__all__ = ["Needs", "RecordBuilder", "encode_definition", "may_be_undefined", "read_needs", "symbol_nodes"]

#: The graph's node for all code that runs while an image is mapped or unmapped. No symbol has this name.
_STARTUP = ""
#: The size of the offset of a record, behind the digest of a link type (`LINK_TYPE_BYTES`).
_OFFSET_SIZE = 4
#: The head of a variable that never changes, up to its type.
_CONSTANT = re.compile(r'(?:"[^"]*"|\S+) = (?:[a-z_]+(?:\([^)]*\))? )*constant ')


def may_be_undefined(definition: Definition | None) -> bool:
    """Return whether a declaration may remain undefined. The result is False for None, a symbol without a declaration."""
    return definition is not None and "extern_weak" in definition.head.split(" ")


class Needs(NamedTuple):
    """The native symbols of a module that other processes may lack, and what each of its symbols needs."""

    natives: frozenset[str]
    by_symbol: Mapping[str, Need | None]


def read_needs(definitions: Mapping[str, Definition], resolution: Resolution, slots: Iterable[str], startup: Collection[str]) -> Needs:
    """Return what the symbols of a module need.

    Args:
        definitions: the global values that the module defines or declares.
        resolution: the module's imports and global variables.
        slots: the slots of imports and global variables.
        startup: the functions that run while the image is mapped or unmapped. Every function needs the symbols that they reach.
    """
    imports = resolution.imported()
    natives = _nonplatform_natives(definitions) - resolution.library_symbols - imports.keys()
    leaves = {*slots, *imports, *natives, *({INITIALIZE} & definitions.keys())}
    edges = {name: definition.references for name, definition in definitions.items()}
    if not leaves.isdisjoint(DependencyGraph(edges).closure(startup)):
        functions = {name for name, definition in definitions.items() if definition.kind == "function"}
        edges = {name: (*references, _STARTUP) if name in functions else references for name, references in edges.items()}
        edges[_STARTUP] = tuple(startup)
    return Needs(natives, DependencyGraph(edges).needs(leaves))


class RecordBuilder:
    """Writes the records of a module. Functions share records of needs.

    `records` has the written records, `globals` the offsets of the records of global variables, and `imports` the func_names that written
    records of needs import.

    Args:
        header: the record of the module.
        needs: the needs of its functions.
        resolution: the module's imports and global variables.
        slots: the symbol numbers of the slots of imports and global variables.
        payloads: the encoded values of the global variables.
        places: the places in the image for the addresses of imports without slots (`NeedsRecord.places`), by symbol.
        types: the link types of the module's exports and imports.
    """

    def __init__(
        self,
        header: ModuleRecord,
        needs: Needs,
        resolution: Resolution,
        slots: Mapping[str, int],
        payloads: Mapping[str, bytes],
        places: Mapping[str, bytes],
        types: LinkTypes,
    ) -> None:
        self.records = ManifestWriter()
        self.records.add(encode_module(header))
        self._resolution = resolution
        self._slots = slots
        self._payloads = payloads
        by_name: dict[str, bytes] = {}  # a load fills all places of a function or variable at once
        for symbol, name in resolution.imports.items():
            by_name[name] = by_name.get(name, b"") + places.get(symbol, b"")
        self._places = {symbol: by_name[name] for symbol, name in resolution.imports.items()}
        self._types = types
        self._written_types: dict[str, bytes] = {}
        self._imports = resolution.imported()
        self._natives, self._needs = needs
        self.globals: dict[str, int] = {}
        self._written_needs: dict[bytes, int] = {}  # the offsets of the records of needs, by payload
        self.imports: dict[str, None] = {}  # the func_names that a written need imports
        self._offsets: dict[int, int] = {}  # the offsets of the records of needs, by the identity of the need

    def add_function(self, export: Export, signature: str, function: int, entry: int, target_id: bytes) -> int:
        """Write the record of a function and the records of its needs, and return the offset of the function's record.

        Args:
            export: the names of the function.
            signature: the text of its signature.
            function: the symbol number of the function.
            entry: the symbol number of its entry point.
            target_id: the digest of the function's requirement.
        """
        need = self._needs.get(export.symbol)
        offset = self._add_need(need) if need is not None else 0
        link_type = self._add_link_type(self._types.definitions.get(export.symbol, ""))
        record = FunctionRecord(export.name, export.symbol, signature, target_id, function, entry, offset, link_type)
        return self.records.add(encode_function(record))

    def _add_need(self, root: Need) -> int:
        """Write a need and the needs below it, each once. Return the offset of its record."""
        stack = [root]
        while stack:
            need = stack[-1]
            if id(need) in self._offsets:
                stack.pop()
                continue
            waiting = [child for child in need.children if id(child) not in self._offsets]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            self._offsets[id(need)] = self._write_need(need)
        return self._offsets[id(root)]

    def _write_need(self, need: Need) -> int:
        """Write the record of a need whose children are written. Return its offset, which needs of equal content share."""
        imported = [leaf for leaf in need.leaves if leaf in self._imports]
        record = NeedsRecord(
            tuple([self._use_of(leaf) for leaf in imported]),
            tuple([self._add_global(leaf) for leaf in need.leaves if leaf in self._resolution.storage or leaf == INITIALIZE]),
            tuple([leaf for leaf in need.leaves if leaf in self._natives]),
            tuple([self._offsets[id(child)] for child in need.children]),
        )
        self.imports.update(dict.fromkeys(name for _, name, _, _ in record.imports))
        payload = encode_needs(record)
        if payload not in self._written_needs:
            self._written_needs[payload] = self.records.add(payload)
        return self._written_needs[payload]

    def _use_of(self, symbol: str) -> Use:
        """Return the fields of an import in a needs record: slot number, func_name, places, and link type.

        An import without a slot has the func_name as its first field, too.

        A module that defines a merged variable itself expects at least the size of its own definition.
        """
        name = self._imports[symbol]
        link_type = self._add_link_type(unite_types(self._types.uses.get(symbol, ())) or self._types.definitions.get(symbol, ""))
        return self._slots.get(symbol, name), name, self._places.get(symbol, b""), link_type

    def _add_link_type(self, text: str) -> bytes:
        """Write the record of a link type, once for each type. Return the digest of the type and the offset of the record, as bytes.

        The result is empty for an unknown type.
        """
        if text and text not in self._written_types:
            offset = self.records.add(encode_link_type(text))
            self._written_types[text] = type_digest(text) + offset.to_bytes(_OFFSET_SIZE, "little")
        return self._written_types.get(text, b"")

    def _add_global(self, name: str) -> int:
        """Write the record of a global variable once, or a record by which a load runs the constructors (`STARTUP`). Return its offset."""
        if name == INITIALIZE:
            record = GlobalRecord(name, self._slots[name], "code", 0, STARTUP, b"")
            return self.records.add(encode_global(record))
        if name not in self.globals:
            definition, storage = self._resolution.storage[name]
            shown_name = name.removeprefix(SLOT_PREFIX)
            record = GlobalRecord(shown_name, self._slots[name], storage.form, storage.size, definition.kind, self._payloads[name])
            self.globals[name] = self.records.add(encode_global(record))
        return self.globals[name]


def symbol_nodes(
    definitions: Mapping[str, Definition], exports: Mapping[str, str], resolution: Resolution, signatures: Mapping[str, str]
) -> list[SymbolNode]:
    """Return the nodes of an optimized module's dependency graph: every global value with its references, except LLVM's own.

    Args:
        definitions: the global values of the module.
        exports: the func_names of the exports, by symbol.
        resolution: the module's imports and global variables.
        signatures: the signatures of the exported functions, by symbol.
    """
    nodes = []
    for name, definition in definitions.items():
        if name.startswith("llvm."):
            continue
        kind, shown_name = _node_kind(name, definition, resolution)
        references = {other: None for other in definition.references if not other.startswith("llvm.")}
        if ALL_ASSEMBLY in definition.references:
            references.update([(other, None) for other in definitions[ALL_ASSEMBLY].references if other != name])
        signature = signatures.get(name) or ("constant" if kind == "variable" and _CONSTANT.match(definition.head) else "")
        nodes.append(SymbolNode(name, kind, exports.get(name, shown_name), signature, tuple(references)))
    return nodes


def _node_kind(name: str, definition: Definition, resolution: Resolution) -> tuple[str, str | None]:
    """Return the kind of a symbol in the call graph, and the func_name of an import or the name of a global; otherwise None."""
    if definition.kind != "variable" and (name in resolution.slots or name in resolution.imports):
        return "import", resolution.slots.get(name) or resolution.imports[name]
    if name in resolution.storage:
        return "global", name.removeprefix(SLOT_PREFIX)
    kinds = {"declaration": "native", "external": "native", "function": "function"}
    return kinds.get(definition.kind, "variable"), None


def encode_definition(definition: GlobalDefinition, symbol: str) -> bytes:
    """Return the stored form of a global variable's value. Raise `GlobalValidationError`, with its name, if it cannot be stored."""
    try:
        return call_encode(definition)
    except GlobalValidationError as error:
        name = symbol.removeprefix(SLOT_PREFIX)
        raise GlobalValidationError(f"global {name!r}: {error}", global_name=name, reason=error.reason) from error


def _nonplatform_natives(definitions: Mapping[str, Definition]) -> frozenset[str]:
    """Return the native symbols that other processes may lack: symbols that the platform does not define."""
    return frozenset([
        name
        for name, definition in definitions.items()
        if definition.kind in ("declaration", "external")
        and not name.startswith("llvm.")
        and not may_be_undefined(definition)
        and not platform_symbols.is_platform_symbol(name)
    ])  # fmt: skip
