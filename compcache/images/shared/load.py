"""Loads shared objects from a copy in memory.

The native runtime usually maps an image out of the module's file (`hit/native/images.c`), without importing this file. Three cases need a
copy: this process has mapped the file already, the file system forbids mapping code, or another host can take mapped pages away
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

__all__ = ["check", "describe_loading", "load"]


def load(runtime: Any, file: ImageFile) -> Any:
    """Copy the image of an open module file to memory, and map the copy (`LoadSide.load`). Raise `OSError` if there is no room for it."""
    copy = anonymous_file(file.read(0, file.image))
    return runtime.map_image(copy.number, os.fsencode(file.path), file.key)


def describe_loading(runtime: Any, directory: str, maps_files: int) -> str:
    """Describe how images below a directory, which need not exist, are loaded into memory. Raise `OSError` if it cannot be examined.

    `maps_files` has the meaning of `Loader`'s parameter: 0 for copies, 1 for mapped files, otherwise the file system decides.
    """
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    opened = Files().open_owned(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name, is_mapped = runtime.file_system(opened.number)
    if maps_files in (0, 1):
        is_mapped, name = bool(maps_files), f"{name}; set by COMPCACHE_MAP_FILES"
    return f"mapped from their files ({name})" if is_mapped else f"copied to memory, then mapped ({name})"


def check(image: bytes, table: Table) -> None:
    """Raise `FormatError` unless the bytes are an ELF file with the module table (`LoadSide.check`)."""
    from compcache.images.elf.parts import is_elf

    if not is_elf(image):
        raise FormatError("the module's image is not an ELF file")
    require_table(image, table)
