"""Tables and kinds of global variables as tests of several folders need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.formats.table_writer import table_parts
from compcache.globals import definition

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["encode_table", "known_kinds"]


def encode_table(entries: Iterable[bytes], width: int) -> bytes:
    """Return the bytes of a table of entries of `width` bytes, which are sorted and without duplicates."""
    content = b"".join(entries)
    return b"".join(table_parts(lambda at, size: content[at : at + size], len(content), width))


def known_kinds() -> list[str]:
    """Return the names of all kinds of global variables that this process can decode, sorted."""
    return sorted(definition._DEFINING_MODULES.keys() | definition._kinds.keys())
