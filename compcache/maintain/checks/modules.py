"""Check that modules are unchanged since their publication: their records, their digests and their stored bitcode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.files import writer
from compcache.formats import known_faults
from compcache.formats.footer import is_signed_with, require_intact
from compcache.formats.index import Stamp
from compcache.formats.manifest import FUNCTION, GLOBAL, MODULE, NEEDS, NO_ENTRY, decode_function, decode_needs
from compcache.formats.manifest_writer import iterate_frames
from compcache.formats.records import decode_global, decode_module
from compcache.images.kinds import Table, check_image
from compcache.interrupts import reraise_interrupt, suppress
from compcache.maintain.checks.index import entry_start
from compcache.maintain.checks.references import link_types
from compcache.publish.module_lists import IMPORTS, REALIZES, SortedItems, relation_key
from compcache.publish.module_reader import ModuleSections

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from compcache.maintain.checks.state import CheckState
    from compcache.publish.module_rows import Row
    from compcache.store import Store

__all__ = ["check_code", "check_content", "check_records"]


def check_records(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that the records of every module can be decoded, and add their names, index entries and stamps to `state`.

    Return the number of usable modules, and counts for the report.
    """
    checked = functions = 0
    for present, slice_ in state.modules():
        rows = slice_.rows()
        checked += len(present)
        for module_id, status in present.items():
            if writer(status) < 0:
                state.report_writable(module_id)
            elif module_id not in rows:
                state.report_unusable(module_id, _reading_error(state.store, module_id))
        for module_id in [module_id for module_id in rows if state.is_sound(module_id)]:
            functions += len(rows[module_id].names)
            _report_fault(state, rows[module_id])
            _record_content(state, rows[module_id], present[module_id])
    return checked - len(state.unusable), {"functions": functions}


def _record_content(state: CheckState, row: Row, status: os.stat_result) -> None:
    """Add the functions, the imports, the index entries and the stamp of a module to the state."""
    for names, relation in ((row.names, REALIZES), (row.imports, IMPORTS)):
        for name in names:
            state.names.add(relation_key(name, relation, row.module_id))
    for name, offset in row.indexed():
        state.indexed.add(entry_start(name, row.module_id, offset))
    state.stamps.write(row.module_id + Stamp.packed(status))


def _report_fault(state: CheckState, row: Row) -> None:
    """Report a module if it is not used because one of its makers has a known fault."""
    fault = known_faults.fault_of(row.platform.made_by()) if known_faults.FAULTS else ""
    if fault:
        path = state.store.module_path(row.module_id)
        state.report("maker", row.module_id.hex(), f"{path} is not used: {fault}; run prune to remove the module", note=True)


def _reading_error(store: Store, module_id: bytes) -> Exception:
    """Read the records of an unusable module, and return the exception that this raises."""
    try:
        with ModuleSections(store, module_id) as reader:
            list(iterate_frames(reader.records()))
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        return error
    return FormatError("the records cannot be decoded")


def check_content(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that modules match their digests and signatures, and that their images match their records. Add the link types to `state`.

    Damaged and unreadable modules are reported to `state`. Modules that are removed meanwhile are skipped.

    Return the number of modules, and their total size in bytes for the report.
    """
    size = 0
    state.types = types = SortedItems()

    def examine(module_id: bytes) -> None:
        nonlocal size
        with ModuleSections(state.store, module_id) as reader:
            size += reader.size
            payloads = _read_as_published(reader)
            is_own = not state.store.signing_key or is_signed_with(reader.footer, state.store.signing_key)
        if not is_own:
            _report_unsigned(state, module_id)
        with suppress(FormatError, KeyError):  # a malformed type is unknown
            for key, text in link_types(module_id, payloads):
                types.add(key, text)

    total = state.examine_modules(examine)
    return total, {"size": size}


def _report_unsigned(state: CheckState, module_id: bytes) -> None:
    """Report an intact module without a signature by the signing key of this cache."""
    path = state.store.module_path(module_id)
    message = f"{path} is not used by this cache: it is not signed with this cache's signing_key; other users may use it"
    state.report("unsigned", module_id.hex(), message, note=True)


def _read_as_published(reader: ModuleSections) -> dict[int, bytes]:
    """Return the records of a module by offset. Raise `FormatError` if the module does not match its digest, or the image its records."""
    require_intact(reader.footer, reader.module_id, reader.read)
    payloads = dict(iterate_frames(reader.records()))
    kind, table = _required_table(payloads.values())
    check_image(kind, reader.image(), table)
    return payloads


def _required_table(payloads: Iterable[bytes]) -> tuple[str, Table]:
    """Return the kind of a module's image, and the module table that its records require.

    Raise `FormatError` if a record is malformed, or the module record is missing.
    """
    header = None
    highest_slot = -1
    for payload in payloads:
        kind = payload[:1]
        if kind == MODULE:
            header = decode_module(payload)
        elif kind == FUNCTION:
            record = decode_function(payload)
            highest_slot = max(highest_slot, record.function, -1 if record.entry == NO_ENTRY else record.entry)
        elif kind == NEEDS:
            highest_slot = max([highest_slot, *[key for key, _, _, _ in decode_needs(payload).imports if isinstance(key, int)]])
        elif kind == GLOBAL:
            highest_slot = max(highest_slot, decode_global(payload).slot)
    if header is None:
        raise FormatError("the module has no module record")
    return header.image_kind, Table(header.key, header.abi, highest_slot + 1)


def check_code(state: CheckState) -> tuple[int, dict[str, int]]:
    """Check that the stored bitcode of each module compiles to the code in its image. Report a module to `state` if this check fails.

    Return the number of modules, and counts for the report.
    """
    from compcache.maintain.recompile import recompile

    recompiled = compared = 0

    def examine(module_id: bytes) -> None:
        nonlocal recompiled, compared
        result = recompile(state.store, module_id.hex())
        recompiled += result.translated
        compared += result.compared

    total = state.examine_modules(examine)
    return total, {"recompiled": recompiled, "compared": compared}
