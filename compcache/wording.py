"""Texts in messages: numbers with nouns, and lists of names and long texts, cut after a number of names or characters."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["join_first", "plural", "shorten"]


def join_first(texts: Iterable[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` texts, joined. If there are more texts, "and" and their number follow: ``a, b and 3 more``."""
    texts = list(texts)
    further = len(texts) - most
    if further <= 0:
        return separator.join(texts)
    return f"{separator.join(texts[:most])}{separator.lstrip(',')}and {further} more"  # no comma before "and"


def plural(number: int, noun: str) -> str:
    """Return a number and its noun, with an "s" unless the number is 1: ``1 module``, ``2,000 modules``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, most: int) -> str:
    """Return a text. After `most` characters, it is cut and followed by ``...``."""
    return text if len(text) <= most else f"{text[:most]}..."
