"""What is kept of this host in the cache directory until its next boot: LLVM's name for it, and the fastest linker."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from compcache.errors import StorageError
from compcache.formats.host_file import HostFile, encode_host
from compcache.formats.records import version_numbers
from compcache.images.linkers.choose import choose_linker, recall_linker
from compcache.images.linkers.find import find_linkers
from compcache.publish.writer import publish_file
from compcache.store import HOSTS
from compcache.targets.host_probe import probe_host

if TYPE_CHECKING:
    from compcache.formats.host import Processor
    from compcache.images.linkers.find import Linker
    from compcache.store import Store
    from compcache.targets.host_probe import Host

__all__ = ["describe_host", "linker_for", "remembered_linker"]


@cache
def _probe_once(identity: str, processor: Processor) -> Host:  # noqa: ARG001 - what the answer depends on
    """This host, for all cache directories of the process."""
    return probe_host(processor)


def describe_host(store: Store, *, keep: bool = True) -> Host:
    """This host, as LLVM describes it. With `keep` its name is kept, unless a newer LLVM has named it.

    Raises:
        MissingPackageError: there is no LLVM.
    """
    processor = store.processor()
    found = _probe_once(processor.identity, processor)
    if not keep:
        return found
    from compcache.build.codegen import llvm_version

    _, known = store.host_file()
    if known is None or version_numbers(known.llvm_version) < version_numbers(llvm_version()):
        _write(store, HostFile(found.cpu, llvm_version(), known.linker if known else ""))
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
    _, known = store.host_file()
    linker, note = choose_linker(candidates, known.linker if known else "", obj)
    if known is not None and note != known.linker:
        _write(store, HostFile(known.cpu, known.llvm_version, note))
    return linker


def remembered_linker(store: Store) -> Linker | None:
    """The linker that `linker_for` returns without timing any; None if it would time them or finds none."""
    candidates = find_linkers()
    _, known = store.host_file()
    return candidates[0] if len(candidates) == 1 else recall_linker(candidates, known.linker if known else "")


def _write(store: Store, host: HostFile) -> None:
    """Replace the file; a failure is ignored."""
    name, _ = store.host_file()
    if name and not store.readonly:
        try:
            publish_file(store, HOSTS, name, encode_host(host, name, store.signing_key), sync=False)
        except StorageError:
            return  # the next process asks again
