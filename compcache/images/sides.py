"""The operations of a kind of images, as types: for loading, and for making."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from compcache.images.kinds import Table

__all__ = ["ImageFile", "LoadSide", "MakeSide"]


class ImageFile(Protocol):
    """The parts of an open module file that a kind needs. `image` is the size in bytes of the image, which is at the start of the file."""

    path: str
    key: bytes
    image: int

    def read(self, offset: int, size: int, /) -> bytes:
        """Return bytes of the file."""

    def read_record(self, offset: int, /) -> bytes:
        """Return the payload of a record."""


class LoadSide(Protocol):
    """The operations of a kind for hits, and for checks of a cache."""

    def load(self, runtime: Any, file: ImageFile) -> Any:
        """Return the image, an object of the native runtime. Raises `OSError`, `ValueError` or `CompcacheError` if it cannot be loaded."""

    def check(self, image: bytes, table: Table) -> None:
        """Raise `FormatError` if the bytes are not an image of this kind, or lack symbols that the records name."""


class MakeSide(Protocol):
    """The operations of a kind that run with LLVM."""

    #: How images of this kind are loaded, in words.
    LOADED: str

    def requires(self, image: bytes) -> str:
        """Return the C library that an image needs: kind and least version, as in ``glibc 2.14``; empty if it needs none."""

    def is_comparable(self, obj: bytes) -> bool:
        """Return whether the image from an object of LLVM contains the object's machine code."""
