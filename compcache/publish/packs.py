"""Packs: module files that contain only entries of data (miss path).

A pack contains the entries of one transaction. Packs are merged together with the segments of the index, so that there are never more
than a few. A merge drops replaced entries, and entries whose required modules are gone. A process with an older index does not find
the file that was merged, and reads the index again.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from compcache.digest import KEY_SIZE, digest
from compcache.errors import CompcacheError, FormatError
from compcache.formats import host
from compcache.formats.built_module import BuiltModule, Sections
from compcache.formats.entry import PACK, PACK_FLAG, EntryRecord, encode_entry, index_name, may_be_read
from compcache.formats.graph import encode_graph, encode_notes
from compcache.formats.index import MODULE
from compcache.formats.manifest_writer import ManifestWriter, WholeManifest, encode_module
from compcache.formats.records import ModuleRecord, decode_module
from compcache.formats.table import all_entries
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.open_segments import readable_segments
from compcache.publish.removal import remove_file
from compcache.publish.writer import publish_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from compcache.formats.index import Segment
    from compcache.store import Store

__all__ = ["clean_packs", "encode_pack", "entries_of", "latest_entries", "merge_packs", "packs_in", "stored_packs"]


def encode_pack(entries: Iterable[EntryRecord]) -> BuiltModule:
    """Encode entries as a pack. Of entries with the same kind and name, the pack contains only the latest."""
    ordered = latest_entries(entries)
    payloads = [encode_entry(entry) for entry in ordered]
    key = digest(payloads, size=KEY_SIZE, person=b"compcache-pack")
    header = ModuleRecord(key, PACK, host.platform_name(), "", ("",), "", "", "", "", "", host.ABI_VERSION)
    writer = ManifestWriter()
    writer.add(encode_module(header))
    requirement = header.requirement()
    indexed = [
        (index_name(entry.kind, entry.name), writer.add(payload), requirement) for entry, payload in zip(ordered, payloads, strict=True)
    ]
    sections = Sections(b"", writer.content(), encode_graph(()), b"", encode_notes(0.0, None, {}))
    return BuiltModule(sections, tuple(indexed), host.target_id(requirement), PACK_FLAG, key, 0.0, header, entries=tuple(ordered))


def packs_in(segments: Iterable[Segment]) -> tuple[bytes, ...]:
    """Return the module_ids of packs in index segments. Raise `FormatError` for a damaged segment, or `OSError` if one cannot be read."""
    entries = map(MODULE.unpack, chain.from_iterable(all_entries(segment.modules) for segment in segments))
    return tuple(dict.fromkeys(module_id for module_id, *_, flags, _, _, _ in entries if flags == PACK_FLAG))


def stored_packs(store: Store) -> frozenset[bytes]:
    """Return the module_ids of the packs in the current index; none if the index cannot be read. The next look-up then rebuilds it."""
    with suppress(FormatError, OSError):
        return frozenset(packs_in(readable_segments(store.index)))
    return frozenset()


def entries_of(store: Store, pack: bytes) -> list[EntryRecord] | None:
    """Return the readable entries of a pack, or None if the pack cannot be read or is not trusted."""
    with suppress(FileNotFoundError, CompcacheError), store.open_module(pack, leave_stamp=False) as file:
        entries = WholeManifest(file.read(file.image, file.records)).entries()
        return [record for _, record in entries if may_be_read(record.kind, elsewhere=file.elsewhere)]
    return None


def merge_packs(store: Store, segments: Iterable[Segment]) -> set[bytes]:
    """Merge the packs of segments that will be merged, and return the module_ids of the removed packs: none after an error."""
    with suppress(CompcacheError, OSError):  # merging the segments finds out which segment is damaged
        packs = packs_in(segments)
        return _merge_live_entries(store, packs, store.exists) if len(packs) > 1 else set()
    return set()


def clean_packs(store: Store, segments: Iterable[Segment], gone: Container[bytes]) -> set[bytes]:
    """Rewrite each pack if at least half of its entries require removed modules.

    Return the module_ids of the packs that were removed. `gone` has the module_ids of the modules that were just removed.

    Raises:
        FormatError: a segment is damaged.
        OSError: a segment cannot be read.
        StorageError: the new pack could not be stored.
    """
    packs = packs_in(segments)

    def is_present(module_id: bytes) -> bool:
        """Return whether a module exists and was not just removed."""
        return module_id not in gone and store.exists(module_id)

    removed: set[bytes] = set()
    for pack in packs:
        entries = entries_of(store, pack)
        if entries is not None and 2 * sum(all(map(is_present, entry.requires)) for entry in entries) <= len(entries):
            removed |= _merge_live_entries(store, (pack,), is_present)
    return removed


def _merge_live_entries(store: Store, packs: Iterable[bytes], is_present: Callable[[bytes], bool]) -> set[bytes]:
    """Publish the live entries of packs as one pack, and remove the merged packs. Return the module_ids of the removed packs.

    Signed and unsigned entries stay in two files, because a signature identifies their writer. Packs of other users, and packs for which
    `_has_own_signature` returns None, are not changed.

    Raise `StorageError` if a pack could not be stored. See `_has_own_signature` for another exception.
    """
    removed_packs: set[bytes] = set()
    groups: dict[bool, dict[bytes, list[EntryRecord]]] = {}
    for pack in packs:
        is_signed_here = _has_own_signature(store, pack)
        entries = entries_of(store, pack) if is_signed_here is not None else None
        if is_signed_here is not None and entries is not None:
            groups.setdefault(is_signed_here, {})[pack] = entries
    for is_signed_here, contents in groups.items():
        live = list(_live_entries(store, contents, is_present))
        new_packs = publish_modules(store, [encode_pack(live)], sign=is_signed_here) if live else []
        for pack in contents.keys() - new_packs:
            try:
                remove_file(store, pack)
            except CompcacheError:
                continue  # another user's file: it stays, and contains nothing new
            removed_packs.add(pack)
    return removed_packs


def _has_own_signature(store: Store, pack: bytes) -> bool | None:
    """Return True if a pack has only the signature of this store's publish key, False if it has no signature, otherwise None.

    The result is also None if the pack cannot be read, or has a MAC and this store has no `signing_key`. See `is_signed` for the exception.
    """
    try:
        content = store.signatures_of(pack)
        with store.open_module(pack, leave_stamp=False) as file:
            if any(file.footer().mac) and not store.signing_key:
                return None
            if not content:
                return False
            requirement = decode_module(file.read_record(0)).requirement()
    except (FileNotFoundError, CompcacheError) as error:
        reraise_interrupt(error)
        return None
    if store.publish_key is None:
        return None
    from compcache.signing.signatures import is_signed, signers

    return True if len(signers(content)) == 1 and is_signed(content, (store.publish_key.public(),), pack, requirement) else None


def _live_entries(store: Store, contents: dict[bytes, list[EntryRecord]], is_present: Callable[[bytes], bool]) -> Iterator[EntryRecord]:
    """Yield the latest entries in these packs. A removed entry, and an entry of a missing module, is left out or becomes a mark of removal.

    The mark is needed if other packs have the entry's name, because they may have an earlier entry.
    """
    for record in latest_entries(chain.from_iterable(contents.values())):
        if not record.gone and all(map(is_present, record.requires)):
            yield record
        elif any(pack not in contents for pack, _ in store.find(index_name(record.kind, record.name))):
            yield EntryRecord(record.kind, record.name, record.sequence, (), b"", gone=True)


def latest_entries(entries: Iterable[EntryRecord]) -> list[EntryRecord]:
    """Return the latest entry of each kind and name, sorted by kind and name."""
    latest = {(entry.kind, entry.name): entry for entry in sorted(entries, key=lambda entry: entry.order)}
    return [latest[key] for key in sorted(latest)]
