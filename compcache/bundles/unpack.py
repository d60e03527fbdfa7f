"""Import of a bundle into a cache directory. All modules are checked before the first module is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from compcache.bundles.layout import MODULE_MEMBER, open_bundle, signature_member_name
from compcache.directory.module_file import ModuleFile
from compcache.directory.places import SIGNATURES
from compcache.errors import CompcacheError, FormatError, IntegrityError, StorageError, UnknownVersionError
from compcache.formats import host
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container, sections_of
from compcache.formats.graph import ORIGIN, decode_notes, pack_notes
from compcache.formats.index import Stamp
from compcache.formats.manifest_writer import WholeManifest, image_flag
from compcache.formats.order import order_of
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish import index_merge
from compcache.publish.atomic_file import publish
from compcache.publish.index_rebuild import read_order
from compcache.publish.root import prepare_root
from compcache.store import Store

if TYPE_CHECKING:
    from compcache.bundles.layout import Bundle
    from compcache.signing.keys import PublicKey

__all__ = ["import_bundle"]

_NO_STAMP = Stamp(0, 0, 0, 0)


class _Module:
    """A checked module of a bundle: its header, its functions in the form of the index, and the parts of its file in the cache."""

    def __init__(self, store: Store, module_id: bytes, data: Any, signatures: bytes) -> None:
        footer = decode_footer(bytes(data[-FOOTER_SIZE:]), len(data))
        sections = sections_of(data, footer)
        manifest = WholeManifest(bytes(sections[1]))
        self.signatures = signatures
        self.module_id = module_id
        self.sizes = footer.image, footer.records
        self.header = manifest.header
        self.functions = manifest.functions()
        self.indexed = manifest.indexed()
        self.is_pickled = manifest.is_pickled()
        notes = decode_notes(bytes(sections[4]))
        self.order = order_of(notes)
        _, self.parts = encode_container(*sections[:4], pack_notes({**notes, ORIGIN: "bundle"}), store.signing_key)

    @property
    def requirement(self) -> str:
        """The properties that a host must have to map the module. Its functions may require further processor features."""
        return self.header.requirement()


def import_bundle(store: Store, path: str, more_keys: tuple[PublicKey, ...], *, as_layer: BinaryIO | None = None) -> tuple[str, ...]:
    """Add the modules of a bundle to a cache directory, and return the names of their functions. See `Cache.import_bundle`.

    Args:
        store: the cache directory.
        path: the path of the bundle.
        more_keys: the keys to trust in addition to the store's trusted keys.
        as_layer: the open bundle if the directory will be used as a layer; None otherwise. Signatures in a layer are not checked here,
            because loads check them.

    Raises:
        FormatError: the file is not a bundle, or is damaged or truncated.
        IntegrityError: a module lacks a required signature. No module is imported.
        StorageError: the bundle cannot be read, or the cache directory cannot be written.
    """
    store.require_writable(path)
    try:
        with open_bundle(path, as_layer) as bundle:
            modules = [_read_module(store, path, name, bundle) for name in bundle.names if MODULE_MEMBER.fullmatch(name)]
    except OSError as error:
        reraise_interrupt(error)
        raise StorageError(
            f"cannot read the bundle {path} ({error.strerror or error}): make it readable", path=path, errno=error.errno
        ) from error
    keys = (*store.trusted_keys, *more_keys)
    for module in () if as_layer else modules:
        _require_signature(path, module, keys)
    try:
        prepare_root(store)
        _publish_modules(store, modules, keys)
    except OSError as error:
        reraise_interrupt(error)
        message = f"cannot store the modules of the bundle {path} in the cache {store.root}: {error.strerror or error}"
        raise StorageError(message, path=store.root, errno=error.errno) from error
    return tuple(sorted({name for module in modules for name, *_ in module.functions}))


def _read_addition_number(store: Store, module: _Module) -> int:
    """Return the addition number of a module's stored copy; -1 if the copy cannot be read, 0 if `module` has no addition number."""
    if not module.order.number:
        return 0
    with suppress(FileNotFoundError, CompcacheError), Store.open_module(store, module.module_id, leave_stamp=False) as stored:
        return read_order(stored).number
    return -1


def _read_module(store: Store, path: str, name: str, bundle: Bundle) -> _Module:
    """Read a module from a bundle and check its digest. Raise `FormatError` if the module is damaged, or has an unknown version."""
    match = MODULE_MEMBER.fullmatch(name)
    assert match is not None
    module_id = bytes.fromhex(match[1])
    try:
        return _Module(store, module_id, bundle.read_module(name), bundle.read(signature_member_name(module_id)))
    except UnknownVersionError as error:
        raise UnknownVersionError(f"the module {match[1]} in the bundle {path} cannot be read: {error}") from error
    except FormatError as error:
        raise FormatError(f"the module {match[1]} in the bundle {path} is damaged: {error}; export or copy the bundle again") from error


def _require_signature(path: str, module: _Module, keys: tuple[PublicKey, ...]) -> None:
    """Check that a trusted key has signed a module. Without trusted keys, only modules with pickled values require a signature.

    Raise `IntegrityError` if no trusted key has signed the module. Raise `MissingPackageError` if PyNaCl is not installed.
    """
    advice = "trust the key of its signature (compcache key trust), or have it signed by a trusted key"
    if keys:
        from compcache.signing.signatures import is_signed

        if is_signed(module.signatures, keys, module.module_id, module.requirement):
            return
        reason = f"no trusted key has signed the module, so nothing was imported: {advice}"
    elif module.is_pickled:
        reason = f"the module contains pickled values, which require a signature by a trusted key, so nothing was imported: {advice}"
    else:
        return
    name = module.module_id.hex()
    raise IntegrityError(f"the module {name} in the bundle {path} is refused: {reason}", path=path, reason=reason)


def _publish_signatures(store: Store, module: _Module, keys: tuple[PublicKey, ...]) -> None:
    """Write the signature file of a module: its stored signatures, and those in the bundle. See `merge_signatures` for `keys`.

    Raise `OSError` if the file could not be written. See `merge_signatures` for another exception.
    """
    from compcache.signing.signatures import merge_signatures

    stored_signatures = store.signatures_of(module.module_id)
    content = merge_signatures(stored_signatures, module.signatures, keys, module.module_id, module.requirement)
    path = store.path(SIGNATURES, SIGNATURES.file_name(module.module_id.hex()))
    publish(store.files, store.temporary, path, [content], sync=False)


def _publish_modules(store: Store, modules: list[_Module], keys: tuple[PublicKey, ...]) -> None:
    """Write the missing modules and the signatures, and add all modules to the index in one segment.

    The files are not synced. They have no stamps, so each file is checked against its digest before its first use.

    Raise `OSError` if a file could not be written.
    """
    Store.renew_index(store)  # a lost index is rebuilt first, because this segment would seem to be the whole index
    additions = []
    for module in modules:
        if module.signatures:
            _publish_signatures(store, module, keys)
        path = store.module_path(module.module_id)
        if not Store.exists(store, module.module_id) or _read_addition_number(store, module) < module.order.number:
            publish(store.files, store.temporary, path, module.parts, sync=False)
        file = ModuleFile(store.files, path, module.module_id)
        flags = image_flag(module.header.image_kind)
        file.describe(*module.sizes, host.target_id(module.requirement), flags, module.header.key)
        additions.append((module.indexed, store.entry_of(file, _NO_STAMP, len(module.indexed)), module.order))
    index_merge.add_all(store.index, additions)
