"""Encodes data with `marshal`, and decodes it after checking its shape."""

from __future__ import annotations

import marshal

from compcache.numba.lazy import _dispatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["decode_fields", "encode_fields"]


def encode_fields(fields: Any) -> bytes:
    """Encode texts, bytes, numbers, and tuples, lists and dictionaries of them, in a format that every version of Python reads."""
    return marshal.dumps(fields, 2)


def decode_fields(data: bytes, shape: str) -> Any:
    """Return the fields in bytes from `encode_fields`, if they have the given shape.

    A shape contains the types of the fields: ``u`` a text, ``b`` bytes, ``i`` an integer, ``?`` anything, ``(xyz)`` a tuple of exactly
    these, ``[x]`` a tuple or list of any number of x, ``{xy}`` a dictionary. All types and sizes are checked before any object is created.
    Raise `ValueError` if the data has another shape, or is malformed.
    """
    if not _dispatch.is_marshalled(data, shape):
        raise ValueError(f"the {len(data)} bytes are not marshalled fields of the types {shape}")
    return marshal.loads(data)  # noqa: S302 - the sizes and types were checked
