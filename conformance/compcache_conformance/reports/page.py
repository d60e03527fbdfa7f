"""Results as a page of a project's documents, in Markdown: what ours lost first, then the table."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from compcache_conformance.reports.table import Table
from compcache_conformance.results import Outcome
from compcache_conformance.scenarios import FAMILIES

if TYPE_CHECKING:
    from compcache_conformance.results import Result
    from compcache_conformance.scenarios import Scenario

__all__ = ["as_page"]

_SHORT = {
    Outcome.HELD: "held", Outcome.CANNOT: "·", Outcome.MISSED: "missed", Outcome.LOST: "**lost**", Outcome.ERROR: "**error**",
    Outcome.HANG: "**hang**", Outcome.CRASH: "**crash**", Outcome.WRONG: "**wrong**",
}  # fmt: skip


def as_page(results: list[Result]) -> str:
    """The text before the tables is `reports/page.md`."""
    table = Table.of(results)
    before, after = files(__package__).joinpath("page.md").read_text().split("<!-- tables -->\n")
    parts = [before, _systems(table), _losses(table)]
    parts += [_family(table, family) for family in table.families()]
    return "\n".join([*parts, after])


def _systems(table: Table) -> str:
    lines = [
        "## Systems",
        "",
        "| system | version | played | held | wrong | crash | hang | error | lost | missed | cannot |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    why = []
    for system in table.systems:
        counts = table.counts(system)
        order = (Outcome.HELD, Outcome.WRONG, Outcome.CRASH, Outcome.HANG, Outcome.ERROR, Outcome.LOST, Outcome.MISSED, Outcome.CANNOT)
        reason = table.why_not(system)
        if reason:
            why.append(f"* {system}: {reason}.")
        played = sum(counts.values())
        lines.append(f"| {system} | {table.version(system)} | {played} | {' | '.join(str(counts[outcome]) for outcome in order)} |")
    return "\n".join([*lines, "", *(["Not played:", "", *why, ""] if why else [])])


def _losses(table: Table) -> str:
    lines = ["## What compcache loses", ""]
    losses = table.losses(ours=True)
    if not losses:
        return "\n".join([*lines, "No scenario that was played.", ""])
    lines += ["| scenario | system | result | details |", "|---|---|---|---|"]
    for loss in losses:
        said = "; ".join(filter(None, (loss.detail, loss.note)))
        lines.append(f"| {loss.scenario} | {loss.system} | {loss.result} | {_plain(said)} |")
    return "\n".join([*lines, ""])


def _family(table: Table, family: str) -> str:
    systems = [system for system in table.systems if not table.why_not(system)]
    lines = [
        f"## {family.capitalize()}",
        "",
        FAMILIES[family],
        "",
        f"| scenario | {' | '.join(systems)} |",
        "|---" * (len(systems) + 1) + "|",
    ]
    for row in table.rows(family):
        cells = [_cell(table, table.cell(row.name, system)) for system in systems]
        lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
    notes = [_remark(table, row) for row in table.rows(family)]
    return "\n".join([*lines, "", *filter(None, notes), ""])


def _name(row: Scenario) -> str:
    return f"[{row.name}]({row.link})" if row.link else row.name


def _cell(table: Table, result: Result | None) -> str:
    if result is None:
        return ""
    outcome = Outcome(result.result)
    documented = "†" if outcome.is_loss and result.note.startswith("documented") else ""
    return _SHORT[outcome] + documented + ("¹" if table.is_one_run(result) else "")


def _remark(table: Table, row: Scenario) -> str:
    """A line about a row that somebody lost: what must hold, and what came instead."""
    lost = [cell for system in table.systems if (cell := table.cell(row.name, system)) and Outcome(cell.result).is_loss]
    if not lost:
        return ""
    said: dict[str, list[str]] = {}
    for cell in lost:
        said.setdefault(_plain(cell.detail)[:160] or cell.result, []).append(cell.system)
    return f"* *{row.name}*: {row.sentence} " + "; ".join(f"{', '.join(systems)}: {detail}" for detail, systems in said.items()) + "."


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[").split())
