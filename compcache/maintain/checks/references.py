"""Check that imported and pinned functions are in the cache, and that the statistics can be decoded."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.formats.manifest import NEEDS, decode_function, decode_needs
from compcache.formats.manifest_writer import iterate_frames
from compcache.hit.link_types import fits, read_type
from compcache.interrupts import suppress
from compcache.maintain.pins import pinned
from compcache.publish.module_reader import ModuleSections
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from compcache.maintain.checks.state import CheckState
    from compcache.publish.module_rows import Row

__all__ = ["check_imports", "check_statistics"]


#: The number of imported functions examined at a time.
_AT_ONCE = 1 << 12


def check_imports(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that every imported function is in the cache, with the link type that the importer expects."""
    edges = dangling = unchecked = 0
    more = {name for row in _unlisted_rows(state).values() for name in row.imports}
    names = chain(state.slices.lists.imported_names(), sorted(more))
    while batch := dict.fromkeys(islice(names, _AT_ONCE)):
        uses = {name: _intact_modules(state, name, state.slices.lists.importers(name), imports=True) for name in batch}
        holders = {name: _intact_modules(state, name, state.slices.lists.holders(name), imports=False) for name in batch}
        edges += sum(map(len, uses.values()))
        dangling += sum(_report_dangling(state, name, uses[name]) for name in batch if uses[name] and not holders[name])
        mismatched, unknown = _check_types(state, uses, holders)
        dangling, unchecked = dangling + mismatched, unchecked + unknown
    return edges, {"dangling": dangling, "unchecked": unchecked}


def _unlisted_rows(state: CheckState) -> dict[bytes, Row]:
    """Return the rows of the intact modules that no list contains."""
    return {module_id: row for module_id, row in state.slices.unlisted.items() if state.is_sound(module_id)}


def _intact_modules(state: CheckState, name: str, listed: Iterable[bytes], *, imports: bool) -> list[bytes]:
    """Return the sorted ids of the intact modules that realize a function, or with `imports`, that import it.

    `listed` are the candidates from the module lists. Modules in no list are added.
    """
    more = [module_id for module_id, row in _unlisted_rows(state).items() if name in (row.imports if imports else row.names)]
    return sorted({*filter(state.is_present, listed), *more})


def _report_dangling(state: CheckState, name: str, importers: list[bytes]) -> bool:
    """Report an imported function that no module holds. Return False, without a report, if that is no longer true."""
    modules = [module_id for module_id in importers if state.store.exists(module_id)]
    if not modules or state.is_provided(name):
        return False
    importing = f"module {modules[0].hex()} imports" if len(modules) == 1 else f"{len(modules)} modules, like {modules[0].hex()}, import"
    message = f"no module holds {name!r}, which {importing}: functions that need it are misses; add {name!r}"
    state.report("dangling", name, message, note=True)
    return True


class _Types:
    """The link types of functions. An empty type is unknown.

    Attributes:
        defined: the types that modules define a function with, as (module_id, type) by func_name.
        used: the types that modules import a function with, by (func_name, module_id).
    """

    def __init__(self) -> None:
        self.defined: dict[str, list[tuple[bytes, str]]] = {}
        self.used: dict[tuple[str, bytes], str] = {}

    def read(self, state: CheckState, module_id: bytes, row: Row, wanted: Container[str]) -> None:
        """Add the link types in a module for the functions `wanted`. An unreadable module is skipped, because another step reports it."""
        payloads: dict[int, bytes] = {}
        with suppress(OSError, FormatError, KeyError):
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


def _check_types(state: CheckState, uses: Mapping[str, list[bytes]], holders: Mapping[str, list[bytes]]) -> tuple[int, int]:
    """Report imports whose link type matches no realization. Return the number of these imports, and of imports with unknown types.

    Args:
        state: the state of the check.
        uses: the modules that import a function, by func_name.
        holders: the modules that realize a function, by func_name.
    """
    types = _Types()
    wanted = sorted({module_id for by_name in (uses, holders) for module_ids in by_name.values() for module_id in module_ids})
    rows = state.slices.lists.rows(wanted)
    rows.update({module_id: row for module_id, row in _unlisted_rows(state).items() if module_id in wanted})
    for module_id in wanted:
        if module_id in rows:
            types.read(state, module_id, rows[module_id], uses.keys())
    mismatched = unchecked = 0
    for (name, module_id), used in types.used.items():
        if name not in uses or name in rows[module_id].names:
            continue
        known = types.defined.get(name, [])
        if not used or not all(text for _, text in known):
            unchecked += 1
        elif known and not any(fits(text, used)[0] for _, text in known) and _has_only(state, name, module_id, known):
            mismatched += 1
            provider, text = known[0]
            message = (
                f"module {module_id.hex()} imports {name!r} with the type {used}, but no module holds it with this type: module "
                f"{provider.hex()} defines it as {text}; functions that need it are misses; add {name!r} with the imported type"
            )
            state.report("dangling", name, message, note=True)
    return mismatched, unchecked


def _has_only(state: CheckState, name: str, importer: bytes, known: Iterable[tuple[bytes, str]]) -> bool:
    """Return whether the importer still exists, and all current realizations of the function, layers included, are in `known`."""
    current = {module_id for module_id, _ in state.store.find_all(name)}
    return state.store.exists(importer) and current <= {module_id for module_id, _ in known}


def check_statistics(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that the statistics can be decoded, and that the pinned functions are in the cache."""
    uses = Uses(state.store, verify=True)
    pins = pinned(state.store)
    for name in pins:
        if not _intact_modules(state, name, state.slices.lists.holders(name), imports=False) and not state.is_provided(name):
            message = f"{name!r} is pinned, but no module holds it; unpin the function, or add it"
            state.report("pin", name, message, note=True)
    return len(uses.files), {"files": len(uses.files), "incomplete": len(uses.torn), "pins": len(pins)}
