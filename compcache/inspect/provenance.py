"""The origin of a stored module, from its file, its signatures and its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import MissingPackageError
from compcache.formats.footer import is_signed_with
from compcache.formats.graph import ORIGIN, SOURCE_DIGESTS
from compcache.formats.makers import read_makers
from compcache.formats.order import order_of
from compcache.formats.records import decode_module
from compcache.inspect.descriptions import Provenance, Signer
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.module_reader import read_notes

if TYPE_CHECKING:
    from compcache.directory.module_file import ModuleFile
    from compcache.store import Store

__all__ = ["provenance"]


def provenance(store: Store, module: ModuleFile) -> Provenance:
    """Return the origin of an open module. Raise `FormatError` if a record is damaged, or `StorageError` if the file cannot be read."""
    notes = read_notes(module)
    holder = next((layer for layer in store.layers if module.path.startswith(f"{layer.root}/")), store)
    added, owner = _read_time_and_owner(store, module)
    return Provenance(
        module_id=module.module_id.hex(),
        makers=read_makers(module.read_record, module.records),
        digests={name: str(notes[name]) for name in SOURCE_DIGESTS if name in notes},
        compiled=float(notes.get("created", 0.0)),
        added=added,
        owner=owner,
        origin=str(notes.get(ORIGIN, "compiled")),
        layer="" if holder is store else holder.source,
        order=order_of(notes).number,
        signers=_check_signers(store, holder, module),
        keyed_digest=_keyed_digest_status(store, module),
    )


def _read_time_and_owner(store: Store, module: ModuleFile) -> tuple[float, str]:
    """Return the time when the module file was written, and the name or numeric id of its owner.

    Return 0.0 and "" for a module in memory, and if the status cannot be read.
    """
    if store.holds_in_memory(module.module_id):
        return 0.0, ""
    try:
        status = module.status()
    except OSError as error:
        reraise_interrupt(error)
        return 0.0, ""
    owner = str(status.st_uid)
    with suppress(ImportError, KeyError):
        import pwd

        owner = pwd.getpwuid(status.st_uid).pw_name
    return status.st_mtime, owner


def _check_signers(store: Store, holder: Store, module: ModuleFile) -> tuple[Signer, ...]:
    """Return the name and the result for each key that a module's signature file names; () without signatures.

    The result is "trusted", "wrong", "unknown" for a key that this cache does not have, or "unchecked" without PyNaCl.

    Raise `FormatError` if the module record is malformed.
    """
    from compcache.signing.signatures import is_signed, signers

    content = holder.signatures_of(module.module_id)
    names = dict.fromkeys(signers(content))
    if not names:
        return ()
    requirement = decode_module(module.read_record(0)).requirement()

    def status_of(name: str) -> str:
        """Check the signatures under a key's name, and return the result. See `is_signed` for the exception."""
        own = [store.publish_key.public()] if store.publish_key is not None and store.publish_key.name == name else []
        keys = [*own, *[key for key in store.trusted_keys if key.name == name]]
        if not keys:
            return "unknown"
        return "trusted" if is_signed(content, keys, module.module_id, requirement) else "wrong"

    try:
        return tuple([Signer(name, status_of(name)) for name in names])
    except MissingPackageError:  # PyNaCl
        return tuple([Signer(name, "unchecked") for name in names])


def _keyed_digest_status(store: Store, module: ModuleFile) -> str:
    """Return "own" for a keyed digest by this cache's signing key, "other" for another key, and "" for a module without a keyed digest.

    Raise `FormatError` if the file has no intact footer, or `StorageError` if the file cannot be read.
    """
    footer = module.footer()
    if not any(footer.mac):
        return ""
    return "own" if store.signing_key and is_signed_with(footer, store.signing_key) else "other"
