"""Shared objects in a load: mapped out of a copy.

The native runtime maps them out of the module's file (`hit/native/images.c`), so that a hit imports nothing. Here is what remains: a file
that this process has mapped already, and one on a file system that no code may be mapped from.
"""

from __future__ import annotations

import os

from compcache.errors import FormatError
from compcache.images.anonymous_file import anonymous_file
from compcache.images.kinds import require_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.images.kinds import Table
    from compcache.images.sides import ImageFile

__all__ = ["check", "load"]


def load(runtime: Any, file: ImageFile) -> Any:
    """See `LoadSide.load`."""
    copy = anonymous_file(file.read(0, file.image))
    return runtime.map_image(copy.number, os.fsencode(file.path), file.key)


def check(image: bytes, table: Table) -> None:
    """See `LoadSide.check`."""
    from compcache.images.elf.parts import is_elf

    if not is_elf(image):
        raise FormatError("its image is not an ELF file")
    require_table(image, table)
