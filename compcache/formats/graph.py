"""The graph section of a module file: the module's dependency graph, for the command line and tools.

A zlib-compressed msgpack array of one row for each global value of the optimized module: ``[symbol, kind, func_name or
None, signature, references]``, where the references are the symbols of other rows. The notes section is a msgpack map of
what does not change the code.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import FormatError, MissingPackageError
from compcache.formats.deflate import deflated
from compcache.interrupts import reraise_interrupt

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "reading dependency graphs") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "INLINED",
    "ORIGIN",
    "SOURCE_DIGESTS",
    "ModuleGraph",
    "SymbolNode",
    "decode_graph",
    "decode_notes",
    "encode_graph",
    "encode_notes",
    "pack_notes",
]

#: The digests in the notes: of the given code, of the code with its options, of the function that returned them.
SOURCE_DIGESTS = ("code", "source", "maker")
#: The origin of a module, in the notes: a bundle or a remote store; nothing if it was compiled in the directory.
ORIGIN = "origin"
#: The kind of a node for a function of another module whose code is in this one.
INLINED = "inlined"
_MAX_GRAPH = 1 << 30
_MAX_TIME = 1e11  # seconds; no time since the epoch, and no compilation, is longer


class SymbolNode(NamedTuple):
    """One node. Its kind is function, variable, global (filled at load), import, native or inlined; the signature of an inlined one is a
    module_id.
    """

    symbol: str
    kind: str
    func_name: str | None
    signature: str
    references: tuple[str, ...]


class ModuleGraph(NamedTuple):
    """All nodes of a module by symbol."""

    nodes: dict[str, SymbolNode]


def encode_graph(nodes: Iterable[SymbolNode]) -> bytes:
    """Return the graph section of a module."""
    rows = [list(node) for node in nodes]
    return deflated(msgpack.packb(rows, use_bin_type=True, unicode_errors="surrogatepass"))


def decode_graph(section: bytes) -> ModuleGraph:
    """Return the graph in a module file's section.

    Raises:
        FormatError: the section does not decode as a graph.
    """
    try:
        inflated = zlib.decompressobj().decompress(section, _MAX_GRAPH)
        rows = msgpack.unpackb(inflated, raw=False, unicode_errors="surrogatepass", strict_map_key=False)
        nodes = [_node(*row) for row in rows]
    except (zlib.error, ValueError, TypeError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        raise FormatError(f"the graph section does not decode: {error}") from error
    return ModuleGraph({node.symbol: node for node in nodes})


def _node(symbol: object, kind: object, func_name: object, signature: object, references: object) -> SymbolNode:
    """Return a node from the fields of a row; TypeError if they have other types."""
    texts = (symbol, kind, "" if func_name is None else func_name, signature)
    if not isinstance(references, list) or not all(isinstance(text, str) for text in (*texts, *references)):
        raise TypeError("a field of a node is not text")
    return SymbolNode(symbol, kind, func_name, signature, tuple(references))  # type: ignore[arg-type] # looked at above


def encode_notes(seconds: float, identity: Any, digests: Mapping[str, str], contents: bytes = b"") -> bytes:
    """Return the notes section: the time and the seconds of the compilation, the module's identity, and digests.

    `digests` are the known ones of `SOURCE_DIGESTS`; `contents` are those of functions (`compcache.formats.order`).
    """
    notes: dict[str, Any] = {"created": time.time(), "seconds": seconds}
    if identity is not None:
        components = identity.components() if hasattr(identity, "components") else identity
        notes["identity"] = {str(k): str(v) for k, v in dict(components).items()}
    notes |= {name: digest for name, digest in digests.items() if digest}
    return pack_notes({**notes, "contents": contents} if contents else notes)


def pack_notes(notes: Mapping[str, Any]) -> bytes:
    """Return the notes section from which `decode_notes` returns these notes."""
    packed: bytes = msgpack.packb(dict(notes), use_bin_type=True)
    return packed


def decode_notes(section: bytes) -> dict[str, Any]:
    """Return the notes in a module file's section.

    Raises:
        FormatError: the section does not decode as notes.
    """
    try:
        notes = msgpack.unpackb(section, raw=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        reraise_interrupt(error)
        raise FormatError(f"the notes section does not decode: {error}") from error
    if not isinstance(notes, dict):
        raise FormatError("the notes section is not a map")
    for name in ("created", "seconds"):
        if name in notes and not (isinstance(notes[name], (int, float)) and 0 <= notes[name] < _MAX_TIME):
            del notes[name]
    identity = notes.get("identity")
    if not isinstance(identity, dict) or not all(isinstance(text, str) for pair in identity.items() for text in pair):
        notes.pop("identity", None)
    return notes
