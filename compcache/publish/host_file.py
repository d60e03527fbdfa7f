"""Stores LLVM's description of this host in the cache directory, so that LLVM is asked once per boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import StorageError
from compcache.formats.host import Host, encode_host
from compcache.publish.writer import publish_file
from compcache.store import HOSTS
from compcache.targets.host_probe import probe_host

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["probe_and_remember"]


def probe_and_remember(store: Store) -> Host:
    """Probe this host, and store the result in the cache directory where that is writable."""
    found = probe_host()
    name = store.host_file()
    if name and not store.readonly:
        try:
            publish_file(store, HOSTS, name, encode_host(found, name, store.signing_key))
        except StorageError:
            return found  # the next process probes again
    return found
