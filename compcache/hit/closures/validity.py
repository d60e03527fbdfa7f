"""Decides whether a linked closure is valid.

Its image has code of several modules, its parts, and must equal what an ordinary load would bind.

A closure is valid if this cache would use all its parts: they exist, are intact and signed if keys are required, and have no maker or
LLVM that the cache rejects. Also, each plain name that was bound at link time would be bound to the same module now. A closure that
is not valid is ignored. The decision is made once for each state of the index, and stored for other processes.
"""

from __future__ import annotations

from compcache.digest import DIGEST_SIZE, digest, key_suffix, mac
from compcache.directory.places import CLOSURES
from compcache.errors import CompcacheError, FormatError
from compcache.formats.manifest import FRAME
from compcache.hit.closures import HEAD, MAGIC, SEAL_SIZE, keep_sealed, read_sealed
from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from compcache.directory.module_file import ModuleFile
    from compcache.formats.entry import EntryRecord
    from compcache.hit.loader import Loader
    from compcache.store import Store

__all__ = ["linked_entry", "remove_results", "split_ids", "valid_parts"]


def valid_parts(loader: Loader, module_id: bytes, state: bytes) -> tuple[tuple[bytes, ...], int] | None:
    """Return the parts of a valid linked closure, and how many of the first parts the closure contains whole. Return None if it is invalid.

    `state` is the state of the index for which the result is looked up and stored for other processes.
    """
    store = loader.store
    name = _file_name(store, module_id)
    stored = _read_result(store, name, state) if store.has_closures() else None
    if stored is None:
        parts = _check_parts(loader, module_id)
        _write_result(store, name, module_id, state, parts)
        return parts
    return stored[0]


def _file_name(store: Store, module_id: bytes) -> str:
    """Return the name of the file that records a closure's validity for this processor, these keys and these known faults."""
    rules = mac(b"linked", store.mac_key) if store.mac_key else b""
    identity = [module_id, b"linked", rules, store.processor().identity.encode()]
    return CLOSURES.file_name(digest(identity).hex() + key_suffix(store.stamp_key))


def split_ids(joined: bytes) -> tuple[bytes, ...]:
    """Return the module_ids of a closure's parts, which its file has joined."""
    return tuple([joined[start : start + DIGEST_SIZE] for start in range(0, len(joined), DIGEST_SIZE)])


def _read_result(store: Store, name: str, state: bytes) -> tuple[tuple[tuple[bytes, ...], int] | None] | None:
    """Return the result stored for this state of the index in a tuple; None if none is stored. An invalid closure has the result None."""
    content = read_sealed(store, name)
    if content is None:
        return None
    _, stored_state, is_valid_closure, homes = HEAD.unpack_from(content)
    if stored_state != state:
        return None
    result = (split_ids(content[HEAD.size :]), homes) if is_valid_closure else None
    return (result,)


def _write_result(store: Store, name: str, module_id: bytes, state: bytes, result: tuple[tuple[bytes, ...], int] | None) -> None:
    """Store the result for other processes, unless the cache is read-only or must not store closures. A failure is ignored."""
    if not store.readonly and store.has_closures():
        parts, homes = result or ((), 0)
        keep_sealed(store, name, HEAD.pack(module_id, state, result is not None, homes) + b"".join(parts))


def remove_results(store: Store, gone: Container[bytes]) -> None:
    """Remove the stored results for closures in `gone`, unreadable files, and files of former versions. Failures to remove are ignored."""
    content_start = len(MAGIC) + SEAL_SIZE
    for name in store.names(CLOSURES):
        data = store.read_file(CLOSURES, name)
        if data is None or not data.startswith(MAGIC) or data[content_start : content_start + DIGEST_SIZE] in gone:
            with suppress(OSError):
                store.files.unlink(store.path(CLOSURES, name))


def linked_entry(file: ModuleFile) -> EntryRecord:
    """Return the entry that describes a linked closure.

    Raise `FormatError` if the module is not a linked closure, or is damaged, or `StorageError` if the module cannot be read.
    """
    from compcache.formats.entry import ENTRY, decode_entry
    from compcache.formats.linked import KIND

    offset = 0
    while offset + FRAME.size <= file.records:
        payload = file.read_record(offset)
        if payload[:1] == ENTRY:
            entry = decode_entry(payload)
            if entry.kind == KIND:
                return entry
        offset += FRAME.size + len(payload)
    raise FormatError("the module is not a linked closure")


def _check_parts(loader: Loader, module_id: bytes) -> tuple[tuple[bytes, ...], int] | None:
    """Return the result of `valid_parts` for a closure whose result is not stored."""
    from compcache.formats.linked import decode_closure

    store = loader.store
    try:
        with store.open_module(module_id) as file:
            loader.require_usable(file)
            entry = linked_entry(file)
        for part in entry.requires:
            with store.open_module(part) as file:
                loader.require_usable(file)
        closure = decode_closure(entry.data)
        holds = all(next(iter(store.find(name)), (b"", 0))[0] == entry.requires[number] for name, number in closure.bindings.items())
    except (CompcacheError, OSError, IndexError) as error:
        reraise_interrupt(error)
        return None
    return (entry.requires, closure.homes) if holds else None
