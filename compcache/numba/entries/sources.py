"""Reads the source text of compiled functions.

An entry keeps the text so that `compcache explain` can show edits. No key contains it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.walk import Part

__all__ = ["sources_of"]

#: The maximum number of characters of all functions together, because notes are read as a whole.
_MAX_CHARACTERS = 1 << 15


def sources_of(parts: Iterable[Part]) -> dict[str, str]:
    """Return the source texts of functions as components of an identity.

    Functions without a readable source, and functions beyond the maximum, are omitted.
    """
    texts: dict[str, str] = {}
    remaining = _MAX_CHARACTERS
    for part in parts:
        try:
            text = inspect.getsource(part.function)
        except (OSError, TypeError, SyntaxError) as error:
            reraise_interrupt(error)
            continue
        remaining -= len(text)
        if remaining < 0:
            break
        texts[f"source of {part.function.__module__}.{part.function.__qualname__}"] = text
    return texts
