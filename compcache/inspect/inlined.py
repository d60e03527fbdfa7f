"""The functions of other modules whose code a realization may contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.graph import INLINED
from compcache.formats.manifest import decode_function
from compcache.interrupts import suppress
from compcache.publish.module_reader import read_graph

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["describe_inlined"]


def describe_inlined(store: Store, module_id: bytes, offset: int) -> tuple[str, ...]:
    """Describe each function of another module that may be inlined into a realization: its name and its module, as one text.

    The record of the realization is at `offset` in the module. The result is empty if the module cannot be read.
    """
    with suppress(FileNotFoundError, CompcacheError), store.open_module(module_id) as module:
        nodes = read_graph(module).nodes
        symbol = decode_function(module.read_record(offset)).symbol
        references = nodes[symbol].references if symbol in nodes else ()
        used_nodes = [nodes[key] for key in references if key in nodes]
        return tuple([f"{node.func_name} of module {node.signature}" for node in used_nodes if node.kind == INLINED])
    return ()
