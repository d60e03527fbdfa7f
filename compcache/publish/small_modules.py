"""Reads small modules for the index and its lists, in one pass.

Only intact modules are read here. `compcache.publish.index_rebuild` examines all other modules, and modules that need a signature.
"""

from __future__ import annotations

import stat
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from compcache.directory.module_file import ModuleFile
from compcache.errors import FormatError
from compcache.files import read_at
from compcache.formats.entry import index_name
from compcache.formats.footer import FOOTER_SIZE, decode_footer, require_intact
from compcache.formats.graph import decode_notes
from compcache.formats.host import target_id
from compcache.formats.index import MODULE, STAMP_SIZE, Stamp
from compcache.formats.linked import mark_linked
from compcache.formats.manifest_writer import image_flag, iterate_frames
from compcache.formats.order import UNNUMBERED, Order, order_of
from compcache.formats.records import decode_module
from compcache.interrupts import suppress
from compcache.publish.atomic_file import is_settled
from compcache.publish.module_rows import KEY_AT, KEY_LENGTH, row_of_frames, seconds_in

if TYPE_CHECKING:
    import os

    from compcache.publish.module_rows import Row
    from compcache.store import Store

__all__ = ["IndexData", "read_small_module"]

#: Files of up to this many bytes are read whole.
_SMALL = 1 << 20


class IndexData(NamedTuple):
    """The data of a module for the index and its lists.

    Attributes:
        indexed: the indexed names, as (name, record offset, requirement).
        entry: the encoded module entry.
        order: the addition number and content digests.
        row: the row.
        size: the size of the module on disk in bytes.
    """

    indexed: list[tuple[str, int, str]]
    entry: bytes
    order: Order
    row: Row
    size: int


class _Header(NamedTuple):
    """Data derived from a module record without the key, in which most records differ."""

    requirement: str
    target: bytes
    flag: int
    needs: dict[bytes, str]


@lru_cache(maxsize=256)
def _decode_header(head: bytes, rest: bytes) -> _Header:
    """Return the index data in a module record. The key of the record is left out, so that modules with equal headers share the result.

    Raise `FormatError` if the record is malformed.
    """
    record = decode_module(head + bytes(KEY_LENGTH) + rest)
    required = record.requirement()
    needs = {target_id(record.requirement(text)): record.requirement(text) for text in reversed(record.features)}
    return _Header(required, target_id(required), image_flag(record.image_kind), needs)


def read_small_module(store: Store, module_id: bytes) -> IndexData | None:
    """Return the index data of a small, intact module, or None if the module must be examined further."""
    if store.mac_key or store.exposed or not store.verify:
        return None
    with suppress(OSError, FormatError, UnicodeDecodeError):
        module = ModuleFile(store.files, store.module_path(module_id), module_id)
        status = module.open(store)
        if not stat.S_ISREG(status.st_mode) or module.size > _SMALL or store.is_foreign(status):
            return None
        return _index_data(module_id, read_at(store.files, module.opened, 0, module.size), status)._replace(size=module.stored)
    return None


def _index_data(module_id: bytes, data: bytes, status: os.stat_result) -> IndexData:
    """Return the index data of a module from its bytes. Raise `FormatError` or `UnicodeDecodeError` if the module is damaged."""
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    require_intact(footer, module_id, lambda at, size: data[at : at + size])
    order, seconds = _read_notes(data[footer.content : footer.content + footer.notes])
    frames = list(iterate_frames(data[footer.image : footer.image + footer.records]))
    module_record = frames[0][1] if frames else b""
    header, key = _decode_header(module_record[:KEY_AT], module_record[KEY_AT + KEY_LENGTH :]), module_record[KEY_AT : KEY_AT + KEY_LENGTH]
    row, targets = row_of_frames(module_id, frames, seconds)
    needs = [header.needs.get(target) for target in targets]
    if None in needs:
        raise FormatError("a function refers to a requirement that its module does not have")
    functions = mark_linked(
        [(name, at, text or "") for name, at, text in zip(row.names, row.offsets, needs, strict=True)], [kind for kind, *_ in row.entries]
    )
    indexed = functions + [(index_name(kind, name), at, header.requirement) for kind, name, at, *_ in row.entries]
    stamp = Stamp.packed(status) if is_settled(status) else bytes(STAMP_SIZE)
    fields = footer.image, footer.records, header.target, header.flag, len(indexed), key, bytes(16)
    # The stamp is packed already, so it replaces the zeros of an entry without a stamp.
    entry = module_id + stamp + MODULE.pack(bytes(16), 0, 0, 0, 0, *fields)[len(module_id) + STAMP_SIZE :]
    return IndexData(indexed, entry, order, row, len(data))


def _read_notes(section: bytes) -> tuple[Order, float]:
    """Return a module's number and its compilation time. Unreadable notes give no number and no time."""
    try:
        notes = decode_notes(section)
    except FormatError:
        return UNNUMBERED, 0.0
    return order_of(notes), seconds_in(notes)
