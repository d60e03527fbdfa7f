"""Markdown tables of a document that is made from recorded results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def figure(value: float | None) -> str:
    """Three significant digits and no exponent; a dash for what was not measured."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def pair(side: Mapping[str, Any] | None) -> str:
    """The median, and the minimum in parentheses."""
    return "-" if side is None else f"{figure(side['median'])} ({figure(side['minimum'])})"


def rows(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table, all columns but the first aligned to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])
