"""Verifies modules from another cache or a remote store, and publishes them in this cache directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.directory.places import SIGNATURES
from compcache.errors import IntegrityError, PickleNotAllowedError
from compcache.formats.built_module import Sections
from compcache.formats.footer import intact_footer, is_signed_with, sections_of
from compcache.formats.graph import ORIGIN, decode_notes, pack_notes
from compcache.formats.manifest import LINKED
from compcache.formats.manifest_writer import WholeManifest
from compcache.publish.additions import merge
from compcache.publish.writer import publication_of, publish_file, publish_modules

if TYPE_CHECKING:
    from compcache.formats.footer import Footer
    from compcache.signing.keys import PublicKey
    from compcache.store import Store

__all__ = ["AcceptedModule", "AdoptedModule", "adopt_module", "require_acceptable"]


class AcceptedModule(NamedTuple):
    """The decoded parts of a module that this cache accepts.

    Attributes:
        footer: the footer of the module file.
        sections: the bytes of its image, records, graph, bitcode and notes.
        manifest: its decoded records.
    """

    footer: Footer
    sections: Sections
    manifest: WholeManifest


class AdoptedModule(NamedTuple):
    """A module that was published: its id, the names of its functions and entries of data, and the functions that it imports."""

    module_id: bytes
    names: tuple[str, ...]
    imports: tuple[str, ...]


def adopt_module(store: Store, data: bytes | memoryview, *, func_name: str, signatures: bytes) -> AdoptedModule:
    """Verify and publish the module in `data`, the bytes of a module file.

    Args:
        store: the cache directory that receives the module.
        data: the bytes of the module file. If the store has a `signing_key`, they must have its MAC.
        func_name: a function that the module must realize, or the index name of an entry of data.
        signatures: the content of the publisher's signature file for the module. If the store has trusted keys, one of them must have
            signed the module. If the store has only its own key (`publish_key`), that key must have signed the module.

    Raises:
        FormatError: the bytes are not an intact module of this version of the format.
        IntegrityError: the module does not realize `func_name`, or a required signature is missing.
        PickleNotAllowedError: a global variable is pickled, and the cache has no key to check signatures with.
        StorageError: the module could not be stored.
        MissingPackageError: a signature must be checked, and PyNaCl is not installed.
    """
    footer, sections, manifest = require_acceptable(store, data, func_name=func_name, signatures=signatures)
    keys = _accepted_keys(store)
    if signatures and keys:
        from compcache.signing.signatures import merge_signatures

        stored = store.signatures_of(footer.module_id)
        merged = merge_signatures(stored, signatures, keys, footer.module_id, manifest.header.requirement())
        publish_file(store, SIGNATURES, SIGNATURES.file_name(footer.module_id.hex()), merged)
    own_notes = pack_notes({**decode_notes(sections.notes), ORIGIN: "remote"})
    publication = publication_of(sections._replace(notes=own_notes), manifest)
    (module_id,) = publish_modules(store, [publication], sign=False)
    merge(store)
    return AdoptedModule(module_id, tuple(function for function, _, _ in publication.indexed), manifest.imports())


def _accepted_keys(store: Store) -> tuple[PublicKey, ...]:
    """Return the public keys that this cache accepts signatures from. The result is empty if no signature is required.

    A publisher without trusted keys accepts only its own signatures. It compiles all other modules itself and signs them, and so replaces
    modules that its readers would reject. Raise `MissingPackageError` if PyNaCl is needed and not installed.
    """
    if store.trusted_keys or store.publish_key is None:
        return tuple(store.trusted_keys)
    return (store.publish_key.public(),)


def require_acceptable(store: Store, data: bytes | memoryview, *, func_name: str, signatures: bytes) -> AcceptedModule:
    """Verify the bytes of a module file and return its decoded parts; publish nothing. See `adopt_module` for arguments and exceptions."""
    footer = intact_footer(data)
    name = footer.module_id.hex()
    if store.signing_key and not is_signed_with(footer, store.signing_key):
        raise IntegrityError(f"module {name} is not signed with this cache's signing_key: compile the function here", path=name)
    view: Any = data  # usually a view, of which the image is a part without a copy
    image, *other_sections = sections_of(view, footer)
    sections = Sections(image, *map(bytes, other_sections))
    manifest = WholeManifest(sections.records)
    keys = _accepted_keys(store)
    if keys:
        from compcache.signing.signatures import is_signed

        if not is_signed(signatures, keys, footer.module_id, manifest.header.requirement()):
            signer = "a key that is trusted here (trusted_keys)" if store.trusted_keys else "this cache's own key (publish_key)"
            raise IntegrityError(f"module {name} is not signed with {signer}: trust its signer, or compile the function here", path=name)
    elif manifest.is_pickled() and not store.signing_key:
        reason = "is accepted only with a trusted signature; open the cache with trusted_keys"
        raise PickleNotAllowedError(f"module {name} contains a pickled global variable and {reason}")
    if func_name not in [func for func, offset, _ in manifest.indexed() if offset < LINKED]:  # closures are not used without their parts
        raise IntegrityError(f"the remote module {name} lacks {func_name!r}, which its card names: compile the function here", path=name)
    return AcceptedModule(footer, sections, manifest)
