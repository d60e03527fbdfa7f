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

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a function of a class or module: each call calls `wrapper` with the original function and the arguments.

        Raise `AttributeError` if the owner has no attribute with this name.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def call_wrapper(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        self.replace(owner, name, call_wrapper)

    def undo(self) -> None:
        """Restore all attributes, in reverse order."""
        for owner, name, original, was_own in reversed(self._rows):
            if was_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self._rows.clear()
