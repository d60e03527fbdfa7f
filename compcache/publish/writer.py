"""Publishes modules and small files atomically (the store's miss path)."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import name_key
from compcache.directory.module_file import ModuleFile
from compcache.directory.places import MODULES, SIGNATURES
from compcache.errors import FormatError, IncompatibleTargetError, IntegrityError, StorageError
from compcache.formats.footer import encode_container, module_digest
from compcache.formats.graph import decode_notes, pack_notes
from compcache.formats.host import target_id
from compcache.formats.known_faults import fault_of
from compcache.formats.makers import read_makers
from compcache.formats.manifest import SUSPECT, read_frame
from compcache.formats.manifest_writer import image_flag
from compcache.formats.order import Order, order_of, with_number
from compcache.formats.records import decode_module
from compcache.interrupts import reraise_interrupt
from compcache.publish import index_merge
from compcache.publish.atomic_file import publish, publish_all
from compcache.publish.numbering import assign_numbers, note_number, noted_numbers
from compcache.publish.root import prepare_root
from compcache.store import Store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from compcache.directory.places import Place
    from compcache.files import Files
    from compcache.formats.built_module import BuiltModule, Sections
    from compcache.formats.index import ModuleEntry
    from compcache.formats.makers import Maker
    from compcache.formats.manifest_writer import WholeManifest
    from compcache.publish.numbering import LookUps, Noted

    Addition = tuple[list[tuple[str, int, str]], ModuleEntry, Order]

__all__ = [
    "Publication", "keep_in_memory", "publication_of", "publish_additions", "publish_file", "publish_modules", "sign_module",
]  # fmt: skip


class Publication(NamedTuple):
    """The fields of a `BuiltModule` that are published in a module file and its index entries."""

    sections: Sections
    indexed: Sequence[tuple[str, int, str]]
    target: bytes
    flags: int
    key: bytes


def publication_of(sections: Sections, manifest: WholeManifest) -> Publication:
    """Return the publication of a module that exists. `manifest` has its decoded records. Raise `FormatError` for a damaged record."""
    header = manifest.header
    return Publication(sections, manifest.indexed(), target_id(header.requirement()), image_flag(header.image_kind), header.key)


def publish_modules(store: Store, modules: Sequence[BuiltModule | Publication], *, sign: bool = True) -> list[bytes]:
    """Publish modules and their index entries. The files are synced together, and one segment indexes them.

    An existing module with the same digest is not written again. With `sign`, all modules are signed with the store's publish key, if there
    is one. Pass False for modules that another host has compiled.

    Returns:
        The module_ids.

    Raises:
        StorageError: the modules could not be stored. The index is unchanged. Some of the files may exist.
        FormatError: the notes or a record of a module are damaged.
        MissingPackageError: the modules must be signed, and PyNaCl is not installed.
    """
    drafts = [_make_draft(store, module, order_of(decode_notes(module.sections.notes))) for module in modules]
    _publish_drafts(store, drafts, noted_numbers(store) if any(draft.order.number for draft in drafts) else [], sign=sign)
    return [draft.module_id for draft in drafts]


def publish_additions(
    store: Store, additions: Sequence[Sequence[BuiltModule]], *, sign: bool = True, look_ups: LookUps | None = None
) -> tuple[list[list[tuple[bytes, BuiltModule]]], frozenset[bytes]]:
    """Publish additions in order, like `publish_modules`. An addition is one module for one or more targets.

    An addition that is not the newest of its plain names receives a number, and is written even if its module exists.

    `look_ups` is the parameter of `assign_numbers`.

    Returns:
        For each addition, its module_ids with the published modules; and the module_ids of the files that were written.

    Raises:
        StorageError: a maker of a module has a known fault, or the modules could not be stored.
        FormatError, MissingPackageError: see `publish_modules`.
    """
    store.require_writable(store.directory(MODULES))
    _require_sound(store, chain.from_iterable(additions))
    noted = noted_numbers(store)
    modules_with_ids = [[(_module_id_of(module), module) for module in modules] for modules in additions]
    groups = [
        [
            (_make_draft(store, module, order, module_id, is_newest=number is not None), module)
            for module_id, module, order in _number_modules(group, number)
        ]
        for group, number in zip(modules_with_ids, assign_numbers(store, list(map(dict, modules_with_ids)), noted, look_ups), strict=True)
    ]
    written = _publish_drafts(store, [draft for group in groups for draft, _ in group], noted, sign=sign)
    return [[(draft.module_id, module) for draft, module in group] for group in groups], written


def _publish_drafts(store: Store, drafts: Sequence[_Draft], noted: Noted, *, sign: bool) -> frozenset[bytes]:
    """Publish modules and their index entries, and return the ids of the written files.

    See `publish_modules` for the exceptions, `_publish_files` for `sign`, and `note_number` for `noted`.
    """
    path = store.module_path(drafts[0].module_id) if len(drafts) == 1 else store.directory(MODULES)
    store.require_writable(path)
    try:
        prepare_root(store)
        number = max([draft.order.number for draft in drafts], default=0)
        note_number(store, number, noted, [draft.module_id for draft in drafts if draft.order.number])
        additions, written = _publish_files(store, {draft.module_id: draft for draft in drafts}, sign=sign)
    except OSError as error:
        reraise_interrupt(error)
        message = f"cannot store {_modules_text(len(drafts))} in {store.root}: {error.strerror or error}"
        raise StorageError(message, path=path, errno=error.errno) from error
    _publish_index(store, additions)
    return written


class _Draft(NamedTuple):
    """A module to publish, with its file content and its addition number. `is_newest` says that the number was just assigned."""

    module: BuiltModule | Publication
    module_id: bytes
    parts: list[bytes]
    order: Order
    is_newest: bool


def _module_id_of(module: BuiltModule) -> bytes:
    """Return the module_id of a module, the digest of all sections except the notes."""
    content = module.sections[:4]
    return module_digest(content, *map(len, content))


def _make_draft(
    store: Store, module: BuiltModule | Publication, order: Order, module_id: bytes = b"", *, is_newest: bool = False
) -> _Draft:
    """Return a module with its id and the bytes of its file. Without `module_id`, the id is the digest of the content.

    `is_newest` says that the number in `order` was just assigned.
    """
    return _Draft(module, *encode_container(*module.sections, store.signing_key, module_id), order, is_newest)


def _number_modules(group: Iterable[tuple[bytes, BuiltModule]], number: int | None) -> Iterator[tuple[bytes, BuiltModule, Order]]:
    """Yield the modules of an addition with their ids and orders. `number`, if any, is added to the notes, which the ids do not cover.

    Raise `FormatError` if notes are damaged.
    """
    for module_id, module in group:
        notes = decode_notes(module.sections.notes)
        if number is not None:
            notes = with_number(notes, number)
            module = module.with_notes(pack_notes(notes))  # noqa: PLW2901 - the same with a number
        yield module_id, module, order_of(notes)


def _modules_text(count: int) -> str:
    """Return a number of modules for a message."""
    return "a module" if count == 1 else f"{count} modules"


def _publish_files(store: Store, drafts: Mapping[bytes, _Draft], *, sign: bool) -> tuple[list[Addition], frozenset[bytes]]:
    """Publish the missing module files. Return the additions that the index lacks, and the module_ids of the new files.

    A module that a layer has and lists is not published, so that the index lists only modules in the directory.

    With `sign`, all modules are signed with the publish key, if the store has one. Raise `OSError` if a file could not be written. See
    `sign_module` for other exceptions.
    """
    if sign and store.publish_key is not None:
        for module_id, draft in drafts.items():
            sign_module(store, module_id, draft.module.sections.records, draft.module.key)
    statuses: dict[bytes, os.stat_result] = {}
    orders: dict[bytes, Order] = {}
    missing: list[bytes] = []
    for module_id, draft in drafts.items():
        existing = None if draft.is_newest else _find_existing(store, module_id, elsewhere=not draft.order.number)
        if existing is not None and existing[0] == store.module_path(module_id):
            _, statuses[module_id], orders[module_id] = existing
        elif existing is None or not all(_has_entry(store, name, module_id) for name, *_ in draft.module.indexed[:1]):
            missing.append(module_id)
    unindexed = [
        module_id
        for module_id, status in statuses.items()
        if not _is_indexed(store, module_id, status, drafts[module_id].module.indexed, orders[module_id].number)
    ]
    contents = [(store.module_path(module_id), drafts[module_id].parts) for module_id in missing]
    statuses.update(zip(missing, publish_all(store.files, store.temporary, contents), strict=True))
    added = [(drafts[module_id], statuses[module_id], orders.get(module_id)) for module_id in (*unindexed, *missing)]
    return [_make_addition(store, *addition) for addition in added], frozenset(missing)


def _read_makers(module: BuiltModule | Publication) -> Iterator[Maker]:
    """Yield the makers of a module: `fault_of` reads none while it knows no faults. Raise `FormatError` if a record is damaged."""
    records, key = module.sections.records, module.key
    yield from read_makers(lambda at: read_frame(lambda first, size: records[first : first + size], at, len(records), key), len(records))


def _require_sound(store: Store, modules: Iterable[BuiltModule]) -> None:
    """Raise `StorageError` if a maker of the modules has a known fault, because readers would not use such modules."""
    for module in modules:
        fault = fault_of(_read_makers(module))
        if fault:
            name = _module_id_of(module).hex()
            raise StorageError(f"module {name} was not stored in {store.root}: {fault}; install another version", path=store.root)


def _make_addition(store: Store, draft: _Draft, status: os.stat_result, order: Order | None) -> Addition:
    """Return the index entries of a written module: functions, module and order. Exception: see `_read_makers`."""
    module = draft.module
    file = ModuleFile(store.files, store.module_path(draft.module_id), draft.module_id)
    flags = SUSPECT if fault_of(_read_makers(module)) else module.flags
    file.describe(len(module.sections.image), len(module.sections.records), module.target, flags, module.key)
    return list(module.indexed), store.entry_of(file, status, len(module.indexed)), order or draft.order


def sign_module(store: Store, module_id: bytes, records: bytes, key: bytes) -> None:
    """Sign a module with the store's publish key, and store the signature. Call this before the module becomes visible.

    Raise `OSError` if the signature could not be written, or `FormatError` if the first of the `records` is damaged. See `add_signature`
    for another exception.
    """
    from compcache.signing.signatures import add_signature

    assert store.publish_key is not None
    header = decode_module(read_frame(lambda at, size: records[at : at + size], 0, len(records), key))
    name = SIGNATURES.file_name(module_id.hex())
    stored = store.signatures_of(module_id)
    content = add_signature(stored, store.publish_key, store.trusted_keys, module_id, header.requirement())
    if content != stored:
        publish(store.files, store.temporary, store.path(SIGNATURES, name), [content])


def _publish_index(store: Store, additions: list[Addition]) -> None:
    """Publish the index entries of modules, whose files exist, in one segment. Raise `StorageError` if the index could not be written."""
    if not additions:
        return
    try:
        index_merge.add_all(store.index, additions)
    except OSError as error:
        reraise_interrupt(error)
        message = (
            f"cannot index {_modules_text(len(additions))} in {store.root} ({error.strerror or error}): run 'compcache check --repair'"
        )
        raise StorageError(message, path=store.index.directory, errno=error.errno) from error


def _find_existing(store: Store, module_id: bytes, *, elsewhere: bool) -> tuple[str, os.stat_result, Order] | None:
    """Return the path, the status and the order of a stored, intact module, or None. With `elsewhere`, layers are searched too.

    The result is None if there is no such module, the module is damaged or for other hosts, a layer that may have it cannot be read, or
    this process holds it in memory. Raise `StorageError` if the file exists in this directory, but cannot be read.
    """
    if store.holds_in_memory(module_id):
        return None  # the file may be missing
    try:
        with (store.open_module if elsewhere else partial(Store.open_module, store))(module_id, leave_stamp=False) as module:
            footer = module.footer()
            notes = decode_notes(module.read(footer.content, footer.notes))
            return module.path, module.status(), order_of(notes)
    except (FileNotFoundError, FormatError, IntegrityError, IncompatibleTargetError) as error:
        reraise_interrupt(error)
        return None
    except StorageError as error:
        if error.path == store.module_path(module_id):
            raise
        return None  # a layer that cannot be read may have it


def _has_entry(store: Store, name: str, module_id: bytes) -> bool:
    """Return whether an index, of the directory or of a layer, has an entry for a name in a module."""
    return any(listed_id == module_id for _, _, listed_id, *_ in store.find_numbered(name))


def _is_indexed(store: Store, module_id: bytes, status: os.stat_result, indexed: Sequence[tuple[str, int, str]], number: int) -> bool:
    """Refresh the index. Return whether it has the stamp of a file's status, and the module's entries with this addition number."""
    index = store.index
    index.refresh()
    if not any(True for _ in index.verified(module_id, status)):
        return False
    if not indexed:
        return True
    name, first_offset, _ = indexed[0]  # all entries of an addition are in one segment, so checking the first one is enough
    return any(
        (order, listed_id, offset) == (number, module_id, first_offset)
        for order, _, listed_id, offset, _ in index.find_numbered(name_key(name))
    )


def publish_file(store: Store, place: Place, file_name: str, data: bytes, *, sync: bool = True) -> str:
    """Publish a small file that is not a module, and return its path. See `atomic_file.publish` for `sync`.

    Raise `StorageError` if the file could not be written.
    """
    path = store.path(place, file_name)
    store.require_writable(path)
    try:
        prepare_root(store)
        publish(store.files, store.temporary, path, [data], sync=sync)
    except OSError as error:
        reraise_interrupt(error)
        raise StorageError(f"cannot write {path}: {error.strerror or error}", path=path, errno=error.errno) from error
    return path


def keep_in_memory(store: Store, built: BuiltModule | Publication) -> bytes:
    """Keep a module that could not be published in the store's memory, and return its module_id."""
    module_id, parts = encode_container(*built.sections, store.signing_key)
    module = MemoryFile(store.files, "", module_id, b"".join(parts))
    module.describe(len(built.sections.image), len(built.sections.records), built.target, built.flags, built.key)
    store.hold_in_memory(module, built.indexed)
    return module_id


class MemoryFile(ModuleFile):
    """A module in memory, with the interface of a module file. A descriptor is open only while the image is mapped."""

    __slots__ = ("_content",)

    def __init__(self, files: Files, path: str, module_id: bytes, content: bytes) -> None:
        super().__init__(files, path or f"<module {module_id.hex()} in memory>", module_id)
        self._content = content
        self.size = len(content)

    def read_record(self, offset: int) -> bytes:
        """See `ModuleFile`."""
        return read_frame(lambda at, size: self.read(self.image + at, size), offset, self.records, self.key)

    def read(self, offset: int, size: int) -> bytes:
        """See `ModuleFile`."""
        return self._content[offset : offset + size]
