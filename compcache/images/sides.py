"""What a kind of images is asked: the two sides of it, as types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from compcache.images.kinds import Table

__all__ = ["ImageFile", "LoadSide", "MakeSide"]


class ImageFile(Protocol):
    """An open module file, as far as a kind needs it; `image` is the number of bytes of the image, which the file begins with."""

    path: str
    key: bytes
    image: int

    def read(self, offset: int, size: int, /) -> bytes:
        """Bytes of the file."""

    def read_record(self, offset: int, /) -> bytes:
        """The payload of a record."""


class LoadSide(Protocol):
    """What hits, and checks of a cache, ask of a kind."""

    def load(self, runtime: Any, file: ImageFile) -> Any:
        """The image, an object of the native runtime. Raises `OSError`, `ValueError` or `CompcacheError` where it cannot be loaded."""

    def check(self, image: bytes, table: Table) -> None:
        """Raise `FormatError` where the bytes are not an image of this kind, or lack what the records name."""


class MakeSide(Protocol):
    """What is asked of a kind where LLVM is."""

    #: How images of this kind are loaded, in words.
    LOADED: str

    def requires(self, image: bytes) -> str:
        """The C library that an image needs: kind and least version, as in ``glibc 2.14``; empty where it needs none."""

    def is_comparable(self, obj: bytes) -> bool:
        """Whether the machine code of an object that LLVM has emitted is in the image that was made of it."""
