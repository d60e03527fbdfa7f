"""Records which values functions read when this process compiled or loaded them.

A caller is linked with code that this process already has. If a function reads other values now, because a global has changed, the caller's
key would be computed from the present values, but the code would be compiled from the former values.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.walk import Part

__all__ = ["has_old_code", "is_latest", "note_code"]

_made_of: weakref.WeakKeyDictionary[Any, dict[bytes, None]] = weakref.WeakKeyDictionary()


def note_code(part: Part) -> None:
    """Record that a function was compiled or loaded when the values that it reads had this digest."""
    digests = _made_of.setdefault(part.function, {})
    digests.pop(part.digest, None)
    digests[part.digest] = None


def has_old_code(parts: Iterable[Part]) -> str | None:
    """Return the first function whose code in this process was compiled from other values than these; None if all match."""
    for part in parts:
        known = _made_of.get(part.function)
        if known is not None and list(known) != [part.digest]:
            return f"{part.function.__module__}.{part.function.__qualname__}"
    return None


def is_latest(part: Part) -> bool:
    """Return whether the latest code of a function was compiled from the same values."""
    known = _made_of.get(part.function)
    return not known or next(reversed(known)) == part.digest
