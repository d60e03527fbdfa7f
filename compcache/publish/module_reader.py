"""Reads the sections of a module file for tools, without the index, stamps and quarantine, and with few system calls.

Most sections that tools need are at the end of the file, so the end is read at once. A small module is read completely.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any, Self

from compcache.directory.module_file import ModuleFile
from compcache.errors import CompcacheError, FormatError
from compcache.files import read_at
from compcache.formats.entry import decode_entry, index_name
from compcache.formats.footer import FOOTER_SIZE, decode_footer
from compcache.formats.graph import decode_graph, decode_notes
from compcache.formats.linked import KIND, NAME
from compcache.formats.manifest import NeedsRecord, decode_needs
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.formats.entry import EntryRecord
    from compcache.formats.footer import Footer
    from compcache.formats.graph import ModuleGraph
    from compcache.store import Store

__all__ = ["ModuleSections", "linked_closures", "needs_of", "read_graph", "read_notes"]

#: The bytes at the end of a file that are read at once.
_TAIL = 1 << 13


class ModuleSections:
    """An open module file. Only the checksum of its footer was verified. `stored` is the number of bytes that it takes on disk.

    Raises:
        OSError: the file cannot be opened.
        FormatError: the file is not a module file.
    """

    __slots__ = ("_file", "_files", "_start", "_tail", "footer", "module_id", "size", "stored")

    def __init__(self, store: Store, module_id: bytes) -> None:
        self._files = store.files
        self.module_id = module_id
        self._file = ModuleFile(store.files, store.module_path(module_id), module_id)
        if not stat.S_ISREG(self._file.open(store).st_mode):
            raise FormatError("the module is not a regular file")
        self.size, self.stored = self._file.size, self._file.stored
        self._start = max(self.size - _TAIL, 0)
        self._tail: bytes = read_at(self._files, self._file.opened, self._start, self.size - self._start)
        self.footer: Footer = decode_footer(self._tail[-FOOTER_SIZE:], self.size)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at an offset in the file, or fewer at the end of the file. Raise `OSError` if the file cannot be read."""
        if offset >= self._start:
            start = offset - self._start
            return self._tail[start : start + size]
        return read_at(self._files, self._file.opened, offset, size)

    def image(self) -> bytes:
        """Return the bytes of the module's image. See `read` for the exception."""
        return self.read(0, self.footer.image)

    def records(self) -> bytes:
        """Return the encoded records. See `read` for the exception."""
        return self.read(self.footer.image, self.footer.records)

    def graph(self) -> bytes:
        """Return the encoded dependency graph. See `read` for the exception."""
        return self.read(self.footer.image + self.footer.records, self.footer.graph)

    def notes(self) -> bytes:
        """Return the encoded notes. See `read` for the exception."""
        return self.read(self.footer.content, self.footer.notes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_graph(module: ModuleFile) -> ModuleGraph:
    """Return a module's dependency graph. Raise `FormatError` if footer or graph are damaged, or `StorageError` for an unreadable file."""
    footer = module.footer()
    return decode_graph(module.read(footer.image + footer.records, footer.graph))


def needs_of(module: ModuleFile, offset: int) -> Iterator[NeedsRecord]:
    """Yield the needs record at `offset`, and all records below it, each once. Yield nothing if `offset` is 0.

    Raise `FormatError` if a record is damaged, or `StorageError` if the file cannot be read.
    """
    pending, visited = [offset], {0, offset}
    while pending and offset:
        record = decode_needs(module.read_record(pending.pop()))
        yield record
        pending += [child for child in record.children if child not in visited]
        visited.update(record.children)


def read_notes(module: ModuleFile) -> dict[str, Any]:
    """Return the notes of a module, or an empty mapping if they are damaged.

    Raise `FormatError` if the file's footer is damaged, or `StorageError` if the file cannot be read.
    """
    footer = module.footer()
    try:
        return decode_notes(module.read(footer.content, footer.notes))
    except FormatError:
        return {}


def linked_closures(store: Store) -> dict[bytes, EntryRecord]:
    """Return the describing entry of each linked closure, by the closure's module_id. Unreadable closures are left out."""
    closures = {}
    for module_id, offset in store.find_all(index_name(KIND, NAME)):
        with suppress(CompcacheError, OSError), store.open_module(module_id) as file:
            entry = decode_entry(file.read_record(offset))
            if (entry.kind, entry.name) == (KIND, NAME):
                closures[module_id] = entry
    return closures
