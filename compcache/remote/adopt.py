"""Takes a module that comes from elsewhere (another cache, a remote store) into the directory, after it was verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import IntegrityError, PickleNotAllowedError
from compcache.formats.footer import FOOTER_SIZE, decode_footer, is_signed_with, require_intact
from compcache.formats.host import target_id
from compcache.formats.manifest import (
    FUNCTION,
    GLOBAL,
    NEEDS,
    decode_function,
    decode_global,
    decode_module,
    decode_needs,
)
from compcache.formats.manifest_writer import image_flag, iterate_frames
from compcache.publish.writer import publish_file, publish_module
from compcache.store import SIGNATURES

if TYPE_CHECKING:
    from compcache.formats.manifest import ModuleRecord
    from compcache.store import Store

__all__ = ["Adopted", "adopt_module"]

#: Kinds of globals that are read by unpickling.
_PICKLED = frozenset(("pickle", "numba"))


class Adopted(NamedTuple):
    """A module that was taken in: its id, its functions, and the functions that it imports."""

    module_id: bytes
    names: tuple[str, ...]
    imports: tuple[str, ...]


class _Content(NamedTuple):
    """The records of a module: its header, functions as the index names them, imports, and whether a global is pickled."""

    header: ModuleRecord
    functions: list[tuple[str, int, str]]
    imports: tuple[str, ...]
    is_pickled: bool


def _read(records: bytes) -> _Content:
    frames = list(iterate_frames(records))
    header = decode_module(frames[0][1] if frames else b"")
    functions, imports, is_pickled = [], dict[str, None](), False
    for offset, payload in frames[1:]:
        if payload[:1] == FUNCTION:
            record = decode_function(payload)
            functions.append((record.name, offset, header.requirement(record.features)))
        elif payload[:1] == NEEDS:
            imports.update(dict.fromkeys(function for _, function in decode_needs(payload).imports))
        elif payload[:1] == GLOBAL:
            is_pickled = is_pickled or decode_global(payload).kind in _PICKLED
    return _Content(header, functions, tuple(imports), is_pickled)


def adopt_module(store: Store, data: bytes, *, wanted: str, signatures: bytes) -> Adopted:
    """Publish the module in `data`, the bytes of a module file.

    Args:
        store: the cache directory to publish it in.
        data: the file, as another cache has it.
        wanted: a function that it must realize.
        signatures: those that its publisher keeps beside it; one of a trusted key must be right where the store has such keys.

    Raises:
        FormatError: the bytes are not an intact module of this version of the format.
        IntegrityError: the module is not the wanted one, or not signed with a key that this cache trusts.
        PickleNotAllowedError: a global variable is pickled, and the cache has no key that signatures are checked with.
        StorageError: it could not be stored.
    """
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    require_intact(footer, footer.module_id, lambda at, size: data[at : at + size])
    name = footer.module_id.hex()
    if store.signing_key and not is_signed_with(footer, store.signing_key):
        raise IntegrityError(f"module {name} does not carry the signature of this cache's key", path=name)
    sections, at = [], 0
    for size in (footer.image, footer.records, footer.graph, footer.bitcode, footer.notes):
        sections.append(data[at : at + size])
        at += size
    image, records, graph, bitcode, notes = sections
    content = _read(records)
    header = content.header
    if store.trusted_keys:
        from compcache.signing.signatures import is_signed

        if not is_signed(signatures, store.trusted_keys, footer.module_id, header.requirement()):
            raise IntegrityError(f"module {name} is not signed with a key that is trusted here (trusted_keys)", path=name)
    elif content.is_pickled and not store.signing_key:
        raise PickleNotAllowedError(
            f"module {name} holds a pickled global: such modules are taken from elsewhere only with a trusted signature"
        )
    names = tuple(function for function, _, _ in content.functions)
    if wanted not in names:
        raise IntegrityError(f"module {name} does not define {wanted!r}", path=name)
    if signatures and store.trusted_keys:
        publish_file(store, SIGNATURES, SIGNATURES.file_name(name), signatures)
    module_id = publish_module(
        store, (image, records, graph, bitcode, notes), content.functions,
        target=target_id(header.requirement()), flags=image_flag(header.image_kind), key=header.key, signs=False,
    )  # fmt: skip
    return Adopted(module_id, names, content.imports)
