"""Modules in memory: modules that could not be published, and modules that were read completely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.directory.module_file import ModuleFile
from compcache.formats.manifest import read_frame

if TYPE_CHECKING:
    from compcache.files import Files

__all__ = ["MemoryFile"]


class MemoryFile(ModuleFile):
    """A module in memory, with the interface of a module file. A descriptor is open only while the image is mapped."""

    __slots__ = ("_content",)

    def __init__(self, files: Files, path: str, module_id: bytes, content: bytes) -> None:
        super().__init__(files, path or f"<module {module_id.hex()} in memory>", module_id)
        self._content = content
        self.size = len(content)

    def read_record(self, offset: int) -> bytes:
        """See `ModuleFile`."""
        return read_frame(lambda at, size: self.read(self.image + at, size), offset, self.records, self.key)

    def read(self, offset: int, size: int) -> bytes:
        """See `ModuleFile`."""
        return self._content[offset : offset + size]
