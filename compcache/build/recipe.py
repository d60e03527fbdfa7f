"""The inputs for compiling a module again for another CPU, apart from the bitcode, which they follow in the file.

The bitcode section of a module file is two zlib streams, one behind the other: LLVM bitcode of the optimized module, of
which the image was made, and a recipe. A recipe is a msgpack array: ``[version, level, exports, slots, storage, code]``.
Exports are ``[func_name, symbol, signature or nil, nogil, shown or nil, what it is where nobody can call it]``; slots are
``{symbol of the import or of its slot: func_name}``; storage says for
each global variable of the source at which offset its record is; code is the bitcode of the module before it was optimized, where
the source names its targets, else nothing. Once vectorized for one CPU, code does not use the wider registers of another.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build.exports import Export
from compcache.errors import FormatError, MissingPackageError, SignatureError
from compcache.files import reraise_interrupt
from compcache.formats.deflate import deflated
from compcache.formats.manifest_writer import PICKLED_GLOBAL
from compcache.formats.records import decode_global
from compcache.globals.definition import Storage
from compcache.signature import Signature

try:
    import msgpack
except ImportError as error:
    raise MissingPackageError.of("msgpack", "compiling") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Recipe", "StoredDefinition", "read_recipe", "write_recipe"]

_VERSION = 2
_MAX_SIZE = 1 << 31


class StoredDefinition:
    """A global's definition as its record contains it: all that is needed to write records."""

    def __init__(self, kind: str, payload: bytes) -> None:
        self.kind = kind
        self._payload = payload

    def encode(self) -> bytes:
        """Return the bytes that the definition was stored as."""
        return self._payload


class Recipe(NamedTuple):
    """How to rebuild an image.

    `code` is bitcode; `optimized` says that it must not be optimized again. `storage` is as in
    `compcache.build.slots.Resolution`; `libraries` are those that the source named; `data` are values of large
    variables, by section (`compcache.build.large_data`), which are in the image.
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
        """Return whether a global variable is read by unpickling."""
        return any(definition.kind == PICKLED_GLOBAL for definition, _ in self.storage.values())


def write_recipe(
    level: int, exports: tuple[Export, ...], slots: Mapping[str, str], storage: Mapping[str, int], libraries: Iterable[str], code: bytes
) -> bytes:
    """Return the second stream of a bitcode section. `storage` has the offsets of the globals' records."""
    rows = [[e.name, e.symbol, e.signature and e.signature.text(), e.nogil, e.shown, e.link_only] for e in exports]
    packed = msgpack.packb([_VERSION, level, rows, dict(slots), dict(storage), list(libraries), code], unicode_errors="surrogatepass")
    return deflated(packed)


def read_recipe(section: bytes, read_record: Callable[[int], bytes]) -> Recipe:
    """Return the recipe in a bitcode section. `read_record` returns the record at an offset.

    Raises:
        FormatError: the section holds no recipe of this version, or it is damaged.
    """
    try:
        first = zlib.decompressobj()
        optimized = first.decompress(section, _MAX_SIZE)
        packed = zlib.decompressobj().decompress(first.unused_data, _MAX_SIZE)
        fields = msgpack.unpackb(packed, unicode_errors="surrogatepass")
        version, level, rows, slots, offsets, libraries, code = fields
        if version != _VERSION:
            raise FormatError(f"the recipe has version {version}; this release reads version {_VERSION}")
        exports = tuple([_export(*row) for row in rows])
        storage = {name: _stored(read_record(offset)) for name, offset in offsets.items()}
        return Recipe(code or optimized, not code, int(level), exports, dict(slots), storage, tuple(libraries))
    except (zlib.error, ValueError, TypeError, AttributeError, msgpack.UnpackException, SignatureError) as error:
        reraise_interrupt(error)
        raise FormatError(f"the module has no usable recipe: {error}") from error


def _export(name: str, symbol: str, signature: str | None, nogil: bool, shown: str | None, link_only: str) -> Export:
    return Export(name, symbol, None if signature is None else Signature.parse(signature), bool(nogil), shown, link_only)


def _stored(payload: bytes) -> Any:
    record = decode_global(payload)
    return StoredDefinition(record.kind, record.payload), Storage(record.form, record.size)
