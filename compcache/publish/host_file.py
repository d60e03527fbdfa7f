"""LLVM's name for this host, which the cache directory keeps until the host's next boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.directory.places import HOSTS
from compcache.errors import StorageError
from compcache.formats.host_file import HostFile, encode_host
from compcache.formats.records import version_numbers
from compcache.publish.writer import publish_file
from compcache.targets.host_probe import Host, probe_host

if TYPE_CHECKING:
    from compcache.formats.host import Processor
    from compcache.store import Store

__all__ = ["describe_host"]


#: LLVM's answers about this host, by the processor's identity. All cache directories of the process share them.
_probed: dict[str, tuple[str, str, str]] = {}


def _probe_once(processor: Processor) -> Host:
    if processor.identity not in _probed:
        found = probe_host(processor)
        if not processor.identity:  # without an identity, no later look-up can tell that the processor is the same
            return found
        _probed[processor.identity] = found.cpu, found.features, found.adjustments
    return Host(*_probed[processor.identity], processor)


def describe_host(store: Store, *, keep: bool = True) -> Host:
    """Return LLVM's description of this host. With `keep` its name is stored, unless a newer LLVM has stored one.

    Raises:
        MissingPackageError: LLVM is not installed.
    """
    processor = store.processor()
    found = _probe_once(processor)
    if not keep:
        return found
    from compcache.build.codegen import llvm_version

    _, known = store.host_file()
    if known is None or version_numbers(known.llvm_version) < version_numbers(llvm_version()):
        _write_host_file(store, HostFile(found.cpu, llvm_version()))
    return found


def _write_host_file(store: Store, host: HostFile) -> None:
    """Replace the host's file. A failure is ignored."""
    name, _ = store.host_file()
    if name and not store.readonly:
        try:
            publish_file(store, HOSTS, name, encode_host(host, name, store.signing_key), sync=False)
        except StorageError:
            return  # the next process tries again
