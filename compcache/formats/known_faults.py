"""Versions of makers that are known to have made wrong code. Their code is not used, and prunes remove it.

To add one, append a row to `FAULTS` and set `Store.known_faults` and `compcache.hit.KNOWN_FAULTS` to what `state` gives then; a test
compares them. Stamps of files that were verified by another table do not count: every module is looked at once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.digest import digest
from compcache.formats.makers import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.formats.makers import Maker

__all__ = ["FAULTS", "KnownFault", "fault_of", "state"]


class KnownFault(NamedTuple):
    """The faulty versions of a maker (in the form of `Versions.parse`), the fault in their code, and the date since which it is known."""

    versions: str
    wrong: str
    since: str


#: KnownFault("lld>=17,<17.0.2", "drops the constructors of archives", "2025-03-01"), for one.
FAULTS: tuple[KnownFault, ...] = ()


def fault_of(makers: Iterable[Maker]) -> str:
    """Describe the known fault in code of these makers; empty if there is none."""
    if FAULTS:
        for maker in makers:
            for fault in FAULTS:
                if Versions.parse(fault.versions).includes(maker):
                    return f"{maker} made it, which {fault.wrong} (known since {fault.since})"
    return ""


def state() -> bytes:
    """Return the bytes that stand for the table in stamps; empty if the table is empty."""
    return digest(["\0".join(fault).encode() + b"\n" for fault in FAULTS]) if FAULTS else b""
