"""Tables of known faults for tests, and sources with makers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers import adder

from compcache import ModuleSource, hit
from compcache.formats import known_faults
from compcache.formats.known_faults import KnownFault
from compcache.store import Store

if TYPE_CHECKING:
    import pytest

__all__ = ["made_by", "set_faults"]


def set_faults(patch: pytest.MonkeyPatch, *versions: str) -> None:
    """Have these versions of makers stand in the table of this process; none empties it."""
    faults = tuple([KnownFault(text, "adds one too many", "2026-01-31") for text in versions])
    patch.setattr(known_faults, "FAULTS", faults)
    patch.setattr(Store, "known_faults", known_faults.faults_digest())
    patch.setattr(hit, "KNOWN_FAULTS", known_faults.faults_digest())


def made_by(name: str, number: int, **makers: str) -> ModuleSource:
    """A function that adds a number, made by these, like ``numba="0.66.0"``."""
    return ModuleSource(adder(name, number), makers=makers)
