"""``compcache top``: list the most expensive functions."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, jsonl_option, print_json, print_json_lines
from compcache.cli.output import Column, cell_texts, is_terminal, plural, print_note, print_rows, seconds_text, show_progress
from compcache.cli.session import Session, pass_session
from compcache.frontend import list_costs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from compcache.usage.costs import Cost

__all__ = ["command"]

_KEYS = ("seconds", "size", "misses", "uses", "realizations")
_DEFAULT_LIMIT = 20


@click.command("top")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=complete_names)
@click.option("--by", type=click.Choice(_KEYS), default="seconds", show_default=True, help="The cost to sort by.")
@click.option(
    "-n", "--limit", type=click.IntRange(0), metavar="N", default=_DEFAULT_LIMIT, show_default=True, help="List only the first N functions."
)
@json_option
@jsonl_option
@pass_session
def command(session: Session, patterns: tuple[str, ...], by: str, limit: int, as_json: bool, as_lines: bool) -> None:
    """Show which functions cost most: seconds of compilation, bytes, misses, uses, stored copies.

    The costs of functions named by content are added up under their label. A label with many misses and realizations has an identity that
    changes too often. The cost of a module is divided equally among its functions. Misses are counted for each function. PATTERN is a glob
    over names and labels. In a pipe each line has name, seconds, bytes, misses, uses and realizations, separated by tabs.
    """
    import fnmatch

    total_seconds, matching = 0.0, 0

    def add_up(costs: Iterable[Cost]) -> Iterator[Cost]:
        """Add up the seconds of all costs, and count the costs that match a PATTERN. Yield the matching costs."""
        nonlocal total_seconds, matching
        for cost in costs:
            total_seconds += cost.seconds
            if not patterns or any(fnmatch.fnmatchcase(cost.name, pattern) for pattern in patterns):
                matching += 1
                yield cost

    with session.open_to_read() as cache:
        costs = add_up(list_costs(cache, progress=show_progress))
        chosen = heapq.nsmallest(max(limit, 1), costs, key=lambda cost: -getattr(cost, by))[:limit]  # with 0, no cost would be counted
    if as_lines or as_json:
        print_as = print_json_lines if as_lines else print_json
        print_as(chosen)
        return
    if chosen or not is_terminal():
        _print_costs(chosen)
    if is_terminal():
        print_note(f"{len(chosen)} of {plural(matching, 'function')} shown; the whole cache took {seconds_text(total_seconds)} to compile")


def _print_costs(costs: list[Cost]) -> None:
    """Print a table of costs."""
    columns = [
        Column("function", flexible=True), Column("compiled in", True), Column("size", True), Column("misses", True, spare=1),
        Column("uses", True, spare=2), Column("copies", True, spare=3),
    ]  # fmt: skip
    _, size, _ = cell_texts()
    seconds = seconds_text if is_terminal() else "{:.6f}".format
    rows = [(row.name, seconds(row.seconds), size(row.size), str(row.misses), str(row.uses), str(row.realizations)) for row in costs]
    print_rows(columns, rows)
