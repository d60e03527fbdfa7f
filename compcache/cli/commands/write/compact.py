"""``compcache compact``: puts small modules together in few files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.jsontext import fields_of, json_option, print_json
from compcache.cli.output import note, plural, print_text, seconds_text, show_progress, size_text
from compcache.cli.params import DURATION
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.maintain.report_types import CompactReport

__all__ = ["command"]


@click.command("compact")
@click.option("--grace", type=DURATION, default="10s", show_default=True, metavar="DURATION", help="How long the old files stay.")
@json_option
@pass_session
def command(session: Session, grace: float, as_json: bool) -> int:
    """Put small modules together in few files.

    Each is stored compressed, as it was published. Of modules that realize the same functions by the same content the newest stays. The
    old files stay for a while beside the new one, for processes on other hosts that do not see that yet.
    """
    with session.change() as cache:
        report = cache.compact(grace=grace, progress=show_progress)
    if as_json:
        print_json(fields_of(report))
    else:
        _print(report)
    return 0


def _print(report: CompactReport) -> None:
    merged = f", {plural(len(report.merged), 'duplicate')} removed" if report.merged else ""
    print_text(f"{plural(report.packed, 'module')} put together{merged}")
    sizes = f"{size_text(report.size_before)} in {plural(report.files_before, 'file')} before, {size_text(report.size_after)} in"
    note(f"{plural(report.modules, 'module')}: {sizes} {plural(report.files_after, 'file')} now, in {seconds_text(report.seconds)}")
