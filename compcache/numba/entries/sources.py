"""Reads the source text of compiled functions. Entries keep the text so that `compcache explain` can show edits; no key contains it."""

from __future__ import annotations

import functools
import inspect
from tokenize import TokenError
from typing import TYPE_CHECKING

from compcache.interrupts import reraise_interrupt
from compcache.numba.fingerprints.walk import CLASS
from compcache.numba.registered.library import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.numba.fingerprints.walk import FunctionPart

__all__ = ["read_sources"]

#: The maximum number of characters of all functions together. A limit is necessary because the notes of an entry are read as a whole.
_MAX_CHARACTERS = 1 << 15


#: Returns the source text of a code object. The file is read and divided once for all callers of a function.
_read_source = functools.lru_cache(maxsize=256)(inspect.getsource)


def read_sources(parts: Iterable[FunctionPart]) -> dict[str, str]:
    """Return the source texts of functions as components of an identity. Classes are omitted.

    Functions without readable source are omitted. The first function that exceeds the maximum length, and all later functions, are omitted.
    """
    texts: dict[str, str] = {}
    remaining = _MAX_CHARACTERS
    for part in parts:
        if part.kind == CLASS:
            continue
        try:
            text = _read_source(part.function.__code__)
        except (OSError, TypeError, SyntaxError, TokenError) as error:  # for example, the file was edited since its import
            reraise_interrupt(error)
            continue
        remaining -= len(text)
        if remaining < 0:
            break
        texts[f"source of {full_name(part.function)}"] = text
    return texts
