"""Results as one HTML file: rows are scenarios, columns systems, each cell leads to its log."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from compcache_conformance.reports.table import Table
from compcache_conformance.results import Outcome
from compcache_conformance.scenarios import FAMILIES

if TYPE_CHECKING:
    from compcache_conformance.results import Result
    from compcache_conformance.scenarios import Scenario

__all__ = ["as_html"]

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse } th, td { border: 1px solid #ccc; padding: 2px 6px; text-align: left; vertical-align: top }
thead th { position: sticky; top: 0; background: #fff } td a { color: inherit; text-decoration: none }
.held { background: #dff3df } .cannot { color: #888 }
.missed { background: #fff3c4 } .raw { background: #ffdfb8 } .lost { background: #ffe3b0 }
.wrong, .crash { background: #f6b8b8; font-weight: bold } .hang { background: #f3c6dd } .documented { border-left: 4px solid #888 }
pre { white-space: pre-wrap; background: #f6f6f6; padding: 0.6em } details:target { outline: 2px solid #58f }
"""


def as_html(results: list[Result]) -> str:
    """The page; it needs nothing from elsewhere."""
    table = Table.of(results)
    head = "".join(f"<th>{escape(system)}<br><small>{escape(table.version(system))}</small></th>" for system in table.systems)
    body, logs = [], []
    for family in table.families():
        body.append(f'<tr><th colspan="{len(table.systems) + 1}">{escape(family)}: {escape(FAMILIES[family])}</th></tr>')
        for row in table.rows(family):
            body.append(_row(table, row))
            logs += [_log(cell) for system in table.systems if (cell := table.cell(row.name, system))]
    parts = [
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">', "<title>Conformance of compiled-code caches</title>",
        f"<style>{_STYLE}</style>", "<h1>Conformance of compiled-code caches</h1>", f"<table><thead><tr><th></th>{head}</tr></thead>",
        *body, "</table>", "<h2>Logs</h2>", *logs, "</html>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _row(table: Table, row: Scenario) -> str:
    link = f' <a href="{escape(row.link)}">{escape(row.origin)}</a>' if row.link else ""
    cells = "".join(_cell(table, table.cell(row.name, system)) for system in table.systems)
    return f'<tr><td title="{escape(row.sentence)}">{escape(row.name)}{link}</td>{cells}</tr>'


def _cell(table: Table, result: Result | None) -> str:
    if result is None:
        return "<td></td>"
    kind = result.result.split()[0] + (" documented" if result.note.startswith("documented") and Outcome(result.result).is_loss else "")
    title = escape("; ".join(filter(None, (result.detail, result.note, "one run" if table.is_one_run(result) else ""))))
    return f'<td class="{kind}" title="{title}"><a href="#{_anchor(result)}">{escape(result.result)}</a></td>'


def _log(result: Result) -> str:
    head = f"{result.system}: {result.scenario}: {result.result} {result.detail}"
    log = escape(result.log or "There is no log of it.")
    return f'<details id="{_anchor(result)}"><summary>{escape(head)}</summary><pre>{log}</pre></details>'


def _anchor(result: Result) -> str:
    return f"{quote(result.system, safe='')}/{quote(result.scenario, safe='')}"
