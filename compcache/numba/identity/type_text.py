"""Numba types, signatures and compiler flags as texts that mean the same in every process."""

from __future__ import annotations

from compcache.numba.identity.errors import Unidentifiable

__all__ = ["type_text"]


def type_text(value: object, where: str = "a type") -> str:
    """The text of a Numba type or signature, refused where it holds an address or a number of this process."""
    text = str(value)
    if " at 0x" in text or "jitclass." in text or "object at " in text:
        raise Unidentifiable(f"{where} is of the type {text}, which is another one in each process")
    return text
