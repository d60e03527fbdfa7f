"""Stores facts about this host in the cache directory, once per boot: LLVM's description and the fastest linker."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from compcache.errors import StorageError
from compcache.formats.host import decode_host, decode_linker, encode_host
from compcache.hit.runtime import load_runtime
from compcache.images.linkers.choose import choose_linker, recall_linker
from compcache.images.linkers.find import find_linkers
from compcache.publish.writer import publish_file
from compcache.store import HOSTS
from compcache.targets.host_probe import probe_host
from compcache.targets.processor import read_host

if TYPE_CHECKING:
    from compcache.formats.host import Host
    from compcache.images.linkers.find import Linker
    from compcache.store import Store

__all__ = ["linker_for", "probe_and_remember", "remembered_linker"]


@cache
def _probe_once() -> Host:
    """This host, for all cache directories of the process."""
    return probe_host()


def probe_and_remember(store: Store) -> Host:
    """Probe this host, and store the result in the cache directory where that is writable.

    Without llvmlite the processor is asked instead, by each process: that takes no longer than reading a file.
    """
    try:
        found = _probe_once()
    except ImportError:
        runtime = load_runtime()
        return read_host(runtime.processor(), runtime.xsave_variants())
    _write(store, found)
    return found


def linker_for(store: Store, obj: bytes) -> Linker | None:
    """The linker for an object; None if no linker was found.

    The one that the environment names, or the only one; else the one that starts fastest, which is then stored.

    Raises:
        LinkerError: the environment names a linker that cannot be run.
    """
    candidates = find_linkers()
    if len(candidates) < 2:  # noqa: PLR2004 - nothing to choose
        return next(iter(candidates), None)
    host, known = _read(store)
    linker, note = choose_linker(candidates, known, obj)
    if note != known and host is not None:
        _write(store, host, note)
    return linker


def remembered_linker(store: Store) -> Linker | None:
    """The linker that `linker_for` returns without timing any; None if it would time them or finds none."""
    candidates = find_linkers()
    return candidates[0] if len(candidates) == 1 else recall_linker(candidates, _read(store)[1])


def _read(store: Store) -> tuple[Host | None, str]:
    """The stored host and the note on its linker."""
    name = store.host_file()
    data = store.read_file(HOSTS, name) if name else None
    if not data or not name:
        return None, ""
    return decode_host(data, name, store.signing_key), decode_linker(data, name, store.signing_key)


def _write(store: Store, host: Host, linker: str = "") -> None:
    """Replace the file; a failure is ignored."""
    name = store.host_file()
    if name and not store.readonly:
        try:
            publish_file(store, HOSTS, name, encode_host(host, name, store.signing_key, linker), sync=False)
        except StorageError:
            return  # the next process probes again
