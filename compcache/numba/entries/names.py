"""Defines the names of entries, for display and for the index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache.numba.identity.key import without_addresses

if TYPE_CHECKING:
    from compcache.numba.identity.key import Identity

__all__ = ["func_name_of", "label_of", "shown_signature"]

_MAX_SHOWN = 400  # characters


def _shown_types(items: Any) -> str:
    return without_addresses(", ".join(map(str, items)))


def label_of(name: str, signature: Any) -> str:
    """Return the name of a function with its argument types, for display: ``pkg.mod.f(int64, float64)``. Long lists of types are cut."""
    shown = _shown_types(getattr(signature, "args", signature))
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[:_MAX_SHOWN]}..."
    return f"{name}({shown})"


def func_name_of(identity: Identity, signature: Any) -> str:
    """Return the name of an entry, for example ``pkg.mod.f(int64, float64)-3f9c...``.

    By this form `compcache explain` recognizes the variants of a function.
    """
    return f"{label_of(identity.name, signature)}-{identity.key}"


def shown_signature(signature: Any) -> str:
    """Return a signature in the notation of Numba's users. A long signature is cut."""
    result = "void" if str(signature.return_type) == "none" else _shown_types([signature.return_type])
    text = f"{result}({_shown_types(signature.args)})"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
