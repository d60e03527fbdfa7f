"""Checks that the functions which modules import, and those that are pinned, are in the cache; and the statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import NEEDS, decode_function, decode_needs
from compcache.formats.manifest_writer import iterate_frames
from compcache.hit.link_types import fits, read_type
from compcache.maintain.pins import pinned
from compcache.publish.module_reader import ModuleSections
from compcache.usage.ledger import read_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.maintain.checks.state import CheckState
    from compcache.publish.module_rows import Row

__all__ = ["check_imports", "check_statistics"]


def check_imports(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that another module provides every import of a module, and one of its link type."""
    provided = {name for row in state.rows.values() for name in row.names}
    missing: dict[str, list[bytes]] = {}
    edges = 0
    for module_id, row in state.rows.items():
        edges += len(row.imports)
        for name in row.imports:
            if name not in provided:
                missing.setdefault(name, []).append(module_id)
    dangling = 0
    for name, importers in sorted(missing.items()):
        modules = [module_id for module_id in importers if state.store.exists(module_id)]
        if not modules or state.is_provided(name):
            continue  # the directory changed meanwhile
        dangling += 1
        more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
        message = f"no module holds {name!r}, which module {modules[0].hex()}{more} imports: its importers miss until it is added"
        state.find("dangling", name, message, note=True)
    unfit, unchecked = _check_types(state)
    return edges, {"dangling": dangling + unfit, "unchecked": unchecked}


class _Types:
    """The link types in modules: of definitions, by name, and of uses, by name and module; empty ones are not known."""

    def __init__(self) -> None:
        self.defined: dict[str, list[tuple[bytes, str]]] = {}
        self.used: dict[tuple[str, bytes], str] = {}

    def read(self, state: CheckState, module_id: bytes, row: Row, wanted: set[str]) -> None:
        """Read those of one module. One that cannot be read counts as one that says nothing: another step tells of it."""
        payloads: dict[int, bytes] = {}
        try:
            with ModuleSections(state.store, module_id) as reader:
                payloads = dict(iterate_frames(reader.records()))
            for name, offset in zip(row.names, row.offsets, strict=True):
                if name in wanted:
                    kind = decode_function(payloads[offset]).link_type
                    self.defined.setdefault(name, []).append((module_id, read_type(payloads.__getitem__, kind)))
            for record in [decode_needs(payload) for payload in payloads.values() if payload[:1] == NEEDS]:
                for number, (_, name) in enumerate(record.imports):
                    kind = record.link_types[number] if record.link_types else b""
                    self.used[name, module_id] = read_type(payloads.__getitem__, kind)
        except (OSError, FormatError, KeyError) as error:
            reraise_interrupt(error)


def _check_types(state: CheckState) -> tuple[int, int]:
    """Find the imports that no realization fits; the number of imports, and of those of unknown type."""
    wanted = {name for row in state.rows.values() for name in row.imports}
    types = _Types()
    for module_id, row in state.rows.items():
        if row.imports or not wanted.isdisjoint(row.names):
            types.read(state, module_id, row, wanted)
    unfit = unchecked = 0
    for (name, module_id), used in types.used.items():
        if name in state.rows[module_id].names:
            continue
        known = types.defined.get(name, [])
        if not used or not all(text for _, text in known):
            unchecked += 1
        elif known and not any(fits(text, used)[0] for _, text in known) and _is_all(state, name, module_id, known):
            unfit += 1
            other, text = known[0]
            message = (
                f"module {module_id.hex()} uses {name!r} as {used}, and no module holds one that fits: in module {other.hex()} it is "
                f"{text}; its importers miss until one that fits is added"
            )
            state.find("dangling", name, message, note=True)
    return unfit, unchecked


def _is_all(state: CheckState, name: str, importer: bytes, known: Iterable[tuple[bytes, str]]) -> bool:
    """Whether there are no other realizations of an import, in layers or added since the check began."""
    return state.store.exists(importer) and {module_id for module_id, _ in state.store.find_all(name)} <= {m for m, _ in known}


def check_statistics(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that the statistics decode and that the pinned functions are in the cache."""
    ledger = read_ledger(state.store)
    provided = {name for row in state.rows.values() for name in row.names}
    pins = pinned(state.store)
    for name in pins:
        if name not in provided and not state.is_provided(name):
            message = f"{name!r} is pinned, but no module holds it; unpin it, or add it"
            state.find("pin", name, message, note=True)
    return len(ledger.files), {"files": len(ledger.files), "incomplete": len(ledger.torn), "pins": len(pins)}
