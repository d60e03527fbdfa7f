"""The source text of compiled functions, which is kept so that `explain` can show what was edited. No key contains it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.walk import Part

__all__ = ["sources_of"]

#: Characters of all functions together: notes are read whole.
_MOST = 1 << 15


def sources_of(parts: Iterable[Part]) -> dict[str, str]:
    """Return the texts as components of an identity; functions without a readable source, and those beyond the limit, are left out."""
    found: dict[str, str] = {}
    left = _MOST
    for part in parts:
        try:
            text = inspect.getsource(part.function)
        except (OSError, TypeError, SyntaxError) as error:
            reraise_interrupt(error)
            continue
        left -= len(text)
        if left < 0:
            break
        found[f"source of {part.function.__module__}.{part.function.__qualname__}"] = text
    return found
