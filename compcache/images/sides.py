"""The two interfaces of a kind of images: for loading images, and for making them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from compcache.images.kinds import Table

__all__ = ["ImageFile", "LoadSide", "MakeSide"]


class ImageFile(Protocol):
    """An open module file, as a kind reads it.

    `path` is the file's path. `key` is the key in its module table. `image` is the size in bytes of the image, which begins the file.
    """

    path: str
    key: bytes
    image: int

    def read(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes of the file at `offset`."""

    def read_record(self, offset: int, /) -> bytes:
        """Return the payload of the record at an offset of the manifest."""


class LoadSide(Protocol):
    """The operations of a kind for hits, and for checks of a cache."""

    def load(self, runtime: Any, file: ImageFile) -> Any:
        """Map the image of a file, and return it as an object of the native runtime.

        Raises:
            OSError, ValueError, CompcacheError: the image cannot be loaded.
        """

    def check(self, image: bytes, table: Table) -> None:
        """Raise `FormatError` if the bytes are not an image of this kind, or lack symbols that the records name."""


class MakeSide(Protocol):
    """The operations of a kind that run with LLVM."""

    #: A description of how images of this kind are loaded, for people.
    LOADED: str

    def requires(self, image: bytes) -> str:
        """Return the C library that an image needs, with the minimum version, like ``glibc 2.14``, or "" if it needs none."""

    def is_comparable(self, obj: bytes) -> bool:
        """Return whether the image made from this object contains the object's machine code, so that the code can be compared."""
