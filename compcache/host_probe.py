"""Asks LLVM what this machine is (miss path: imports llvmlite)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import StorageError
from compcache.host import Host, boot_key, encode_host, host_file

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["probe_and_remember", "probe_host"]


def probe_host() -> Host:
    """The CPU name and the features of this machine in LLVM's terms."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return Host(llvm.get_host_cpu_name(), ",".join(f"+{name}" for name in sorted(features) if features[name]))


def probe_and_remember(store: Store) -> Host:
    """This machine; the answer is kept in the cache directory where that can be written."""
    found = probe_host()
    boot = boot_key(store.files)
    if boot and not store.readonly:
        try:
            store.publish_file(host_file(boot, store.signing_key), encode_host(found, store.signing_key))
        except StorageError:
            return found  # asked again by the next process
    return found
