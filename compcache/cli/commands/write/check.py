"""``compcache check``: check and repair the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.jsontext import fields_of, json_option, jsonl_option, print_json, print_json_lines
from compcache.cli.output import Column, is_terminal, plural, print_note, print_rows, printable, seconds_text, show_progress, style
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.maintain.report_types import CheckReport, CheckStep, Finding

__all__ = ["command"]


@click.command("check")
@click.option("--repair", is_flag=True, help="Move damaged modules to quarantine, rebuild the index, remove leftovers.")
@click.option("--no-checksums", is_flag=True, help="Do not read every module in full.")
@click.option("--recompile", is_flag=True, help="Recompile the stored bitcode and compare it with the images.")
@json_option
@jsonl_option
@pass_session
def command(session: Session, repair: bool, no_checksums: bool, recompile: bool, as_json: bool, as_lines: bool) -> int:
    """Check the whole cache in steps.

    The steps: permissions (other users cannot write), leftovers, manifests (records can be decoded), checksums (every byte is
    as published, images match their records), code (with --recompile), edges (imports that no module provides), index,
    statistics. Exit status 1 if an error was not repaired; a note is not an error. In a pipe each line is one problem or note:
    severity, kind, subject, message. --jsonl prints the problems and notes.
    """
    with session.open_existing() if repair else session.open_to_read() as cache:
        report = cache.check(repair=repair, checksums=not no_checksums, recompile=recompile, progress=show_progress)
    if as_lines:
        print_json_lines(report.findings)
    elif as_json:
        print_json({"healthy": bool(report), **fields_of(report)})
    else:
        _print_report(report)
    return 0 if report else 1


_COLOURS = {"repaired": "green", "error": "red", "note": "yellow"}


def _print_report(report: CheckReport) -> None:
    """Print the problems and notes, on a terminal also the steps, and a summary on standard error."""
    if is_terminal():
        columns = [Column("step"), Column("checked", True), Column("time", True), Column("found", flexible=True, spare=1)]
        print_rows(columns, map(_step_cells, report.steps))
        for finding in report.findings:
            state = "repaired" if finding.repaired else finding.severity
            click.echo(f"{style(state, fg=_COLOURS[state])}: {printable(finding.message)}")
    else:
        print_rows([], [_finding_cells(finding) for finding in report.findings])
    repaired = sum(finding.repaired for finding in report.findings)
    notes = sum(finding.severity == "note" and not finding.repaired for finding in report.findings)
    text = f"{plural(len(report.errors), 'error')}, {plural(notes, 'note')}, {repaired} repaired"
    print_note(f"{'healthy' if report else 'not healthy'}: {text}, in {seconds_text(report.seconds)}")


def _step_cells(step: CheckStep) -> tuple[str, ...]:
    """Return the cells of a step: its name, how many items it checked, its time, and what it found."""
    counts_text = ", ".join(f"{name} {number:,}" for name, number in step.numbers.items() if number)
    return step.name, f"{step.checked:,}", seconds_text(step.seconds), counts_text


def _finding_cells(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a problem or note for a pipe."""
    state = "repaired" if finding.repaired else finding.severity
    return state, finding.kind, finding.subject, finding.message
