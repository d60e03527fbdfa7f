"""Takes a bundle's modules into a cache directory: all of them, checked before the first is published, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from compcache.bundles.layout import MODULE_MEMBER, opened_bundle, signature_member
from compcache.directory.module_file import ModuleFile
from compcache.directory.places import SIGNATURES
from compcache.errors import CompcacheError, FormatError, IntegrityError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.footer import FOOTER_SIZE, decode_footer, encode_container, sections_of
from compcache.formats.graph import ORIGIN, decode_notes, pack_notes
from compcache.formats.index import Stamp
from compcache.formats.manifest_writer import WholeManifest, image_flag
from compcache.formats.order import order_of
from compcache.publish import index_merge
from compcache.publish.atomic_file import publish
from compcache.publish.index_rebuild import module_order
from compcache.publish.root import prepare_root
from compcache.store import Store

if TYPE_CHECKING:
    from compcache.bundles.layout import Bundle
    from compcache.signing.keys import PublicKey

__all__ = ["import_bundle"]

_NO_STAMP = Stamp(0, 0, 0, 0)


class _Module:
    """A checked module of a bundle: its header, its functions as the index names them, and its file here."""

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
        """Return what the module requires of a host."""
        return self.header.requirement()


def import_bundle(store: Store, path: str, trusted: tuple[PublicKey, ...], *, as_layer: BinaryIO | None = None) -> tuple[str, ...]:
    """See `Cache.import_bundle`.

    `trusted` are keys in addition to the store's. `as_layer` unpacks all modules of the open bundle into the directory of a layer, and
    leaves the check of signatures to loading.
    """
    store.require_writable(path)
    try:
        with opened_bundle(path, as_layer) as bundle:
            modules = [_checked(store, path, name, bundle) for name in bundle.names if MODULE_MEMBER.fullmatch(name)]
    except OSError as error:
        reraise_interrupt(error)
        if isinstance(error, FormatError):
            raise
        raise StorageError(f"cannot read the bundle {path}: {error.strerror or error}", path=path, errno=error.errno) from error
    keys = (*store.trusted_keys, *trusted)
    for module in () if as_layer else modules:
        _require_signature(path, module, keys)
    try:
        prepare_root(store)
        _publish(store, modules, keys)
    except OSError as error:
        reraise_interrupt(error)
        message = f"cannot store the modules of {path} in {store.root}: {error.strerror or error}"
        raise StorageError(message, path=store.root, errno=error.errno) from error
    return tuple(sorted({name for module in modules for name, *_ in module.functions}))


def _number_of(store: Store, module: _Module) -> int:
    """Return the number of the addition of a module that is here; one below all others if the module is damaged."""
    if not module.order.number:
        return 0
    try:
        with Store.open_module(store, module.module_id, leave_stamp=False) as known:
            return module_order(known).number
    except (FileNotFoundError, CompcacheError) as error:
        reraise_interrupt(error)
        return -1


def _checked(store: Store, path: str, name: str, bundle: Bundle) -> _Module:
    match = MODULE_MEMBER.fullmatch(name)
    assert match is not None
    module_id = bytes.fromhex(match[1])
    try:
        return _Module(store, module_id, bundle.module(name), bundle.read(signature_member(module_id)))
    except FormatError as error:
        raise FormatError(f"the module {match[1]} in the bundle {path} is damaged: {error}") from error


def _require_signature(path: str, module: _Module, keys: tuple[PublicKey, ...]) -> None:
    """Check that a trusted key has signed a module, if there are trusted keys or the module holds pickled values."""
    if not keys and not module.is_pickled:
        return
    if keys:
        from compcache.signing.signatures import is_signed

        if is_signed(module.signatures, keys, module.module_id, module.requirement):
            return
    why = "none of the trusted keys has signed it" if keys else "it holds pickled values, which need a signature of a trusted key"
    reason = f"{why}; nothing was imported"
    name = module.module_id.hex()
    raise IntegrityError(f"the module {name} in the bundle {path} is refused: {reason}", path=path, reason=reason)


def _publish(store: Store, modules: list[_Module], keys: tuple[PublicKey, ...]) -> None:
    """Write the modules that are missing, then add all of them to the index at once.

    Nothing is synced: without stamps, each file is checked against its digest before its first use.
    """
    entries: set[bytes] = set()
    rows = []
    requirements: set[str] = set()
    for module in modules:
        name = module.module_id.hex()
        if module.signatures:
            from compcache.signing.signatures import merged_signatures

            file_name = SIGNATURES.file_name(name)
            known = store.signatures_of(module.module_id)
            merged = merged_signatures(known, module.signatures, keys, module.module_id, module.requirement)
            publish(store.files, store.temporary, store.path(SIGNATURES, file_name), [merged], sync=False)
        path = store.module_path(module.module_id)
        if not Store.exists(store, module.module_id) or _number_of(store, module) < module.order.number:
            publish(store.files, store.temporary, path, module.parts, sync=False)
        file = ModuleFile(store.files, path, module.module_id)
        flags = image_flag(module.header.image_kind)
        file.describe(*module.sizes, host.target_id(module.requirement), flags, module.header.key)
        rows.append(store.entry_of(file, _NO_STAMP, len(module.indexed)).encode())
        entries.update(index_merge.entries_of(module.indexed, module.module_id, module.order))
        requirements.update([needs for _, _, needs in module.indexed])
    level = index_merge.segment_level(len(modules)) if modules else 0
    greatest = max([module.order.number for module in modules], default=0)
    index_merge.publish_segment(store.index, level, sorted(entries), sorted(rows), requirements, greatest)
    store.index.refresh()
