"""Versions of tools that are known to generate wrong code. Their code is not used, and prunes remove it.

To add a version, append a row to `FAULTS`, and set `Store.known_faults` and `compcache.hit.KNOWN_FAULTS` to the new result of
`faults_digest`. A test compares them. A changed table makes all stamps of verified files invalid, so every module is checked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import digest
from compcache.formats.makers import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.formats.makers import Maker

__all__ = ["FAULTS", "KnownFault", "fault_of", "faults_digest"]


class KnownFault(NamedTuple):
    """Faulty versions of a maker (in the form of `Versions.parse`), the fault as a predicate, and the date when it became known."""

    versions: str
    wrong: str
    since: str


#: An example of a row: KnownFault("lld>=17,<17.0.2", "drops the constructors of archives", "2025-03-01").
FAULTS: tuple[KnownFault, ...] = ()


def fault_of(makers: Iterable[Maker]) -> str:
    """Return a description of the first known fault of these makers, or "" if no fault is known."""
    if FAULTS:
        for maker in makers:
            for fault in FAULTS:
                if Versions.parse(fault.versions).includes(maker):
                    return f"it was made by {maker}, which {fault.wrong} (known since {fault.since})"
    return ""


def faults_digest() -> bytes:
    """Return a digest of the table for stamps, or an empty value if the table is empty."""
    return digest(["\0".join(fault).encode() + b"\n" for fault in FAULTS]) if FAULTS else b""
