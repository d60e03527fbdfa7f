"""What the store does with files that no stamp vouches for, or that are damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache import container, host
from compcache import files as file_ops
from compcache.errors import CacheWarning, FormatError, IntegrityError
from compcache.manifest import IMAGE_OBJECT, IMAGE_SHARED, decode_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.index import ModuleEntry
    from compcache.store import ModuleFile, Store

__all__ = ["quarantine", "recover_index", "verify_module", "warn"]

_CHUNK = 1 << 20


def verify_module(store: Store, module: ModuleFile, status: os.stat_result, *, leave_stamp: bool) -> None:
    """Check all that a stamp vouches for, and leave a stamp for the next one who opens the file.

    Raises:
        FormatError: the file is not what it was published as.
    """
    footer = module.footer()
    if footer.module_id != module.module_id:
        raise FormatError("the file holds another module than its name says")
    if store.signing_key and not container.is_signed_with(footer, store.signing_key):
        raise FormatError("it does not carry the signature of this cache's key")
    if store.verify:
        content = _chunks(module, footer.content)
        actual = container.module_digest(content, footer.image, footer.records, footer.graph, footer.bitcode)
        if actual != footer.module_id:
            raise FormatError("its content does not have the digest that it was published with")
    module.describe(footer.image, footer.records, bytes(8), 0, bytes(16))
    record = decode_module(module.read_record(0))
    flags = IMAGE_OBJECT if record.image_kind == "object" else IMAGE_SHARED
    platform = record.triple if record.abi == host.ABI_VERSION else f"abi{record.abi}"
    target = host.target_id(platform, record.features)
    module.describe(footer.image, footer.records, target, flags, record.key)
    if store.verify and leave_stamp and not store.readonly:
        _leave_stamp(store, store.entry_of(module, status))


def _chunks(module: ModuleFile, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _CHUNK):
        yield module.read(offset, min(_CHUNK, size - offset))


def _leave_stamp(store: Store, entry: ModuleEntry) -> None:
    from compcache.publishing import merge_additions

    try:
        store.index.add((), entry)
        merge_additions(store)
    except OSError:
        return  # the next one verifies again


def quarantine(store: Store, path: str, reason: str) -> IntegrityError:
    """See `Store.quarantine`."""
    message = f"{path} is damaged: {reason}"
    if not store.readonly:
        target = store.path("quarantine", f"{os.path.basename(path)}.{file_ops.unique_name()}")
        try:
            file_ops.make_directories(store.files, os.path.dirname(target))
            store.files.rename(path, target)
            store.stats.count("corrupt")
            message += f"; it was moved to {target}"
        except OSError:
            message += "; it could not be moved away"
    warn(message)
    return IntegrityError(message, path=path, reason=reason)


def recover_index(store: Store) -> None:
    """Rebuild an index that is damaged or was deleted, where that can be done."""
    damaged = dict(store.index.damaged)
    if damaged:
        names = ", ".join(sorted(damaged))
        warn(f"the index of {store.root} is damaged ({names}: {next(iter(damaged.values()))}); rebuilding it")
    if store.readonly or not any(True for _ in store.module_ids()):
        return
    from compcache.rebuild import rebuild_index

    try:
        rebuild_index(store)
    except OSError as error:
        warn(f"the index of {store.root} cannot be rebuilt: {error}")


def warn(message: str) -> None:
    """Issue a `CacheWarning`."""
    import warnings

    warnings.warn(message, CacheWarning, stacklevel=4)
