"""Results as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache_conformance.reports.table import Table
from compcache_conformance.results import Outcome

if TYPE_CHECKING:
    from compcache_conformance.results import Result

__all__ = ["as_text"]


def as_text(results: list[Result]) -> str:
    """What was lost, ours first, and how often each outcome came."""
    table = Table.of(results)
    lines = []
    for ours in (True, False):
        for result in table.losses(ours=ours):
            note = f"  ({result.note})" if result.note else ""
            lines.append(f"{result.system:18} {result.family:12} {result.scenario:36} {result.result:13} {result.detail}{note}")
    lines.append("")
    for system in table.systems:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in table.counts(system).items() if count and outcome != Outcome.HELD)
        lines.append(f"{system:18} {table.counts(system)[Outcome.HELD]:4} held{', ' if counts else ''}{counts}")
    return "\n".join(lines) + "\n"
