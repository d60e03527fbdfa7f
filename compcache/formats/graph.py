"""The codecs for the graph and the notes of a module file, for the command line and tools.

The graph section is a zlib-compressed msgpack array with a row for each global value of the optimized module: ``[symbol, kind,
func_name or None, signature, references]``. The references are the symbols of other rows. The notes section is a msgpack map
of facts that do not affect the code.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import FormatError
from compcache.formats.deflate import deflate
from compcache.interrupts import as_format_error
from compcache.messagepack import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "INLINED", "ORIGIN", "SOURCE_DIGESTS", "ModuleGraph", "SymbolNode", "decode_graph", "decode_notes", "encode_graph", "encode_notes",
    "pack_notes",
]  # fmt: skip

#: The digests in the notes: of the source's code, and of the code with its options.
SOURCE_DIGESTS = ("code", "source")
#: The key in the notes for the origin of a module: a bundle or a remote store. Modules that were compiled in the directory lack it.
ORIGIN = "origin"
#: The kind of a node for a function of another module that may be inlined in this module.
INLINED = "inlined"
_MAX_GRAPH = 1 << 30
_MAX_TIME = 1e11  # seconds; no time since the epoch, and no compilation, is longer


class SymbolNode(NamedTuple):
    """A node of a graph.

    `kind` is function, variable, global (filled at load), import, native or inlined. The signature of an inlined node is a module_id.
    """

    symbol: str
    kind: str
    func_name: str | None
    signature: str
    references: tuple[str, ...]


class ModuleGraph(NamedTuple):
    """The graph of a module: its nodes by symbol."""

    nodes: dict[str, SymbolNode]


def encode_graph(nodes: Iterable[SymbolNode]) -> bytes:
    """Encode the graph section of a module."""
    return deflate(pack([list(node) for node in nodes]))


def decode_graph(section: bytes) -> ModuleGraph:
    """Decode the graph section of a module. Raise `FormatError` if the section is damaged."""
    with as_format_error("the graph section of the module is damaged"):
        inflated = zlib.decompressobj().decompress(section, _MAX_GRAPH)
        nodes = [_checked_node(*row) for row in unpack(inflated)]
    return ModuleGraph({node.symbol: node for node in nodes})


def _checked_node(symbol: object, kind: object, func_name: object, signature: object, references: object) -> SymbolNode:
    """Create a node from the decoded fields of a row. Raise `TypeError` if a field has the wrong type."""
    if not isinstance(references, list):
        raise TypeError(f"the references of the node {symbol!r} are of type {type(references).__name__}, not list")
    fields = [("symbol", symbol), ("kind", kind), ("func_name", "" if func_name is None else func_name), ("signature", signature)]
    for field, value in [*fields, *[("reference", reference) for reference in references]]:
        if not isinstance(value, str):
            raise TypeError(f"the {field} of the node {symbol!r} is of type {type(value).__name__}, not str")
    return SymbolNode(symbol, kind, func_name, signature, tuple(references))  # type: ignore[arg-type] # checked above


def encode_notes(seconds: float, identity: Any, digests: Mapping[str, str], contents: bytes = b"") -> bytes:
    """Encode the notes section of a new module, with the current time.

    Args:
        seconds: the processor time of the compilation, in seconds.
        identity: the identity of the module (an `Identity` or a mapping of components), or None.
        digests: the known digests of the source (`SOURCE_DIGESTS`), by name. Empty digests are left out.
        contents: the content digests of the functions (`compcache.formats.order`), or b"" if they are unknown.
    """
    notes: dict[str, Any] = {"created": time.time(), "seconds": seconds}
    if identity is not None:
        components = identity.components() if hasattr(identity, "components") else identity
        notes["identity"] = {str(component): str(value) for component, value in dict(components).items()}
    notes |= {name: digest for name, digest in digests.items() if digest}
    return pack_notes({**notes, "contents": contents} if contents else notes)


def pack_notes(notes: Mapping[str, Any]) -> bytes:
    """Encode notes as a notes section. This is the inverse of `decode_notes`."""
    return pack(dict(notes))


def decode_notes(section: bytes) -> dict[str, Any]:
    """Decode the notes section of a module. Invalid times and identities are left out. Raise `FormatError` if the section is damaged."""
    with as_format_error("the notes section of the module is damaged"):
        notes = unpack(section)
    if not isinstance(notes, dict):
        raise FormatError(f"the notes section of the module is of type {type(notes).__name__}, not dict")
    for name in ("created", "seconds"):
        if name in notes and not (isinstance(notes[name], (int, float)) and 0 <= notes[name] < _MAX_TIME):
            del notes[name]
    identity = notes.get("identity")
    if not isinstance(identity, dict) or not all(isinstance(text, str) for pair in identity.items() for text in pair):
        notes.pop("identity", None)
    return notes
