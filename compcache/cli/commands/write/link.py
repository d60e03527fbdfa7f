"""``compcache link``: link the code of several modules into one image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve_all
from compcache.cli.output import plural, print_text, printable
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.maintain.report_types import LinkReport

__all__ = ["command"]


@click.command("link")
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_names)
@click.option("--all", "all_functions", is_flag=True, help="Link all functions.")
@click.option("--into", metavar="SET", help="Make one image of this name for all functions.")
@json_option
@pass_session
def command(session: Session, names: tuple[str, ...], all_functions: bool, into: str | None, as_json: bool) -> int:
    """Link functions with the functions that they call in other modules.

    NAME is a function, a label, which selects all functions of this label, or a glob over functions. The image holds a function and
    all functions that it calls, optimized as one program. A module with variables moves into the image as a whole, or stays outside.
    Loads use the image until a newer function has a name in it. Exit status 1 if a NAME was not linked.
    """
    if bool(names) == all_functions:
        raise click.UsageError("--all cannot be combined with NAMEs" if names else "give the names of functions, or --all")
    with session.open_existing() as cache:
        report = cache.link(None if all_functions else resolve_all(cache, names), into=into)
    if as_json:
        rows = [
            {"module_id": row.module_id, "functions": row.functions, "module_ids": row.parts, "size": row.size} for row in report.linked
        ]
        print_json({"linked": rows, "left": report.left})
    else:
        _print_report(report, with_failures=not all_functions)
    return 1 if report.left and not all_functions else 0


def _print_report(report: LinkReport, *, with_failures: bool) -> None:
    """Print the linked functions. With `with_failures`, also write the functions that were not linked to standard error."""
    for closure in report.linked:
        functions_text = closure.functions[0] if len(closure.functions) == 1 else plural(len(closure.functions), "function")
        print_text(f"linked {functions_text} with code of {plural(len(closure.parts), 'module')}")
    if with_failures:
        for name, reason in report.left.items():
            click.echo(printable(f"{name} was not linked: {reason}"), err=True)
