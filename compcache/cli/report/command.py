"""``compcache report``: write a report on a cache as a page."""

from __future__ import annotations

import sys

import click

from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import is_terminal, output_file, print_note, show_progress
from compcache.cli.params import MOMENT
from compcache.cli.session import Session, pass_session

__all__ = ["command"]

_DEFAULT_LIMIT = 10


@click.command("report")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE.")
@click.option("--since", type=MOMENT, help="Count only from this time on: an age (7d, 12h) or a date.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), metavar="N", default=_DEFAULT_LIMIT, show_default=True, help="The length of each list."
)
@json_option
@pass_session
def command(session: Session, output: str | None, since: float | None, limit: int, as_json: bool) -> None:
    """Write a page about the cache: its content, the time saved, hits over time, the reasons of misses, advice.

    The page is one HTML file without scripts. It follows the light or dark scheme of the browser. --json writes the data of the
    page. The charts require a package: pip install 'compcache[report]'. Without this package, the page has tables in place of charts.
    """
    from compcache.cli.report.charts import can_draw
    from compcache.cli.report.story import collect_story

    if is_terminal() and output in (None, "-") and not as_json:
        raise click.UsageError("a report is a page for a browser, not for a terminal: give -o report.html, or --json")
    with session.open_to_read() as cache:
        story = collect_story(cache, since, limit, progress=show_progress)
    if as_json:
        print_json(story)
        return
    from compcache.cli.report.page import page

    with_charts = can_draw()
    if not with_charts:
        print_note("the page has tables in place of charts: pip install 'compcache[report]' adds the charts")
    with output_file(output):
        sys.stdout.write("".join(page(story, drawn=with_charts)))
