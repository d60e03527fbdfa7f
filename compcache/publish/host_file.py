"""LLVM's description of this host, which is stored in the cache directory until the host's next boot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache.digest import digest
from compcache.directory.places import HOSTS
from compcache.errors import StorageError
from compcache.formats.host_file import HostFile, encode_host
from compcache.formats.records import version_numbers
from compcache.interrupts import suppress
from compcache.publish.writer import publish_file
from compcache.targets.host_probe import Host, probe_host

if TYPE_CHECKING:
    from compcache.formats.host import Processor
    from compcache.store import Store

__all__ = ["describe_and_store_host", "query_host"]

#: How many bytes of a library's file are read to identify the library. An ELF file has its build id there.
_HEAD = 4096

#: LLVM's answers about this host, by the processor's identity. All cache directories of the process share them.
_probed: dict[str, tuple[str, str, str]] = {}


def _probe_once(processor: Processor) -> Host:
    """Return LLVM's description of this host. LLVM is queried once per process, if the processor has an identity.

    Raise `MissingPackageError` if LLVM is not installed.
    """
    if processor.identity not in _probed:
        host = probe_host(processor)
        if not processor.identity:  # without an identity, no later look-up can tell that the processor is the same
            return host
        _probed[processor.identity] = host.cpu, host.features, host.adjustments
    return Host(*_probed[processor.identity], processor)


def describe_and_store_host(store: Store) -> Host:
    """Return LLVM's description of this host. Store it if it ranks above the stored one (`_rank_of_description`).

    Raise `MissingPackageError` if LLVM is not installed.
    """
    host = _probe_once(store.processor())
    from compcache.build.codegen import llvm_version

    _, stored = store.host_file()
    described = HostFile(host.cpu, llvm_version(), host.features, _identify_library())
    if stored is None or _rank_of_description(stored) < _rank_of_description(described):
        _write_host_file(store, described)
    return host


def _rank_of_description(host: HostFile) -> tuple[tuple[int, ...], bool]:
    """Return a key by which the description of the latest LLVM is the greatest, preferably one that names LLVM's library."""
    return version_numbers(host.llvm_version), bool(host.library)


def query_host(store: Store) -> HostFile:
    """Return the installed LLVM's description of this host, without storing it.

    If the same library of LLVM has stored a description since the last boot, that one is returned, and LLVM, which takes 40 MiB, is not
    loaded.

    Raise `MissingPackageError` if LLVM is not installed.
    """
    _, stored = store.host_file()
    library = _identify_library()
    if stored is not None and library and stored.library == library:
        return stored
    host = _probe_once(store.processor())
    from compcache.build.codegen import llvm_version

    return HostFile(host.cpu, llvm_version(), host.features, library)


def _identify_library() -> str:
    """Return a digest that identifies llvmlite's library file, without loading it. Return "" if not exactly one file is found."""
    from glob import escape, glob
    from importlib.util import find_spec

    with suppress(OSError, ValueError):
        spec = find_spec("llvmlite")
        directories = (spec and spec.submodule_search_locations) or ()
        (path,) = (path for directory in directories for path in glob(f"{escape(directory)}/binding/*llvmlite.*"))
        with open(path, "rb") as file:
            return digest([file.read(_HEAD), os.fstat(file.fileno()).st_size.to_bytes(8, "little")]).hex()
    return ""


def _write_host_file(store: Store, host: HostFile) -> None:
    """Write the file that describes this host, unless the cache is read-only or the host has no name for it. Failures are ignored."""
    name, _ = store.host_file()
    if name and not store.readonly:
        try:
            publish_file(store, HOSTS, name, encode_host(host, name, store.signing_key), sync=False)
        except StorageError:
            return  # the next process tries again
