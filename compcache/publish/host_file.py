"""What LLVM says of this machine, kept in the cache directory so that it is asked once per boot."""

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
    """This machine; the answer is kept in the cache directory where that can be written."""
    found = probe_host()
    name = store.host_file()
    if name and not store.readonly:
        try:
            publish_file(store, HOSTS, name, encode_host(found, name, store.signing_key))
        except StorageError:
            return found  # asked again by the next process
    return found
