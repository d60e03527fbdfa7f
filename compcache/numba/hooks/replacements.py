"""Replaces attributes of Numba, and restores them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Replacements"]


class Replacements:
    """The attributes that were replaced, with their original values."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, str, Any, bool]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module, and keep its original value."""
        attributes = vars(owner)
        self._rows.append((owner, name, attributes.get(name), name in attributes))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function of a class or module by `wrap(original)`, and keep the original.

        Raise `AttributeError` if the owner has no attribute with this name.
        """
        original = getattr(owner, name)  # one Python frame for each call: nested compilations come close to the recursion limit
        self.replace(owner, name, functools.wraps(original)(wrap(original)))

    def undo(self) -> None:
        """Restore all attributes, in reverse order."""
        for owner, name, original, was_own in reversed(self._rows):
            if was_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self._rows.clear()
