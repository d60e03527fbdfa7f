"""Which C library an image needs, and which version of it."""

from __future__ import annotations

import re

from compcache.errors import FormatError
from compcache.formats.host import this_libc
from compcache.images.elf.parts import is_elf
from compcache.images.elf.reading import dynamic_undefined, needed_versions, undefined_symbols

__all__ = ["libc_requirement"]

_GLIBC_VERSION = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)*")
#: What images refer to and no C library has: the interpreter's functions, and what linkers make.
_NOT_OF_LIBC = ("Py", "_Py", "_GLOBAL_OFFSET_TABLE_")


def libc_requirement(image: bytes) -> str:
    """The C library that an image needs: kind and least version, as in ``glibc 2.14``; empty where it needs none.

    A shared object says which versions of symbols it was bound to. What names no version needs the kind of library that
    it was made with, whose structures and calling conventions the code was written for.
    """
    if not is_elf(image):
        return ""
    try:
        undefined = set(dynamic_undefined(image))
        versions = [name for names in needed_versions(image).values() for name in names]
    except FormatError:  # a relocatable object
        undefined, versions = set(undefined_symbols(image)), []
    kind, _, _ = this_libc().partition(" ")
    numbers = [tuple(map(int, m.groups())) for m in map(_GLIBC_VERSION.fullmatch, versions) if m]
    if numbers:
        return "glibc {}.{}".format(*max(numbers))
    return kind if any(not name.startswith(_NOT_OF_LIBC) for name in undefined) else ""
