"""The registry of image kinds, by their names in module records.

For each kind, one Python module loads images for hits, and another creates images with LLVM (`LoadSide` and `MakeSide` in
`compcache.images.sides`). If the native runtime maps images of a kind directly from module files, `MAPPED_IN_PLACE` in
`compcache.formats.manifest` also contains the kind's number, and hits import neither Python module. Cached modules of unknown kinds can be
stored, listed, shown, pruned and copied like other modules.
"""

from __future__ import annotations

from importlib import import_module

from compcache.errors import FormatError, IncompatibleTargetError
from compcache.formats.host import ABI_VERSION
from compcache.formats.module_table import has_table
from compcache.formats.records import decode_module
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.formats.records import ModuleRecord
    from compcache.images.sides import ImageFile, LoadSide, MakeSide

__all__ = ["Table", "check_image", "is_known", "is_mapped", "load_image", "make_side", "register", "require_known", "require_table"]

#: The Python modules that load and make images of a kind, by the kind's name. They are imported on demand.
_KINDS = {
    "shared": ("compcache.images.shared.load", "compcache.images.shared.make"),
    "object": ("compcache.images.object.load", "compcache.images.object.make"),
}


class Table(Record):
    """The module table that a module's records expect in its image: the key, the ABI version, and the minimum number of symbols."""

    __slots__ = ("key", "abi", "symbols")
    key: bytes
    abi: int
    symbols: int


def register(kind: str, load_module: str, make_module: str) -> None:
    """Register an image kind in this process. Registering the same kind again has no effect.

    Args:
        kind: the kind's name in module records.
        load_module: the full name of the Python module that implements `LoadSide`.
        make_module: the full name of the Python module that implements `MakeSide`; it may be the same module.

    Raises:
        ValueError: the name is empty, or is registered with other modules.
    """
    sides = load_module, make_module
    if not kind:
        raise ValueError("the name of an image kind must not be empty")
    if _KINDS.setdefault(kind, sides) != sides:
        raise ValueError(f"the image kind {kind!r} is already registered with other modules; choose another name")


def is_mapped(kind: str) -> bool:
    """Return whether images of a kind are mapped unchanged. Only such images can contain the code of several modules."""
    return kind == "shared"


def is_known(kind: str) -> bool:
    """Return whether this process can load images of a kind."""
    return kind in _KINDS


def require_known(header: ModuleRecord, module_id: bytes) -> None:
    """Check that this process can load images of a module's kind. Raise `IncompatibleTargetError` if the kind is not registered here."""
    if not is_known(header.image_kind):
        name = module_id.hex()
        raise IncompatibleTargetError(
            f"module {name} has an image of the kind {header.image_kind!r} for {header.triple}, which this version of compcache cannot "
            "load: install a newer version, or import the package that registers this kind",
            module_id=name,
        )


def load_image(runtime: Any, file: ImageFile) -> Any:
    """Load the image of an open module file, and return it as an object of the native runtime.

    Raises:
        KeyError: the kind of the image is unknown.
        OSError, ValueError, CompcacheError: the image cannot be loaded.
    """
    return _import_load_side(decode_module(file.read_record(0)).image_kind).load(runtime, file)


def check_image(kind: str, image: bytes, table: Table) -> None:
    """Check that an image is valid for its kind. Images of unknown kinds are not checked.

    Raise `FormatError` if the bytes are not an image of the kind, or lack symbols that the module's records name.
    """
    if is_known(kind):
        _import_load_side(kind).check(image, table)


def require_table(image: bytes, table: Table) -> None:
    """Raise `FormatError` if an image does not contain its module table. Tables of other ABI versions are not checked."""
    if table.abi == ABI_VERSION and not has_table(image, table.key, table.abi, table.symbols):
        raise FormatError("the module's image does not contain the symbols that its records name")


def _import_load_side(kind: str) -> LoadSide:
    """Import the module that loads images of a kind."""
    side: LoadSide = import_module(_KINDS[kind][0])
    return side


def make_side(kind: str) -> MakeSide:
    """Import and return the Python module that makes images of a kind. Raise `KeyError` if the kind is unknown."""
    side: MakeSide = import_module(_KINDS[kind][1])
    return side
