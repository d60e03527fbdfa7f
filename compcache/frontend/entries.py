"""Entries: bytes that a front end stores with its code, by kind and name."""

from __future__ import annotations

from compcache.facade import func_name_of
from compcache.settings import REMOTE_VARIABLE, are_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.cache import Cache
    from compcache.formats.entry import EntryRecord
    from compcache.identity import Identity
    from compcache.miss.entries import PendingEntries

__all__ = ["allows_pickle", "get_entry", "put_entry", "remove_entry", "require_kind_allowed", "write_entries"]


def put_entry(cache: Cache, name_or_identity: str | Identity, data: bytes, *, kind: str, requires: Iterable[str] = ()) -> str:
    """Store an entry: bytes that belong to cached code. The entry replaces any entry of the same kind and name.

    This cache object can read the entry immediately. Other cache objects can read the entry after it is written to disk, with other entries
    in one file. Entries are written when an entry follows more than a second later, by `write_entries`, when the cache is closed, and when
    the process exits. If several processes store the same name, the last entry wins.

    Args:
        cache: the cache that stores the entry.
        name_or_identity: the name of the entry, for example the func_name of the function that it describes.
        data: the bytes.
        kind: the kind of the data. Each kind has its own names. The kind of data that will be unpickled begins with ``pickle:``. Only
            caches opened with allow_pickle=True read such entries, and entries from elsewhere need a trusted signature.
        requires: the module_ids of the modules that the entry needs. If one of them is removed, the entry is removed too.

    Returns:
        An id: 32 hexadecimal digits, equal for equal kinds, names, data and modules.

    Raises:
        StorageError: the cache is read-only or closed, or waiting entries could not be written.
        PickleNotAllowedError: the kind begins with ``pickle:``, and the cache was opened without allow_pickle=True.
        InvalidNameError: the name or the kind cannot be used.
        TypeError: the data is not bytes.
        ValueError: the data has more than 32 MiB, or a module_id is not valid.
    """
    from compcache.build.source import check_entry

    name = _entry_name(cache, name_or_identity, kind)
    ids = tuple(requires)
    if ids:  # few entries require modules
        from compcache.usage.listings import parse_module_id
    modules = [parse_module_id(module_id) for module_id in ids]
    cache._store.require_writable()
    return _pending_entries(cache).put(kind, name, check_entry(kind, data), modules)


def get_entry(cache: Cache, name_or_identity: str | Identity, kind: str) -> bytes | None:
    """Return the data of an entry that `put_entry` or a module (`ModuleSource.entries`) has stored; None if there is no such entry.

    If several modules with entries realize a function, the entry of one module is returned; `find` distinguishes them.

    Args:
        cache: an open cache.
        name_or_identity: the name of the entry.
        kind: the kind of its data.

    Raises:
        InvalidNameError: the name or the kind cannot be used.
        PickleNotAllowedError: entries of the kind are unpickled, and the cache was opened without allow_pickle=True.
        SettingError, ValueError: the settings or the arguments for remote stores are not valid.
    """
    name = _entry_name(cache, name_or_identity, kind)
    if cache._plain._files is not None:
        from compcache.hit.plain_entries import read_entry

        answer = read_entry(cache._plain, kind, name)
        if answer is not None and (answer[0] is not None or not are_set((REMOTE_VARIABLE,))):
            return answer[0]
    record = cache._entries.find(kind, name) if cache._entries is not None else None
    record = record or cache._store.read_entry(kind, name) or _read_remote_entry(cache, kind, name)
    return None if record is None or record.gone else record.data


def _read_remote_entry(cache: Cache, kind: str, name: str) -> EntryRecord | None:
    """Return an entry from the remote store, or a local entry whose modules the remote store may have; None if neither exists.

    The request has the time limit of a compilation. See `Session.remote_url` for the exceptions.
    """
    session = cache._session()
    if not session.remote_url():
        return None
    from compcache.formats.entry import index_name
    from compcache.miss.compile_once import fetch_soon

    record = cache._store.read_entry(kind, name, alone=False)
    if record is None and fetch_soon(session, index_name(kind, name)):
        record = cache._store.read_entry(kind, name, alone=False)
    return record


def remove_entry(cache: Cache, name_or_identity: str | Identity, kind: str) -> None:
    """Remove an entry. Removing a missing entry has no effect. The removal is written to disk like an entry of `put_entry`.

    Args:
        cache: an open cache.
        name_or_identity: the name of the entry.
        kind: the kind of its data.

    Raises:
        StorageError, ...: see `put_entry`.
    """
    name = _entry_name(cache, name_or_identity, kind)
    cache._store.require_writable()
    _pending_entries(cache).put(kind, name, b"", is_removal=True)


def write_entries(cache: Cache) -> None:
    """Write waiting entries to disk, for example before a process ends without exit handlers, or passes work to another process.

    Args:
        cache: an open cache.

    Raises:
        StorageError: the entries could not be written. They remain waiting.
    """
    cache._require_open()
    if cache._entries is not None:
        cache._entries.flush()


def allows_pickle(cache: Cache) -> bool:
    """Return whether the cache was opened with allow_pickle=True.

    Args:
        cache: an open cache.
    """
    return cache._plain.allow_pickle


def _entry_name(cache: Cache, name_or_identity: str | Identity, kind: str) -> str:
    """Return the name of an entry.

    Raise `StorageError` if the cache is closed, `InvalidNameError` for an invalid name or kind, or `PickleNotAllowedError` for a kind that
    may not be unpickled.
    """
    cache._require_open()
    name = func_name_of(name_or_identity)
    for text, description in ((name, "name of an entry"), (kind, "kind of entries")):
        if not isinstance(text, str) or not text or "\0" in text:
            from compcache.build.source import check_name

            check_name(text, description)
    require_kind_allowed(cache, kind)
    return name


def require_kind_allowed(cache: Cache, kind: str) -> None:
    """Raise `PickleNotAllowedError` if entries of a kind are pickled and the cache does not allow that; `TypeError` if it is not a str."""
    if not isinstance(kind, str):
        raise TypeError(f"the kind of an entry must be a str, not {type(kind).__name__}")
    if allows_pickle(cache):
        return
    from compcache.formats.entry import PICKLED

    if kind.startswith(PICKLED):
        from compcache.errors import PickleNotAllowedError

        reason = f"entries of the kind {kind!r} are unpickled, but the cache was opened without allow_pickle=True: open it with this option"
        raise PickleNotAllowedError(reason, reason=reason)


def _pending_entries(cache: Cache) -> PendingEntries:
    """Return the front-end entries of a cache that are not yet written."""
    if cache._entries is None:
        from compcache.miss.entries import PendingEntries

        cache._entries = PendingEntries(cache._session())
    return cache._entries
