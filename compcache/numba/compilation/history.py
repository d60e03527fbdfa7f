"""What functions read when this process compiled them, or loaded what was compiled of them.

A caller is linked with the code that this process has. Where a function reads other values now than it did then (a global
was changed in between), the caller's key, made of the values now, would stand for code made of the old ones.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.walk import Part

__all__ = ["is_latest", "note_made", "reads_else"]

_made_of: weakref.WeakKeyDictionary[Any, dict[bytes, None]] = weakref.WeakKeyDictionary()


def note_made(part: Part) -> None:
    """Code was made of a function, when what it read itself had this digest."""
    digests = _made_of.setdefault(part.function, {})
    digests.pop(part.digest, None)
    digests[part.digest] = None


def reads_else(parts: Iterable[Part]) -> str | None:
    """The first function of which there is code that was made when it read other values; None if there is none."""
    for part in parts:
        known = _made_of.get(part.function)
        if known is not None and list(known) != [part.digest]:
            return f"{part.function.__module__}.{part.function.__qualname__}"
    return None


def is_latest(part: Part) -> bool:
    """Whether the code that was made of a function last was made when it read the same values."""
    known = _made_of.get(part.function)
    return not known or next(reversed(known)) == part.digest
