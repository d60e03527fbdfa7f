"""``compcache compact``: pack small modules into few files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.jsontext import fields_of, json_option, print_json
from compcache.cli.output import plural, print_note, print_text, seconds_text, show_progress, size_text
from compcache.cli.params import DURATION
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.maintain.report_types import CompactReport

__all__ = ["command"]


@click.command("compact")
@click.option("--grace", type=DURATION, default="10s", show_default=True, metavar="DURATION", help="The time for which the old files stay.")
@json_option
@pass_session
def command(session: Session, grace: float, as_json: bool) -> int:
    """Pack small modules into few files.

    Each module is stored compressed, with the bytes that were published. Of several modules that realize the same functions with the same
    content, only the newest stays. The old files stay for the grace period, for processes on other hosts that do not see the new file yet.
    """
    with session.open_existing() as cache:
        report = cache.compact(grace=grace, progress=show_progress)
    if as_json:
        print_json(fields_of(report))
    else:
        _print_report(report)
    return 0


def _print_report(report: CompactReport) -> None:
    """Print the number of packed modules, and the sizes before and after as a note."""
    removed = f", {plural(len(report.merged), 'duplicate')} removed" if report.merged else ""
    print_text(f"{plural(report.packed, 'module')} packed{removed}")
    former_text = f"{size_text(report.size_before)} in {plural(report.files_before, 'file')} before"
    current_text = f"{size_text(report.size_after)} in {plural(report.files_after, 'file')} now"
    print_note(f"{plural(report.modules, 'module')}: {former_text}, {current_text}, in {seconds_text(report.seconds)}")
