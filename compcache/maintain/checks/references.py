"""Checks that imported and pinned functions are in the cache; and the statistics."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import NEEDS, decode_function, decode_needs
from compcache.formats.manifest_writer import iterate_frames
from compcache.hit.link_types import fits, read_type
from compcache.maintain.pins import pinned
from compcache.publish.module_reader import ModuleSections
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from compcache.maintain.checks.state import CheckState
    from compcache.publish.module_rows import Row

__all__ = ["check_imports", "check_statistics"]


#: The number of imported functions that are examined at a time.
_AT_ONCE = 1 << 12


def check_imports(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that another module provides every import of a module, and one of its link type."""
    edges = dangling = unchecked = 0
    more = {name for row in _unlisted(state).values() for name in row.imports}
    names = chain(state.slices.lists.imported_names(), sorted(more))
    while batch := dict.fromkeys(islice(names, _AT_ONCE)):
        uses = {name: _modules_of(state, name, state.slices.lists.importers(name), imports=True) for name in batch}
        holders = {name: _modules_of(state, name, state.slices.lists.holders(name), imports=False) for name in batch}
        edges += sum(map(len, uses.values()))
        dangling += sum(_is_dangling(state, name, uses[name]) for name in batch if uses[name] and not holders[name])
        unfit, unknown = _check_types(state, uses, holders)
        dangling, unchecked = dangling + unfit, unchecked + unknown
    return edges, {"dangling": dangling, "unchecked": unchecked}


def _unlisted(state: CheckState) -> dict[bytes, Row]:
    return {module_id: row for module_id, row in state.slices.unlisted.items() if state.is_sound(module_id)}


def _modules_of(state: CheckState, name: str, listed: Iterable[bytes], *, imports: bool) -> list[bytes]:
    """Return the modules that import or realize a function, listed or not."""
    more = [module_id for module_id, row in _unlisted(state).items() if name in (row.imports if imports else row.names)]
    return sorted({*filter(state.is_there, listed), *more})


def _is_dangling(state: CheckState, name: str, importers: list[bytes]) -> bool:
    """Report a function that no module holds, unless the directory has changed meanwhile."""
    modules = [module_id for module_id in importers if state.store.exists(module_id)]
    if not modules or state.is_provided(name):
        return False
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    message = f"no module holds {name!r}, which module {modules[0].hex()}{more} imports: its importers miss until it is added"
    state.find("dangling", name, message, note=True)
    return True


class _Types:
    """The link types in modules: of definitions, by name, and of uses, by name and module; empty ones are not known."""

    def __init__(self) -> None:
        self.defined: dict[str, list[tuple[bytes, str]]] = {}
        self.used: dict[tuple[str, bytes], str] = {}

    def read(self, state: CheckState, module_id: bytes, row: Row, wanted: Container[str]) -> None:
        """Read the references of one module. An unreadable one counts as empty, because another step reports it."""
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


def _check_types(state: CheckState, uses: Mapping[str, list[bytes]], holders: Mapping[str, list[bytes]]) -> tuple[int, int]:
    """Find the imports that no realization fits; return the number of imports, and of those of unknown type."""
    types = _Types()
    wanted = sorted({module_id for found in (uses, holders) for several in found.values() for module_id in several})
    rows = state.slices.lists.rows(wanted)
    rows.update({module_id: row for module_id, row in _unlisted(state).items() if module_id in wanted})
    for module_id in wanted:
        if module_id in rows:
            types.read(state, module_id, rows[module_id], uses.keys())
    unfit = unchecked = 0
    for (name, module_id), used in types.used.items():
        if name not in uses or name in rows[module_id].names:
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
    """Return whether an import has no other realizations, in layers or added since the check began."""
    return state.store.exists(importer) and {module_id for module_id, _ in state.store.find_all(name)} <= {m for m, _ in known}


def check_statistics(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that the statistics decode and that the pinned functions are in the cache."""
    uses = Uses(state.store, verify=True)
    pins = pinned(state.store)
    for name in pins:
        if not _modules_of(state, name, state.slices.lists.holders(name), imports=False) and not state.is_provided(name):
            message = f"{name!r} is pinned, but no module holds it; unpin it, or add it"
            state.find("pin", name, message, note=True)
    return len(uses.files), {"files": len(uses.files), "incomplete": len(uses.torn), "pins": len(pins)}
