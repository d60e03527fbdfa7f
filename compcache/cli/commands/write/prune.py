"""``compcache prune``: remove the modules that a policy selects."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from compcache.cli.jsontext import fields_of, json_option, jsonl_option, print_json, print_json_lines
from compcache.cli.output import Column, cell_texts, confirm_removal, is_terminal, plural, print_note, print_rows, show_progress, size_text
from compcache.cli.params import DURATION, SIZE
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.maintain.report_types import PruneReport

__all__ = ["command"]


@click.command("prune")
@click.option("--max-size", "max_bytes", type=SIZE, help="Remove modules until the total size is at most this size (500M, 2GiB).")
@click.option("--max-modules", type=click.IntRange(0), metavar="N", help="Keep at most N modules.")
@click.option("--unused-for", type=DURATION, help="Remove modules not used for this long (30d, 12h).")
@click.option("--older-than", type=DURATION, help="Remove modules created longer ago than this.")
@click.option("--duplicates", is_flag=True, help="Remove surplus copies of functions for the same hosts.")
@click.option("--stale", type=DURATION, help="Remove code for CPUs, LLVM versions and formats not used for this long.")
@click.option("--llvm", "min_llvm", metavar="VERSION", help="Remove code compiled by an LLVM older than VERSION (22, 21.1).")
@click.option(
    "--made-by", multiple=True, metavar="MAKER", help="Remove modules made by a program, or by versions of it ('numba<0.66.1', 'lld')."
)
@click.option("--match", multiple=True, metavar="PATTERN", help="Remove only modules whose functions all match this glob.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Keep functions that match, and their dependencies.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@jsonl_option
@pass_session
def command(session: Session, /, dry_run: bool, yes: bool, as_json: bool, as_lines: bool, **options: Any) -> None:
    """Remove modules, the least recently used first, and leftovers of interrupted additions.

    A use of a function counts as a use of its dependencies. Pinned functions and their dependencies (compcache pin) are kept, and so
    are modules that a kept module needs. Without options, only leftovers are removed. --match without other options removes
    every matching module. Programs that have loaded a module keep its code; in other programs, its functions are misses.

    The command asks before it removes modules, unless -y is given. Without a terminal, -y is required. In a pipe each line is one
    module, with tabs between reason, module, size in bytes, time of the last use and functions. --jsonl prints the removed
    modules, then the removed leftovers.
    """
    from compcache.maintain.policy import PrunePolicy

    try:
        policy = PrunePolicy(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with session.open_or_create() if os.path.isdir(session.directory) and not dry_run else session.open_or_assume_empty() as cache:
        if not cache.exists:  # a timer may run before the first program; that is not a failure
            session.require_no_file()
            print_note(f"there is no cache at {session.directory} yet (chosen by: {session.chosen_by})")
        proposal = cache.propose_prune(policy, progress=show_progress)
        report = replace(proposal.report, dry_run=dry_run)
        if cache.exists and not dry_run:
            if (report.removed or report.removed_packs) and not yes:
                _confirm_prune(report, session.directory)
            report = cache.carry_out(proposal)
    if as_lines:
        print_json_lines([*report.removed, *report.removed_packs, *report.leftovers])
    elif as_json:
        sizes_after = {"modules_after": report.modules_after, "size_after": report.size_after}
        print_json({**fields_of(report), "freed_size": report.freed_size, **sizes_after})
    else:
        _print_report(report)


def _confirm_prune(plan: PruneReport, directory: str) -> None:
    """Ask whether to remove the modules of a planned prune. Raise the errors of `confirm_removal`."""
    size = size_text(plan.size_before - plan.size_after)
    packs = f" and {plural(len(plan.removed_packs), 'pack')} of data" if plan.removed_packs else ""
    confirm_removal(f"{plural(len(plan.removed), 'module')}{packs} ({size}) from {directory}", advice=", or --dry-run to list the modules")


def _print_report(report: PruneReport) -> None:
    """Print the removed modules, and a summary on standard error."""
    columns = [
        Column("reason"), Column("module"), Column("size", True), Column("last use", True), Column("functions", flexible=True),
    ]  # fmt: skip
    rows = (*report.removed, *report.removed_packs)
    shorten, size, age = cell_texts()
    if rows or not is_terminal():
        cells = ((row.reason, shorten(row.module_id), size(row.size), age(row.last_used), " ".join(row.functions)) for row in rows)
        print_rows(columns, cells)
    print_note(_summary_text(report))
    if report.indexed:
        verb = "would be indexed" if report.dry_run else "indexed"
        print_note(f"{verb} {plural(len(report.indexed), 'module')} of interrupted additions")
    if report.needed:
        print_note(f"{plural(len(report.needed), 'module')} kept, needed by other modules")
    if report.unknown_makers:
        makers_text = f"known makers: {', '.join(report.known_makers)}" if report.known_makers else "no module records its makers"
        print_note(f"no module was made by {' or '.join(report.unknown_makers)}; {makers_text}")
    if not report.within_limits:
        print_note(
            "the cache is still over the limits: every remaining module is pinned, kept or required; unpin functions or raise the limits"
        )


def _summary_text(report: PruneReport) -> str:
    """Return what a prune removes and keeps, with sizes, as text."""
    removed = [f"{'would remove' if report.dry_run else 'removed'} {plural(len(report.removed), 'module')}"]
    if report.removed_packs:
        size = size_text(sum(pack.size for pack in report.removed_packs))
        removed.append(f"{plural(len(report.removed_packs), 'pack')} of data with {size}")
    if report.leftovers:
        removed.append(plural(len(report.leftovers), "leftover"))
    return (
        f"{' and '.join(removed)} ({size_text(report.freed_size)}); {plural(report.modules_after, 'module')} "
        f"({size_text(report.size_after)}) {'would remain' if report.dry_run else 'remain'}"
    )
