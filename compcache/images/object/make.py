"""Relocatable objects as images: checks which modules can have one, and finds its requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompileError
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import has_fixed_code, undefined_symbols
from compcache.images.platform_symbols import needed_libc
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KIND", "LOADED", "is_comparable", "require_no_linker", "requires"]

#: The kind's name in module records.
KIND = "object"
LOADED = "objects through ORC"
_SHOWN = 5


def require_no_linker(needs_linker: Sequence[str]) -> None:
    """Check that a module does not need the dynamic linker, because objects are loaded without it.

    Raise `CompileError` if `needs_linker`, the descriptions of features that need it, is not empty.
    """
    if needs_linker:
        raise CompileError(
            f"the module cannot be stored on this platform, whose images are objects, because it requires a shared object for: "
            f"{join_first(needs_linker, _SHOWN)}; leave these parts out, or load this code into the process as a library"
        )


def requires(image: bytes) -> str:
    """Return the C library that an object needs (`MakeSide.requires`), or "" if the object is not an ELF file."""
    return needed_libc(undefined_symbols(image)) if is_elf(image) else ""


def is_comparable(obj: bytes) -> bool:
    """Return whether LLVM's object can be compared with the image (`MakeSide.is_comparable`)."""
    return is_elf(obj) and has_fixed_code(obj)
