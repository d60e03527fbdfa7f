"""Shared objects in a load: mapped out of a copy.

The native runtime maps them out of the module's file (`hit/native/images.c`), so that a hit imports nothing. Here is what remains: a file
that this process has mapped already, one on a file system that no code may be mapped from, and one whose mapped pages another host
can take away (`hit/native/places.c`).
"""

from __future__ import annotations

import os

from compcache.errors import FormatError
from compcache.files import Files
from compcache.images.anonymous_file import anonymous_file
from compcache.images.kinds import require_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.images.kinds import Table
    from compcache.images.sides import ImageFile

__all__ = ["check", "load", "way_into_memory"]


def load(runtime: Any, file: ImageFile) -> Any:
    """See `LoadSide.load`."""
    copy = anonymous_file(file.read(0, file.image))
    return runtime.map_image(copy.number, os.fsencode(file.path), file.key)


def way_into_memory(runtime: Any, directory: str, maps_files: int) -> str:
    """Describe how images below a directory, which need not exist yet, are loaded into memory. `maps_files` is that of `Loader`."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    place = Files().open_owned(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name, is_mapped = runtime.file_system(place.number)
    if maps_files in (0, 1):
        is_mapped, name = bool(maps_files), f"{name}; COMPCACHE_MAP_FILES says so"
    return f"mapped out of their files ({name})" if is_mapped else f"copied to memory, then mapped ({name})"


def check(image: bytes, table: Table) -> None:
    """See `LoadSide.check`."""
    from compcache.images.elf.parts import is_elf

    if not is_elf(image):
        raise FormatError("its image is not an ELF file")
    require_table(image, table)
