"""Relocatable objects as images: which modules can be one, and its requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompileError
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import has_fixed_code, undefined_symbols
from compcache.images.platform_symbols import needed_libc

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KIND", "LOADED", "is_comparable", "require_possible", "requires"]

#: The kind's name in module records.
KIND = "object"
LOADED = "objects through ORC"
_SHOWN = 5


def require_possible(needs_linker: Sequence[str]) -> None:
    """Refuse features that need the dynamic linker (`needs_linker`, in words) in an object, which is loaded without it.

    Raises:
        CompileError: the module has such features.
    """
    if needs_linker:
        raise CompileError(
            f"the module has {', '.join(needs_linker[:_SHOWN])}, which needs a shared object, and on this platform images are objects"
        )


def requires(image: bytes) -> str:
    """See `MakeSide.requires`."""
    return needed_libc(undefined_symbols(image)) if is_elf(image) else ""


def is_comparable(obj: bytes) -> bool:
    """See `MakeSide.is_comparable`."""
    return is_elf(obj) and has_fixed_code(obj)
