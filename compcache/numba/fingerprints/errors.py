"""The exception for code without an identity."""

from __future__ import annotations

__all__ = ["TooLarge", "Unidentifiable"]


class Unidentifiable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when a value that a function reads has no identity by content; the message says which and where."""


class TooLarge(Unidentifiable):
    """Raised when more can be reached than is compared by content."""
