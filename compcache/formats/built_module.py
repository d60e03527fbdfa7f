"""A compiled module before it is published: the content of its file, and its rows in indexes and listings."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.formats.entry import EntryRecord
    from compcache.formats.records import ModuleRecord

__all__ = ["BuiltModule", "Sections"]


class Sections(NamedTuple):
    """The sections of a module file (`compcache.formats.footer`). All sections except the notes determine the module_id."""

    image: bytes
    records: bytes
    graph: bytes
    bitcode: bytes
    notes: bytes


class BuiltModule(NamedTuple):
    """A compiled module, or a pack of entries, ready to be published or loaded from memory.

    `indexed` has (name, record offset, requirement) of its functions and entries, for the index. `header`, `signatures` (one for each
    function), `imports` (func_names) and `entries` repeat the content of records, for listings of modules. `code` is the digest of the
    source (compcache.content.names). `others` are the modules for other targets of the source. `defined` has the link types of its
    functions. `used` has the link types of its imports, each mapped to a function that uses the import (`compcache.hit.link_types`). `null`
    has the weak references that stay undefined. `makers` is the text of its record of makers (`compcache.formats.makers`).
    """

    sections: Sections
    indexed: tuple[tuple[str, int, str], ...]
    target: bytes
    flags: int
    key: bytes
    seconds: float
    header: ModuleRecord
    signatures: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    code: str = ""
    others: tuple[BuiltModule, ...] = ()
    entries: tuple[EntryRecord, ...] = ()
    defined: Mapping[str, str] = MappingProxyType({})
    used: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    null: tuple[str, ...] = ()
    makers: str = ""

    @property
    def functions(self) -> tuple[tuple[str, int, str], ...]:
        """The items of `indexed` for functions. They precede the items for entries."""
        return self.indexed[: len(self.signatures)]

    def with_notes(self, notes: bytes) -> BuiltModule:
        """Return the module with other notes."""
        return self._replace(sections=self.sections._replace(notes=notes))
