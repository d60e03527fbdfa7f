"""The kinds of images, by their names in module records, and the modules that handle them.

A kind has two sides, each a module: one that hits use, and one that works with LLVM (`LoadSide` and `MakeSide` in
`compcache.images.sides`). Where the native runtime maps images of a kind out of the module's file, `MAPPED_IN_PLACE` in
`compcache.formats.manifest` has the kind's number as well, and hits import nothing of the kind. Modules of unknown kinds are stored,
listed, shown, pruned and passed on like all others.
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

#: The modules of a kind's two sides, by its name. They are imported on demand.
_KINDS = {
    "shared": ("compcache.images.shared.load", "compcache.images.shared.make"),
    "object": ("compcache.images.object.load", "compcache.images.object.make"),
}


class Table(Record):
    """The module table that the records of a module require of its image: its key, its ABI version, and its least number of symbols."""

    __slots__ = ("key", "abi", "symbols")
    key: bytes
    abi: int
    symbols: int


def register(kind: str, load_module: str, make_module: str) -> None:
    """Make a kind known to this process.

    Args:
        kind: its name in module records.
        load_module: the full name of the module that is its `LoadSide`.
        make_module: the full name of its `MakeSide`, which may be the same module.

    Raises:
        ValueError: another kind has the name, or it is empty.
    """
    sides = load_module, make_module
    if not kind or _KINDS.setdefault(kind, sides) != sides:
        raise ValueError(f"a kind of images needs a name of its own, not {kind!r}")


def is_mapped(kind: str) -> bool:
    """Return whether images of the kind are mapped unchanged, so that one image may have the code of several."""
    return kind == "shared"


def is_known(kind: str) -> bool:
    """Return whether this process can load images of a kind."""
    return kind in _KINDS


def require_known(header: ModuleRecord, module_id: bytes) -> None:
    """Check that this process can load images of a module's kind.

    Raises:
        IncompatibleTargetError: it cannot load them.
    """
    if not is_known(header.image_kind):
        name = module_id.hex()
        raise IncompatibleTargetError(
            f"module {name} has an image of the kind {header.image_kind!r} for {header.triple}, which this version of compcache does not load: "  # noqa: E501
            "install a version that does, or import the package that registers this kind",
            module_id=name,
        )


def load_image(runtime: Any, file: ImageFile) -> Any:
    """Return the image of an open module of a known kind. Raises the errors of `LoadSide.load`."""
    return _load_side(decode_module(file.read_record(0)).image_kind).load(runtime, file)


def check_image(kind: str, image: bytes, table: Table) -> None:
    """Check the bytes of an image. For an unknown kind, only the digest is checked.

    Raises:
        FormatError: the bytes are not of the kind, or lack symbols that the records name.
    """
    if is_known(kind):
        _load_side(kind).check(image, table)


def require_table(image: bytes, table: Table) -> None:
    """Check that an image contains the module table, unless the table has another version. Raises `FormatError`."""
    if table.abi == ABI_VERSION and not has_table(image, table.key, table.abi, table.symbols):
        raise FormatError("its image does not hold the symbols that its records name")


def _load_side(kind: str) -> LoadSide:
    side: LoadSide = import_module(_KINDS[kind][0])
    return side


def make_side(kind: str) -> MakeSide:
    """Return the side of a known kind that works with LLVM."""
    side: MakeSide = import_module(_KINDS[kind][1])
    return side
