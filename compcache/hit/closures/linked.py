"""Whether a linked closure holds: its image has code of several modules, its parts, and stands for what an ordinary load would bind.

It holds where all parts are there, are such as this cache uses (whole, signed where keys are asked for, not of a maker or an LLVM that is passed over), and where
each plain name that was bound when it was linked would be bound to the same part now. What is not so any more is passed over, as if it were not
there. That is found out once for each state of the index, and kept beside the planned closures; names of content stand for the same
whatever is added, but what they are parts of may be removed.
"""

from __future__ import annotations

from compcache.digest import digest, key_suffix, mac
from compcache.errors import CompcacheError, FormatError
from compcache.files import reraise_interrupt
from compcache.formats.entry import ENTRY, decode_entry
from compcache.formats.index import MODULE
from compcache.formats.linked import KIND, decode_bindings
from compcache.formats.manifest import FRAME
from compcache.hit.closures.planned import HEAD, MAGIC, seal
from compcache.store import CLOSURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from compcache.formats.entry import EntryRecord
    from compcache.hit.loader import Loader
    from compcache.store import ModuleFile, Store

__all__ = ["is_valid", "linked_entry"]

#: How many files of this kind and of planned closures a directory keeps.
_MOST_KEPT = 512


def is_valid(loader: Loader, module_id: bytes) -> bool:
    """Whether the linked closure that this module is holds now."""
    store = loader.store
    state = store.index.state()
    known = loader.linked.get(module_id)
    if known is None or known[0] != state:
        name = _file_name(store, module_id)
        told = _told(store, name, state) if store.has_closures() else None
        known = loader.linked[module_id] = state, _holds(loader, module_id) if told is None else told
        if told is None:
            _keep(store, name, module_id, *known)
    return known[1]


def _file_name(store: Store, module_id: bytes) -> str:
    """Where it is kept whether a closure holds for this processor, and for who asks for these keys and knows these faults."""
    rules = mac(b"linked", store.mac_key) if store.mac_key else b""
    identity = [module_id, b"linked", rules, store.processor().identity.encode()]
    return CLOSURES.file_name(digest(identity).hex() + key_suffix(store.stamp_key))


def _told(store: Store, name: str, state: bytes) -> bool | None:
    """What is kept for this state of the index; None where nothing is."""
    data = store.read_file(CLOSURES, name) or b""
    sealed, content = data[: -HEAD.size - MODULE.size], data[-HEAD.size - MODULE.size :]
    if sealed != MAGIC + seal(content, name, store.stamp_key) or len(content) != HEAD.size + MODULE.size:
        return None
    known, _, holds, _ = HEAD.unpack_from(content)
    return bool(holds) if known == state else None


def _keep(store: Store, name: str, module_id: bytes, state: bytes, holds: bool) -> None:  # noqa: FBT001 - the last field of a row
    """Keep it for the next process; a failure is harmless."""
    if store.readonly or not store.has_closures():
        return
    from compcache.publish.atomic_file import keep_file

    content = HEAD.pack(state, 1, holds, 0) + module_id.ljust(MODULE.size, b"\0")
    try:
        keep_file(store, CLOSURES, name, MAGIC + seal(content, name, store.stamp_key) + content, _MOST_KEPT)
    except (CompcacheError, OSError) as error:
        reraise_interrupt(error)


def linked_entry(file: ModuleFile) -> EntryRecord:
    """The entry that says what a linked closure is made of.

    Raises:
        FormatError: the module is none, or is damaged.
        StorageError: it cannot be read.
    """
    at = 0
    while at + FRAME.size <= file.records:
        payload = file.read_record(at)
        if payload[:1] == ENTRY:
            entry = decode_entry(payload)
            if entry.kind == KIND:
                return entry
        at += FRAME.size + len(payload)
    raise FormatError("the module is not a linked closure")


def _holds(loader: Loader, module_id: bytes) -> bool:
    store = loader.store
    try:
        with store.open_module(module_id) as file:
            loader.require_usable(file)
            entry = linked_entry(file)
        for part in entry.requires:
            with store.open_module(part) as file:
                loader.require_usable(file)
        bound = decode_bindings(entry.data)
        return all(next(iter(store.find(name)), (b"", 0))[0] == entry.requires[number] for name, number in bound.items())
    except (CompcacheError, OSError, IndexError) as error:
        reraise_interrupt(error)
        return False
