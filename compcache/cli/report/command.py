"""``compcache report``: the story of a cache as a page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import is_terminal, note, show_progress
from compcache.cli.params import MOMENT
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["command"]

_MOST = 10


@click.command("report")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE instead.")
@click.option("--since", type=MOMENT, help="Count only from this time on: an age (7d, 12h) or a date.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", default=_MOST, show_default=True, help="The length of each list.")
@json_option
@pass_session
def command(session: Session, output: str | None, since: float | None, limit: int, as_json: bool) -> None:
    """Write a page about the cache: what is in it, what it saved, hits over time, why it was missed, what to do.

    One HTML file without scripts or other files, in the light or dark scheme of the reader. --json writes what the page says
    as data. The charts need a package: pip install 'compcache[report]'; without it their numbers are tables.
    """
    from compcache.cli.report.charts import drawing_is_possible
    from compcache.cli.report.story import tell

    if is_terminal() and output in (None, "-") and not as_json:
        raise click.UsageError("a report is a page for a browser: give -o report.html, or --json")
    with session.read() as cache:
        story = tell(cache, since, limit, progress=show_progress)
    if as_json:
        print_json(story)
        return
    from compcache.cli.report.page import page

    drawn = drawing_is_possible()
    if not drawn:
        note("the page has no charts: pip install 'compcache[report]' adds them")
    _write(page(story, drawn=drawn), output)


def _write(parts: Iterable[str], output: str | None) -> None:
    text = "".join(parts)
    if output in (None, "-"):
        sys.stdout.write(text)
        return
    with open(output, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
