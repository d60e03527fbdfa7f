"""Records which values functions read when this process compiled or loaded them.

A caller is linked with code that this process already has. If a function reads other values now, because a global has changed, the caller's
key would be computed from the present values, but the code would be compiled from the former values.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import Part

__all__ = ["has_old_code", "is_latest", "note_code"]

#: The digests of each function by their kinds, the latest last.
_made_of: weakref.WeakKeyDictionary[Any, dict[str, dict[bytes, None]]] = weakref.WeakKeyDictionary()


def note_code(parts: Iterable[Part]) -> None:
    """Record that functions were compiled or loaded when the values that they read had these digests."""
    for part in parts:
        digests = _made_of.setdefault(part.function, {}).setdefault(part.kind, {})
        digests.pop(part.digest, None)
        digests[part.digest] = None


def has_old_code(parts: Iterable[Part]) -> str | None:
    """Return the first function whose code in this process was compiled from other values than these; None if all match."""
    for part in parts:
        known = _known(part)
        if known and list(known) != [part.digest]:
            return f"{part.function.__module__}.{part.function.__qualname__}"
    return None


def is_latest(part: Part) -> bool:
    """Return whether the latest code of a function was compiled from the same values."""
    known = _known(part)
    return not known or next(reversed(known)) == part.digest


def _known(part: Part) -> dict[bytes, None]:
    return _made_of.get(part.function, {}).get(part.kind, {})
