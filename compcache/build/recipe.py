"""The recipe of a module: the inputs, apart from the bitcode, for compiling the module again for another CPU.

The bitcode section of a module file consists of two zlib streams: the LLVM bitcode of the optimized module, from which the image was made,
and the recipe. A recipe is a msgpack array: ``[version, level, exports, slots, storage, libraries, code]``.

* Each export is ``[func_name, symbol, signature or nil, nogil, shown or nil, description of a symbol that cannot be called]``.
* Slots are ``{symbol of the import or of its slot: func_name}``.
* Storage is ``{global variable of the source: offset of its record}``.
* Code is the bitcode of the module before it was optimized, if the source names its targets; otherwise it is empty. Code that is vectorized
  for one CPU does not use the wider registers of another CPU.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build.exports import Export
from compcache.errors import FormatError
from compcache.formats.deflate import deflate
from compcache.formats.manifest_writer import PICKLED_GLOBAL
from compcache.formats.records import decode_global
from compcache.globals.definition import Storage
from compcache.interrupts import as_format_error
from compcache.messagepack import pack, unpack
from compcache.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Recipe", "StoredDefinition", "read_recipe", "write_recipe"]

_VERSION = 2
_MAX_SIZE = 1 << 31


class StoredDefinition:
    """A global's definition as its record contains it, for writing the record again."""

    def __init__(self, kind: str, payload: bytes) -> None:
        self.kind = kind
        self._payload = payload

    def encode(self) -> bytes:
        """Return the stored payload of the definition."""
        return self._payload


class Recipe(NamedTuple):
    """The inputs for rebuilding an image.

    `code` is bitcode. `optimized` is whether the code is optimized already. `storage` is as in `compcache.build.slots.Resolution`.
    `libraries` are the names of libraries in the source. `data` has the values of large variables, by section
    (`compcache.build.large_data`). The image contains these values.
    """

    code: bytes
    optimized: bool
    level: int
    exports: tuple[Export, ...]
    slots: dict[str, str]
    storage: dict[str, tuple[Any, Storage]]
    libraries: tuple[str, ...]
    data: Mapping[str, bytes] = {}

    def is_pickled(self) -> bool:
        """Return whether loading a global variable of the module requires unpickling."""
        return any(definition.kind == PICKLED_GLOBAL for definition, _ in self.storage.values())


def write_recipe(
    level: int, exports: tuple[Export, ...], slots: Mapping[str, str], storage: Mapping[str, int], libraries: Iterable[str], code: bytes
) -> bytes:
    """Return the second stream of a bitcode section: the compressed recipe. `storage` has the offsets of the globals' records."""
    rows = [
        [export.name, export.symbol, export.signature and export.signature.text(), export.nogil, export.shown, export.link_only]
        for export in exports
    ]
    packed = pack([_VERSION, level, rows, dict(slots), dict(storage), list(libraries), code])
    return deflate(packed)


def read_recipe(section: bytes, read_record: Callable[[int], bytes]) -> Recipe:
    """Return the recipe in a bitcode section. `read_record` returns the record at an offset.

    Raise `FormatError` if the section has no recipe, a recipe of another version, or is damaged.
    """
    with as_format_error("the module's recipe cannot be read"):
        stream = zlib.decompressobj()
        optimized = stream.decompress(section, _MAX_SIZE)
        packed = zlib.decompressobj().decompress(stream.unused_data, _MAX_SIZE)
        version, level, rows, slots, offsets, libraries, code = unpack(packed)
        if version != _VERSION:
            raise FormatError(f"the module's recipe has version {version}, but this release reads version {_VERSION}: add the module again")
        exports = tuple([
            Export(name, symbol, None if signature is None else Signature.parse(signature), bool(nogil), shown, link_only)
            for name, symbol, signature, nogil, shown, link_only in rows
        ])  # fmt: skip
        storage = {name: _read_global(read_record(offset)) for name, offset in offsets.items()}
        return Recipe(code or optimized, not code, int(level), exports, dict(slots), storage, tuple(libraries))


def _read_global(payload: bytes) -> Any:
    """Return the definition and the storage in the payload of a global's record. Raise `FormatError` if the payload is malformed."""
    record = decode_global(payload)
    return StoredDefinition(record.kind, record.payload), Storage(record.form, record.size)
