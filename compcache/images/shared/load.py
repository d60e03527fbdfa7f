"""Loads shared objects from a copy.

The native runtime maps them out of the module's file (`hit/native/images.c`), so that a hit imports nothing. Three cases remain for this
file: this process has mapped the file already, its file system forbids mapping code, or another host can take mapped pages away
    (`hit/native/places.c`).
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
    """Describe how images below a directory, which may not exist yet, are loaded into memory. `maps_files` is that of `Loader`."""
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
