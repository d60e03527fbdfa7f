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
_digests: weakref.WeakKeyDictionary[Any, dict[str, dict[bytes, None]]] = weakref.WeakKeyDictionary()


def note_code(parts: Iterable[Part]) -> None:
    """Record the digests that the values read by functions had when the functions were compiled or loaded, the newest last."""
    for part in parts:
        digests = _digests.setdefault(part.function, {}).setdefault(part.kind, {})
        digests.pop(part.digest, None)  # a known digest moves to the end, because `is_latest` compares the last one
        digests[part.digest] = None


def has_old_code(parts: Iterable[Part]) -> str | None:
    """Return the name of the first function whose code in this process was compiled from other values; None if all values match."""
    for part in parts:
        known = _known_digests(part)
        if known and list(known) != [part.digest]:
            return f"{part.function.__module__}.{part.function.__qualname__}"
    return None


def is_latest(part: Part) -> bool:
    """Return whether the latest code of a function was compiled from the same values."""
    known = _known_digests(part)
    return not known or next(reversed(known)) == part.digest


def _known_digests(part: Part) -> dict[bytes, None]:
    """Return the digests under which the code of a function was noted, the latest last; empty if there are none."""
    return _digests.get(part.function, {}).get(part.kind, {})
