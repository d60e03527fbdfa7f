"""A compiled module before its publication: the content of its file, and its rows in indexes and listings."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compcache.formats.entry import EntryRecord
    from compcache.formats.records import ModuleRecord

__all__ = ["BuiltModule"]


class BuiltModule(NamedTuple):
    """A compiled module, or a pack of entries, ready to be published or loaded from memory.

    `sections` are image, records, graph, bitcode and notes; `indexed` are the (name, record offset, requirement) of its functions and
    entries, as the index has them. `header`, `signatures` (one for each function), `imports` (func_names) and `entries`
    repeat what the records say, for listings of modules. `code` is the digest of its source (compcache.content.names).
    `others` are the same code for the other targets of the source. `defined` are the link types of its functions, `used` those that it
    expects of its imports, each with the symbol of a function that does (`compcache.hit.link_types`).
    `null` are its weak references that nothing provides; `makers` is the text of its record of makers (`compcache.formats.makers`).
    """

    sections: tuple[bytes, bytes, bytes, bytes, bytes]
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
        """Return the items of `indexed` that are functions; they come first."""
        return self.indexed[: len(self.signatures)]
