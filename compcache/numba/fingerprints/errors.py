"""The answer of everything that identifies code, where there is no identity."""

from __future__ import annotations

__all__ = ["Unidentifiable"]


class Unidentifiable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when something that a function reads has no identity by content; the message says what and where."""
