"""The exception for code without an identity."""

from __future__ import annotations

__all__ = ["Unidentifiable"]


class Unidentifiable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when a value that a function reads has no identity by content; the message says which and where."""
