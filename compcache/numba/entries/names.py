"""Formats the names of entries and the signatures of functions, for the index and for display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.numba.registered.jitclasses import without_addresses
from compcache.wording import shorten

if TYPE_CHECKING:
    from compcache.numba.identity.key import Identity

__all__ = ["format_signature", "make_func_name", "make_label"]

_MAX_SHOWN = 400  # characters


def _format_types(types: Any) -> str:
    """Return types as text that is the same in every process."""
    return without_addresses(", ".join(map(str, types)))


def make_label(name: str, signature: Any) -> str:
    """Return a function's name with the argument types, ``pkg.mod.f(int64, float64)``. Types beyond 400 characters are cut.

    `signature` is a Numba signature, or contains the types of the arguments.
    """
    return f"{name}({shorten(_format_types(getattr(signature, 'args', signature)), _MAX_SHOWN)})"


def make_func_name(identity: Identity, signature: Any) -> str:
    """Return the name of an entry, for example ``pkg.mod.f(int64, float64)-3f9c...``.

    `compcache explain` recognizes the variants of a function by this format.
    """
    return f"{make_label(identity.name, signature)}-{identity.key}"


def format_signature(signature: Any) -> str:
    """Return a signature in the notation of Numba's decorators, ``float64(int64)``. A signature is cut after 400 characters."""
    result = "void" if str(signature.return_type) == "none" else _format_types([signature.return_type])
    return shorten(f"{result}({_format_types(signature.args)})", _MAX_SHOWN)
