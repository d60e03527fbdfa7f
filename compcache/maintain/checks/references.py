"""Checks that the functions which modules import, and those that are pinned, are in the cache; and the statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.maintain.pins import pinned
from compcache.usage.ledger import read_ledger

if TYPE_CHECKING:
    from compcache.maintain.checks.state import CheckState

__all__ = ["check_imports", "check_statistics"]


def check_imports(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that another module provides every import of a module."""
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
    return edges, {"dangling": dangling}


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
